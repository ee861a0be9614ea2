"""Linear algebra on matrices, the last two dimensions: equations, factors, decompositions."""

from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.matrices import (
    factored,
    order_of,
    orthogonal,
    permuting,
    solved,
    triangles,
)
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.ir.graph import Value


def _turned(call: Call, x: Value) -> Value:
    """Return the transposes of matrices."""
    rank = x.type.rank
    return call.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _triangular(
    call: Call, a: Value, b: Value, upper: bool, transposed: bool = False, unit: bool = False
) -> Value:
    how = {"lower": not upper, "transposed": transposed, "unit_diagonal": unit}
    return call.emit("solve_triangular", a, b, **how)


@converts("aten.linalg_solve_triangular")
def _solve_triangular(
    call: Call, x: Value, b: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    if left:
        return _triangular(call, x, b, upper, False, unitriangular)
    found = _triangular(call, x, _turned(call, b), upper, True, unitriangular)
    return _turned(call, found)


@converts("aten.triangular_solve")
def _old_triangular(
    call: Call,
    x: Value,
    a: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> list[Value]:
    found = _triangular(call, a, x, upper, transpose, unitriangular)
    return [found, call.broadcast(a, call.results[1].shape)]


@converts("aten.linalg_solve", "aten.linalg_solve_ex", "aten._linalg_solve_ex")
def _solve(
    call: Call, a: Value, b: Value, left: bool = True, check_errors: Any = None
) -> Value | list[Value | None]:
    is_vector = b.type.rank == 1 or b.type.shape == a.type.shape[:-1]
    if is_vector:
        b = call.reshape(b, (*b.type.shape, 1))
    if left:
        found = call.emit("solve", a, b)
    else:
        found = _turned(call, call.emit("solve", a, _turned(call, b), transposed=True))
    return _alone(call, call.reshape(found, call.result.shape) if is_vector else found)


def _alone(call: Call, found: Value) -> Value | list[Value | None]:
    """Return the first of the results; the others tell of factors and errors."""
    rest = len(call.results) - 1
    return [found, *[None] * rest] if rest else found


@converts("aten.linalg_inv", "aten.linalg_inv_ex", "aten.inverse")
def _inverse(
    call: Call, x: Value | None = None, a: Value | None = None, check_errors: Any = None
) -> Value | list[Value | None]:
    matrix = x if a is None else a
    assert matrix is not None
    return _alone(call, call.emit("inverse", matrix))


@converts("aten.linalg_slogdet", "aten._linalg_slogdet", "aten.slogdet")
def _log_determinant(
    call: Call, x: Value | None = None, a: Value | None = None
) -> list[Value | None]:
    matrix = x if a is None else a
    assert matrix is not None
    sign, logarithm = call.emit_all("log_determinant", matrix)
    return [sign, logarithm, *[None] * (len(call.results) - 2)]


@converts("aten.logdet")
def _logarithm(call: Call, x: Value) -> Value:
    """Return NaN where the determinant is negative."""
    sign, logarithm = call.emit_all("log_determinant", x)
    return call.emit("add", logarithm, call.emit("log", call.emit("stop_gradient", sign)))


@converts("aten.linalg_cholesky", "aten.linalg_cholesky_ex", "aten.cholesky")
def _cholesky(
    call: Call, x: Value, upper: bool = False, check_errors: Any = None
) -> Value | list[Value | None]:
    # PyTorch reads one triangle, and spreads the gradient over both.
    side, step = ("triu", 1) if upper else ("tril", -1)
    other = _turned(call, call.emit(side, x, diagonal=step))
    whole = call.emit("add", call.emit(side, x), other)
    whole = call.emit("with_gradient_of", call.emit("stop_gradient", whole), x)
    factor = call.emit("cholesky", whole)
    return _alone(call, _turned(call, factor) if upper else factor)


@converts("aten.cholesky_solve")
def _cholesky_solve(call: Call, x: Value, input2: Value, upper: bool = False) -> Value:
    first = _triangular(call, input2, x, upper, transposed=upper)
    return _triangular(call, input2, first, upper, transposed=not upper)


@converts("aten.cholesky_inverse")
def _cholesky_inverse(call: Call, x: Value, upper: bool = False) -> Value:
    return _cholesky_solve(call, call.like(np.eye(x.type.shape[-1]), x), x, upper)


@converts("aten.linalg_matrix_exp", "aten.matrix_exp")
def _exponential(call: Call, x: Value) -> Value:
    return call.emit("matrix_exponential", x)


@converts("aten.linalg_householder_product", "aten.orgqr")
def _reflections(
    call: Call, x: Value, tau: Value | None = None, input2: Value | None = None
) -> Value:
    factors = input2 if tau is None else tau
    assert factors is not None
    return call.emit("householder_product", x, factors)


# Decompositions


@converts("aten.linalg_det", "aten.det", "aten._linalg_det")
def _determinant(
    call: Call, x: Value | None = None, a: Value | None = None
) -> Value | list[Value | None]:
    matrix = x if a is None else a
    assert matrix is not None
    return _alone(call, call.emit("determinant", matrix))


@converts("aten.linalg_qr")
def _orthogonal(call: Call, a: Value, mode: str = "reduced") -> list[Value]:
    m, n = a.type.shape[-2:]
    if mode == "r" or (mode == "complete" and m > n):
        raise UnsupportedError(f"`qr` with mode={mode!r}, which has no gradient in PyTorch,")
    return list(orthogonal(call, a))


# Factors by elimination


@converts("aten.linalg_lu_factor", "aten.linalg_lu_factor_ex", "aten._lu_with_info")
def _factored(
    call: Call,
    x: Value | None = None,
    a: Value | None = None,
    pivot: bool = True,
    check_errors: bool = False,
) -> list[Value | None]:
    matrix = _pivoted(x, a, pivot)
    lu, pivots = factored(call, matrix)
    return [lu, _from_one(call, pivots), *[None] * (len(call.results) - 2)]


@converts("aten.linalg_lu")
def _triangles(
    call: Call, x: Value | None = None, a: Value | None = None, pivot: bool = True
) -> list[Value]:
    matrix = _pivoted(x, a, pivot)
    lu, pivots = factored(call, matrix)
    return [_exchanging(call, pivots, matrix), *triangles(call, lu)]


@converts("aten.lu_unpack")
def _unpacked(
    call: Call, lu: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> list[Value | None]:
    exchanges = _exchanging(call, _from_zero(call, pivots), lu) if unpack_pivots else None
    return [exchanges, *(triangles(call, lu) if unpack_data else (None, None))]


@converts("aten.linalg_lu_solve", "aten.lu_solve")
def _solved(
    call: Call,
    lu: Value,
    pivots: Value,
    b: Value | None = None,
    left: bool = True,
    adjoint: bool = False,
    x: Value | None = None,
) -> Value:
    right = x if b is None else b
    assert right is not None
    order = order_of(call, _from_zero(call, pivots), lu.type.shape[-1])
    if left:
        return solved(call, lu, order, right, adjoint)
    found = solved(call, lu, order, _turned(call, right), not adjoint)
    return _turned(call, found)


def _pivoted(x: Value | None, a: Value | None, pivot: bool) -> Value:
    matrix = x if a is None else a
    assert matrix is not None
    if not pivot:
        raise UnsupportedError("an elimination without pivots, which PyTorch has on GPUs alone,")
    return matrix


def _exchanging(call: Call, pivots: Value, matrix: Value) -> Value:
    order = order_of(call, pivots, matrix.type.shape[-2])
    return _turned(call, permuting(call, order, matrix.type.dtype))


def _from_one(call: Call, pivots: Value) -> Value:
    return call.shifted(call.cast(pivots, "int32"), 1)


def _from_zero(call: Call, pivots: Value) -> Value:
    return call.shifted(call.cast(pivots, "int64"), -1)


@converts("aten.linalg_eig")
def _eigenvectors(call: Call, x: Value | None = None, a: Value | None = None) -> list[Value]:
    matrix = x if a is None else a
    assert matrix is not None
    return list(call.emit_all("eig", matrix))


@converts("complex aten._linalg_eigvals", "complex aten.linalg_eigvals")
def _eigenvalues(call: Call, x: Value | None = None, a: Value | None = None) -> Value:
    if call.complex_arguments:
        raise UnsupportedError("eigenvalues of complex matrices")
    return _eigenvectors(call, x, a)[0]


@converts("aten.linalg_eigh", "aten._linalg_eigh", "aten.linalg_eigvalsh")
def _symmetric(
    call: Call,
    x: Value | None = None,
    a: Value | None = None,
    uplo: str = "L",
    compute_v: bool = True,
) -> Any:
    matrix = x if a is None else a
    assert matrix is not None
    values, vectors = call.emit_all("eigh", matrix, upper=uplo.upper() == "U")
    return values if len(call.results) == 1 else [values, vectors]


@converts("aten.linalg_svd", "aten._linalg_svd")
def _singular(
    call: Call,
    a: Value,
    full_matrices: bool = True,
    compute_uv: bool = True,
    driver: str | None = None,
) -> list[Value | None]:
    m, n = a.type.shape[-2:]
    if full_matrices and compute_uv and m != n:
        raise UnsupportedError(
            f"`svd` of {m} by {n} matrices with `full_matrices`, whose added vectors may be any,"
        )
    u, s, vh = call.emit_all("svd", a)
    return [u, s, vh] if compute_uv else [None, s, None]


@converts("aten.svd")
def _old_singular(
    call: Call, x: Value, some: bool = True, compute_uv: bool = True
) -> list[Value | None]:
    u, s, vh = _singular(call, x, not some, compute_uv)
    return [u, s, None if vh is None else _turned(call, vh)]


@converts("aten.linalg_svdvals")
def _singular_values(call: Call, a: Value, driver: str | None = None) -> Value:
    return call.emit_all("svd", a)[1]


@converts("aten.linalg_pinv", "aten.pinverse")
def _pseudo_inverse(
    call: Call,
    x: Value | None = None,
    a: Value | None = None,
    rcond: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    hermitian: bool = False,
) -> Value:
    matrix = a if x is None else x
    assert matrix is not None
    bounds = (rcond if rtol is None else rtol, atol)
    if hermitian or any(isinstance(bound, Value) for bound in bounds):
        raise UnsupportedError("`pinv` with `hermitian`, or with tolerances that are tensors,")
    relative, absolute = bounds
    if relative is None:
        least = float(np.finfo(matrix.type.dtype).eps) * max(matrix.type.shape[-2:])
        relative = 0.0 if absolute else least
    how = {"relative": float(relative), "absolute": float(absolute or 0)}
    return call.emit("pseudo_inverse", matrix, **how)
