"""Functions of `ops` that are formulas, and methods of tensors, give what NumPy gives."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import OptionError
from shardwright.mindspore import Tensor, mint, ops
from shardwright.mindspore.mint.table import FUNCTIONS
from shardwright.mindspore.ops.formulas import FORMULAS, SAME
from shardwright.mindspore.ops.shapes import SHAPES

X = np.random.RandomState(0).randn(2, 3).astype(np.float32)
Y = np.random.RandomState(1).uniform(0.5, 2, 3).astype(np.float32)
ROOTS = np.where(X > 0, np.sqrt(np.abs(X)), np.float32(np.nan))
SQUARE = np.random.RandomState(2).randn(3, 3).astype(np.float32)

CASES = {
    "log2": (lambda: ops.log2(Tensor(Y)), np.log2(Y)),
    "exp2": (lambda: ops.exp2(Tensor(X)), np.exp2(X)),
    "sinc": (lambda: ops.sinc(Tensor(X * (X > 0))), np.sinc(X * (X > 0))),
    "logaddexp": (lambda: ops.logaddexp(Tensor(X), Tensor(Y)), np.logaddexp(X, Y)),
    "fmod": (lambda: ops.fmod(Tensor(X), Tensor(Y)), np.fmod(X, Y)),
    "remainder": (lambda: ops.remainder(Tensor(X), 0.7), np.mod(X, np.float32(0.7))),
    "fmax": (lambda: ops.fmax(ops.sqrt(Tensor(X)), Tensor(Y)), np.fmax(ROOTS, Y)),
    "copysign": (lambda: ops.copysign(Tensor(Y), Tensor(X)), np.copysign(Y, X)),
    "hypot": (lambda: ops.hypot(Tensor(X), Tensor(Y)), np.hypot(X, Y)),
    "std": (lambda: ops.std(Tensor(X), 1, 1), X.std(1, ddof=1)),
    "var_mean": (lambda: ops.var_mean(Tensor(X), 0)[0], X.var(0)),
    "logsumexp": (lambda: ops.logsumexp(Tensor(X * 100), 1), np.logaddexp.reduce(X * 100, 1)),
    "norm of all": (lambda: ops.norm(Tensor(X)), np.linalg.norm(X)),
    "norm by maximum": (lambda: ops.norm(Tensor(X), float("inf"), 1), np.abs(X).max(1)),
    "nansum": (lambda: ops.nansum(ops.sqrt(Tensor(X)), 1), np.nansum(ROOTS, 1)),
    "count_nonzero": (
        lambda: ops.count_nonzero(Tensor(X) > 0, 1),
        (X > 0).sum(1).astype(np.int32),
    ),
    "kron": (lambda: ops.kron(Tensor(X), Tensor(Y)), np.kron(X, Y)),
    "cross": (lambda: ops.cross(Tensor(X), Tensor(X[::-1].copy())), np.cross(X, X[::-1])),
    "inner": (lambda: ops.inner(Tensor(X), Tensor(SQUARE)), np.inner(X, SQUARE)),
    "addmm": (lambda: ops.addmm(Tensor(X), Tensor(X), Tensor(SQUARE), beta=2), 2 * X + X @ SQUARE),
    "diagonal": (lambda: ops.diagonal(Tensor(X), 1), np.diagonal(X, 1)),
    "diag of a matrix": (lambda: ops.diag(Tensor(X)).sum(), X.sum()),
    "roll": (lambda: ops.roll(Tensor(X), (1, -1), (0, 1)), np.roll(X, (1, -1), (0, 1))),
    "rot90": (lambda: ops.rot90(Tensor(X), 3, (0, 1)), np.rot90(X, 3)),
    "tensor_split": (lambda: ops.tensor_split(Tensor(X), 2, 1)[1], np.array_split(X, 2, 1)[1]),
    "chunk": (lambda: ops.chunk(Tensor(X), 2, 1)[1], X[:, 2:]),
    "movedim": (lambda: ops.movedim(Tensor(X), 0, 1), X.T),
    "meshgrid": (
        lambda: ops.meshgrid(Tensor(Y), Tensor(X[0]))[1],
        np.meshgrid(Y, X[0])[1],
    ),
    "repeat_interleave": (
        lambda: ops.repeat_interleave(Tensor(X), 2, 1),
        np.repeat(X, 2, 1),
    ),
    "diff": (lambda: ops.diff(Tensor(X)), np.diff(X)),
    "slice_scatter": (
        lambda: ops.slice_scatter(Tensor(X), Tensor(X[:, :1]), 1, 1, 2),
        X[:, [0, 0, 2]],
    ),
    "select_scatter": (lambda: ops.select_scatter(Tensor(X), Tensor(Y), 0, 1), np.stack([X[0], Y])),
    "index_fill": (
        lambda: ops.index_fill(Tensor(X), 1, Tensor([0, 2], ms.int32), 5.0),
        np.where([1, 0, 1], np.float32(5), X),
    ),
    "block_diag": (
        lambda: ops.block_diag(Tensor(X), Tensor(Y)),
        np.block([[X, np.zeros((2, 3))], [np.zeros((1, 3)), Y[None]]]).astype(np.float32),
    ),
    "tril_indices": (lambda: ops.tril_indices(3, 4, 1), np.stack(np.tril_indices(3, 1, 4))),
    "vander": (lambda: ops.vander(Tensor(Y)), np.vander(Y).astype(np.float32)),
    "trapz": (lambda: ops.trapz(Tensor(X), dx=0.5), np.trapezoid(X, dx=0.5).astype(np.float32)),
    "sums of truth values": (lambda: (Tensor(X) > 0).sum(1), (X > 0).sum(1)),
    "mint.var": (lambda: mint.var(Tensor(X), 1), X.var(1, ddof=1)),
    "mint.max of two": (lambda: mint.max(Tensor(X), other=Tensor(Y)), np.maximum(X, Y)),
    "mint.max along": (lambda: mint.max(Tensor(X), dim=1)[1], X.argmax(1)),
    "mint.cat": (lambda: mint.cat([Tensor(X), Tensor(X)], dim=1), np.concatenate([X, X], 1)),
    "mint.sort": (lambda: mint.sort(Tensor(X), dim=1)[1], X.argsort(1)),
    "mint.flatten": (lambda: mint.flatten(Tensor(X[None]), 1), X.reshape(1, -1)),
    "mint.norm": (lambda: mint.norm(Tensor(X)), np.linalg.norm(X)),
    "method: where": (
        lambda: Tensor(X).where(Tensor(X > 0), 0.5),
        np.where(X > 0, X, np.float32(0.5)),
    ),
    "method: mean by dim": (lambda: Tensor(X).mean(dim=1, keepdim=True), X.mean(1, keepdims=True)),
    "method: sum in a type": (
        lambda: Tensor(X).sum(axis=1, dtype=ms.float64),
        X.astype(np.float64).sum(1),
    ),
    "method: any along axis": (lambda: (Tensor(X) > 0).any(axis=1), (X > 0).any(1)),
    "method: std by dim": (lambda: Tensor(X).std(dim=0, keepdim=True), X.std(0, keepdims=True)),
    "method: sort": (lambda: Tensor(X).sort(1, True)[0], -np.sort(-X, 1)),
    "method: clamp": (lambda: Tensor(X).clamp(min=0.1), np.maximum(X, np.float32(0.1))),
    "method: unsqueeze": (lambda: Tensor(X).unsqueeze(1), X[:, None]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_function_gives_what_numpy_gives(case):
    function, expected = CASES[case]
    found = function().asnumpy()
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*FORMULAS, *SHAPES, *SAME}))
def test_every_name_is_a_function_of_ops(name):
    assert callable(getattr(ops, name))
    assert callable(getattr(ops.functional, name))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_name_is_a_function_of_mint(name):
    assert callable(getattr(mint, name))
    assert name in mint.__all__


def test_gradients_of_formulas():
    x = Tensor(X)
    for function, expected in (
        (lambda x: ops.logsumexp(x, (0, 1)), np.exp(X) / np.exp(X).sum()),
        (lambda x: ops.sinc(x * 0).sum(), 0 * X),
        (lambda x: x.norm(), X / np.linalg.norm(X)),
    ):
        np.testing.assert_allclose(ms.grad(function)(x).asnumpy(), expected, rtol=1e-5, atol=1e-7)


def test_norms_of_matrices_are_refused():
    with pytest.raises(OptionError, match="`ord` is 1, expected None, for several dimensions"):
        ops.norm(Tensor(X), 1)
