"""The head with the sums of its loss: wrong kernels are refused by the checks of operators."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shardwright.ir.errors import OperatorError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.checks.operator import check_operator
from shardwright.operators.info import _cached, operator_info, whole_kernel
from shardwright.operators.linear.head_loss import (
    HeadLogSumAndPick,
    HeadLogSumAndPickGradient,
    OverChunks,
)

HEAD, GRADIENT = HeadLogSumAndPick.name, HeadLogSumAndPickGradient.name


def _labels_of_whole(self: Any, labels: Any, view: Any) -> Any:
    """Forget where the vocabulary of a rank begins."""
    size = view.sizes["p"] * self.rule.sizes["w"]
    return np.clip(labels.ravel(), 0, size - 1), labels.ravel() < size


def _last_twice(self: Any, count: int) -> Any:
    """Add the last chunk up twice."""
    chunks = list(OverChunks.rows(self, count))
    return [*chunks, chunks[-1]]


def _without_bias(self: Any, hidden: Any, weight: Any, bias: Any) -> Any:
    """Forget the bias."""
    return OverChunks.logits(self, hidden, weight, None)


@pytest.mark.parametrize(
    ("operator", "name", "mutant"),
    [
        (HEAD, "local_labels", _labels_of_whole),
        (GRADIENT, "local_labels", _labels_of_whole),
        (HEAD, "logits", _without_bias),
        (GRADIENT, "rows", _last_twice),
        (HEAD, "summed", lambda self, rule: iter(())),
        (GRADIENT, "summed", lambda self, rule: iter("p")),
    ],
)
def test_a_mutant_is_refused(
    monkeypatch: pytest.MonkeyPatch, operator: str, name: str, mutant: Callable[..., Any]
) -> None:
    kind = HeadLogSumAndPick if operator == HEAD else HeadLogSumAndPickGradient
    monkeypatch.setattr(kind, name, mutant)
    _cached.cache_clear()  # of operators with their rules
    try:
        with pytest.raises(OperatorError):
            check_operator(operator)
    finally:
        _cached.cache_clear()


def test_chunks_change_no_result_and_fewer_logits_are_held() -> None:
    random = np.random.default_rng(0)
    hidden, weight = random.normal(size=(7, 4)), random.normal(size=(10, 4))
    labels = random.integers(0, 10, 7)
    types = [TensorType("float64", x.shape) for x in (hidden, weight)]
    types.append(TensorType("int64", labels.shape))
    held, whole = [], [Layout.replicated(kind.rank) for kind in types]
    for chunks in (1, 2, 3, 7, 20):
        info = operator_info(HEAD, types, {"chunks": chunks, "pieces": 2})
        assert isinstance(info, OverChunks)
        sums, picked = whole_kernel(info, hidden, weight, labels)
        logits = hidden @ weight.T
        expected = np.log(np.exp(logits).reshape(7, 2, 5).sum(-1))
        np.testing.assert_allclose(sums, expected, rtol=1e-14)
        np.testing.assert_allclose(picked, logits[np.arange(7), labels], rtol=1e-14)
        held.append(info.workspace_bytes(whole, Mesh(())))
    assert held == [rows * 10 * 8 for rows in (7, 4, 3, 1, 1)]


def test_entries_that_a_bias_masks() -> None:
    """A piece of minus infinity counts nothing, and has no gradient."""
    hidden, weight = np.ones((2, 1)), np.arange(4.0)[:, None]
    labels, bias = np.array([2, 3]), np.array([-np.inf, -np.inf, 0.0, 0.0])
    floats = [TensorType("float64", x.shape) for x in (hidden, weight, bias)]
    integers, rows = TensorType("int64", (2,)), TensorType("float64", (2, 2))
    info = operator_info(HEAD, [*floats[:2], integers, floats[2]], {"pieces": 2})
    sums, picked = whole_kernel(info, hidden, weight, labels, bias)
    assert sums[:, 0].tolist() == [-np.inf, -np.inf]
    assert picked.tolist() == [2.0, 3.0]
    types = [*floats[:2], rows, TensorType("float64", (2,)), rows, integers, floats[2]]
    info = operator_info(GRADIENT, types, {"pieces": 2})
    cotangents = np.ones((2, 2)), np.zeros(2)
    found = whole_kernel(info, hidden, weight, *cotangents, sums, labels, bias)
    assert [gradient[:2].ravel().tolist() for gradient in found[1:]] == [[0.0, 0.0], [0.0, 0.0]]
    assert np.isfinite(found[0]).all()
