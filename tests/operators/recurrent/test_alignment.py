"""The CTC loss against the sum over all alignments."""

from itertools import groupby, product

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel

CLASSES, STEPS = 3, 5


def run(name: str, *operands: Array, **attributes: int | bool) -> Array:
    types = [TensorType(x.dtype.name, x.shape) for x in operands]
    return whole_kernel(operator_info(name, types, attributes), *operands)[0]


def read(path: tuple[int, ...], blank: int) -> list[int]:
    """Return the labels of a path: runs are one, blanks none."""
    return [label for label, _ in groupby(path) if label != blank]


def enumerated(logs: Array, labels: list[int], blank: int) -> tuple[float, Array]:
    """Return the loss and its gradient by all paths."""
    total, shares = 0.0, np.zeros_like(logs)
    for path in product(range(CLASSES), repeat=len(logs)):
        if read(path, blank) == labels:
            places = np.arange(len(logs)), np.array(path, int)
            likely = np.exp(logs[places].sum())
            total += likely
            shares[places] += likely
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(-np.log(total)), -shares / total


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_losses_and_gradients_are_those_of_all_paths(blank: int, zero_infinity: bool) -> None:
    rng = np.random.default_rng(0)
    known = [label for label in range(CLASSES) if label != blank]
    a, b = known
    wanted = [[a, b, a], [a, a], [b], [], [a, a, a], [], [b, b]]  # the last two have few steps
    steps = np.array([STEPS, STEPS, 3, 4, STEPS, 0, 2])
    counts = np.array([len(one) for one in wanted])
    labels = np.full((len(wanted), 3), -7)
    for row, one in zip(labels, wanted, strict=True):
        row[: len(one)] = one
    logs = rng.normal(size=(STEPS, len(wanted), CLASSES))
    operands, how = (logs, labels, steps, counts), {"blank": blank, "zero_infinity": zero_infinity}
    losses = run("ctc_loss", *operands, **how)
    slope = rng.normal(size=len(wanted))
    gradient = run("ctc_loss_gradient", slope, *operands, **how)
    for n, one in enumerate(wanted):
        loss, right = enumerated(logs[: steps[n], n], one, blank)
        if np.isinf(loss) and zero_infinity:
            loss, right = 0.0, np.zeros_like(right)
        np.testing.assert_allclose(losses[n], loss, rtol=1e-13, atol=1e-13)
        found = gradient[: steps[n], n]
        np.testing.assert_allclose(found, slope[n] * right, rtol=1e-12, atol=1e-14)
        assert not gradient[steps[n] :, n].any()
