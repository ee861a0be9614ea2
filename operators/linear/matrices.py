"""Equations with square matrices, their inverses, determinants and exponentials; reflections.

Matrices stay whole on a device; leading dimensions may be split, and so may the columns that are
solved for.
"""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.linear.square import check_square, of_each, turned, working
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

# Numerator of the Pade approximant of degree 13 of the exponential, and the greatest 1-norm of a
# matrix for which it has the precision of float64.
_PADE = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0),
    *(129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0),
    *(40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
_MOST_NORM = 5.371920351148152
_NEAR_ONE = Example(("f64[3, 3]", "f64[3, 4]"), ranges={0: (1, 2)})


class OfSquare(OperatorInfo):
    """The base of operators on square matrices."""

    result_dtype = "common"

    @property
    def products(self) -> float:
        """How many multiplications and additions an element of a matrix costs, by its size."""
        return 1.0

    @property
    def flops(self) -> float:
        """Count in products of matrices of the size."""
        first = self.operand_types[0]
        return 2.0 * self.products * first.elements * first.shape[-1]


@register
class Solve(OfSquare):
    """The ``x`` of ``a x = b``; ``transposed`` solves with the transpose of ``a``.

    Where a matrix is singular, the result is NaN.
    """

    name = "solve"
    defaults: ClassVar = {"transposed": False}
    linear = ((1,),)
    of_reals = True
    examples: ClassVar[tuple[Example, ...]] = (
        _NEAR_ONE,
        Example(("f64[2, 3, 3]", "f64[2, 3, 2]"), {"transposed": True}, {0: (1, 2)}),
        Example(("f64[2, 3, 3]", "f64[3, 2]"), ranges={0: (1, 2)}),
        Example(("f64[2, 2]", "f64[2, 2, 2]"), ranges={0: (1, 2)}),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices and the columns of `b` whole; there may be many of either."""
        check_square(self)
        read, found = ("j^", "i^") if self.attributes["transposed"] else ("i^", "j^")
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"... i^ j^, ... {read} n -> ... {found} n", shapes)

    @property
    def flops(self) -> float:
        """Count the factors, and two products with triangles for each column."""
        first = self.operand_types[0]
        return 2 / 3 * first.elements * first.shape[-1] + 2.0 * self.rule.points

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Solve."""
        a, b = working(*operands)
        a = np.swapaxes(a, -1, -2) if self.attributes["transposed"] else a
        found = np.empty(view.result_shapes[0], b.dtype)
        return np.asarray(of_each(np.linalg.solve, found, a, b), operands[1].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Solve with the transpose; the matrix gets the outer product of both solutions."""
        (a, b), x = at.operands, at.results[0]
        transposed = self.attributes["transposed"]
        db = build.emit("solve", a, at.cotangents[0], transposed=not transposed)
        factors = (x, db) if transposed else (db, x)
        da = build.emit("neg", build.emit("matmul", *factors, transpose_b=True))
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Inverse(OfSquare):
    """The inverses of matrices; NaN where a matrix is singular."""

    name = "inverse"
    of_reals = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[3, 3]",)),
        Example(("f64[2, 3, 3]",)),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        check_square(self)
        return resolve("... i^ j^ -> ... j^ i^", [self.operand_types[0].shape])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Invert."""
        (a,) = working(*operands)
        return np.asarray(of_each(np.linalg.inv, np.empty_like(a), a), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply by the transpose of the inverse from both sides."""
        y = at.results[0]
        left = build.emit("matmul", y, at.cotangents[0], transpose_a=True)
        return [build.emit("neg", build.emit("matmul", left, y, transpose_b=True))]


@register
class LogDeterminant(OfSquare):
    """The signs of the determinants of matrices, and the logarithms of their sizes."""

    name = "log_determinant"
    of_reals = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[3, 3]",)),
        Example(("f64[4, 3, 3]",)),
    )

    @property
    def products(self) -> float:
        """Count the factors of a matrix."""
        return 1 / 3

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        check_square(self)
        return resolve("... i^ j^ -> ..., ...", [self.operand_types[0].shape])

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Factor."""
        (a,) = working(*operands)
        return tuple(np.asarray(found, operands[0].dtype) for found in np.linalg.slogdet(a))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Scale the transpose of the inverse; the sign has no gradient."""
        (a,), slope = at.operands, at.cotangents[1]
        for _ in range(2):
            slope = build.emit("expand_dims", slope, axis=-1)
        inverse = turned(build, build.emit("inverse", a))
        return [build.emit("mul", inverse, slope)]


@register
class MatrixExponential(OfSquare):
    """The exponentials of matrices.

    References
    ----------
    Higham, "The scaling and squaring method for the matrix exponential revisited", 2005. The
    gradient is a block of the exponential of a matrix of twice the size: Mathias, "A chain rule for
    matrix functions and applications", 1996.
    """

    name = "matrix_exponential"
    of_reals = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[3, 3]",)),
        Example(("f64[4, 3, 3]",)),
    )

    @property
    def products(self) -> float:
        """Count six products, a solution, and four squares."""
        return 12.0

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        check_square(self)
        return resolve("... i^ j^ -> ... i^ j^", [self.operand_types[0].shape])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Compute each matrix by itself: how often it is squared depends on its size."""
        a = operands[0].astype(np.float64)
        found = np.empty_like(a)
        for place in np.ndindex(a.shape[:-2]):
            found[place] = _exponential(a[place])
        return found.astype(operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Take the upper right block of the exponential of the transpose with the cotangent."""
        a, g = turned(build, at.operands[0]), at.cotangents[0]
        upper = build.emit("concat", a, g, axis=-1)
        lower = build.emit("concat", build.emit("zeros_like", a), a, axis=-1)
        whole = build.emit("matrix_exponential", build.emit("concat", upper, lower, axis=-2))
        n, leading = a.type.shape[-1], [0] * (a.type.rank - 2)
        return [build.emit("slice", whole, begin=(*leading, 0, n), size=a.type.shape)]


def _exponential(a: Array) -> Array:
    """Return the exponential of one matrix."""
    norm = float(np.abs(a).sum(axis=0).max(initial=0.0))
    if not np.isfinite(norm):
        return np.full_like(a, np.nan)
    squares = max(0, int(np.ceil(np.log2(norm / _MOST_NORM)))) if norm else 0
    a = a / 2.0**squares
    one, b = np.eye(len(a)), _PADE
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    odd = a6 @ (b[13] * a6 + b[11] * a4 + b[9] * a2) + b[7] * a6 + b[5] * a4 + b[3] * a2
    odd = a @ (odd + b[1] * one)
    even = a6 @ (b[12] * a6 + b[10] * a4 + b[8] * a2) + b[6] * a6 + b[4] * a4 + b[2] * a2
    even += b[0] * one
    found = np.linalg.solve(even - odd, even + odd)
    for _ in range(squares):
        found = found @ found
    return np.asarray(found)


class Reflections(OperatorInfo):
    """The base of products of Householder reflections, and of their gradient."""

    result_dtype = "common"

    def check(self) -> None:
        """Refuse more columns than rows, and more reflections than columns."""
        (rows, columns), count = self.operand_types[0].shape[-2:], self.operand_types[1].shape[-1]
        if not count <= columns <= rows:
            raise IRError(
                f"`{self.name}`: {count} reflections in columns of {rows} by {columns} matrices, "
                "expected no more than columns, and no more columns than rows"
            )

    @property
    def flops(self) -> float:
        """Count a product with a vector, and an outer product, for each reflection."""
        factors = self.flops_per_point * self.operand_types[0].elements
        return factors * self.operand_types[1].shape[-1]


@register
class HouseholderProduct(Reflections):
    """The first columns of a product of reflections ``1 - t v v'``.

    Operands are matrices whose columns have the vectors below the diagonal, where a one belongs;
    and the factors ``t``. What is on and above the diagonal is not read.
    """

    name = "householder_product"
    of_reals = True
    flops_per_point = 4.0
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 3]", "f64[3]")),
        Example(("f64[2, 5, 4]", "f64[2, 3]")),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        self.check()
        shapes = [operand.shape for operand in self.operand_types]
        return resolve("... m^ n^, ... k^ -> ... m^ n^", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Apply the last reflection first."""
        a, factors = working(*operands)
        return np.asarray(_reflected(a, factors)[0], operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands; the products are made again."""
        return build.emit_all("householder_product_gradient", at.cotangents[0], *at.operands)


@register
class HouseholderProductGradient(Reflections):
    """The gradients by both operands of a product of reflections.

    Operands are the operands of the product behind its cotangent.
    """

    name = "householder_product_gradient"
    linear = ((0,),)
    of_reals = True
    flops_per_point = 10.0
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 3]", "f64[4, 3]", "f64[3]")),
        Example(("f64[2, 5, 4]", "f64[2, 5, 4]", "f64[2, 3]")),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        shapes = [operand.shape for operand in self.operand_types]
        return resolve("... m^ n^, ... m^ n^, ... k^ -> ... m^ n^, ... k^", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Go back through the products, from the first reflection to the last."""
        slope, a, factors = working(*operands)
        products = _reflected(a, factors)
        of_a, of_factors = np.zeros_like(a), np.zeros_like(factors)
        for k in range(factors.shape[-1]):
            v, t, after = _vector(a, k), factors[..., k, None, None], products[k + 1]
            row, side = _row(v, after), _row(v, slope)
            of_factors[..., k] = -(side * row).sum(axis=(-1, -2))
            moved = slope @ np.swapaxes(row, -1, -2) + after @ np.swapaxes(side, -1, -2)
            of_a[..., k] = np.where(np.arange(a.shape[-2]) > k, (-t * moved)[..., 0], 0)
            slope = slope - t * v * side
        kind = operands[0].dtype
        return np.asarray(of_a, kind), np.asarray(of_factors, kind)


def _vector(a: Array, k: int) -> Array:
    """Return the vector ``[..., row, 1]`` of a reflection."""
    rows = np.arange(a.shape[-2])
    vector: Array = np.where(rows > k, a[..., k], np.where(rows == k, 1.0, 0.0))
    return vector[..., None].astype(a.dtype)


def _row(v: Array, x: Array) -> Array:
    """Return ``v' x`` as rows ``[..., 1, column]``."""
    row: Array = np.swapaxes(v, -1, -2) @ x
    return row


def _reflected(a: Array, factors: Array) -> list[Array]:
    """Return the products of all reflections, of all but the first, ..., of none."""
    found = [np.broadcast_to(np.eye(*a.shape[-2:], dtype=a.dtype), a.shape)]
    for k in reversed(range(factors.shape[-1])):
        v, t, last = _vector(a, k), factors[..., k, None, None], found[-1]
        found.append(last - t * v * _row(v, last))
    return found[::-1]
