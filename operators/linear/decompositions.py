"""Decompositions of matrices, their determinants and pseudo-inverses, over the last two dimensions.

Matrices stay whole on a device; leading dimensions may be split. Gradients are those of PyTorch:
vectors of values that are equal have none, since they may be turned; their infinite parts are left
where a loss depends on them.
"""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.linear.square import check_square, turned, working
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView


class Decomposition(OperatorInfo):
    """The base of functions of matrices ``[..., m, n]`` of real numbers."""

    of_reals = True
    results_notation: ClassVar[str]
    products: ClassVar[float]

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        shapes = [operand.shape for operand in self.operand_types]
        if len(shapes[0]) < 2:
            raise IRError(f"`{self.name}`: the shape is {shapes[0]}, expected matrices")
        *_, m, n = shapes[0]
        sizes = {"k": min(m, n), "j": n, "p": 2}
        used = {name: size for name, size in sizes.items() if name in self.results_notation}
        rule = resolve(f"... m^ n^ -> {self.results_notation}", shapes[:1], used)
        kinds = {name: "whole" if name in used else kind for name, kind in rule.kinds.items()}
        return Rule(rule.operands, rule.results, rule.sizes, kinds)

    @property
    def flops(self) -> float:
        """Count in products of matrices of the size."""
        first = self.operand_types[0]
        return 2.0 * self.products * first.elements * min(first.shape[-2:])


class SquareDecomposition(Decomposition):
    """The base of functions of matrices with as many rows as columns."""

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        check_square(self)
        return super().make_rule()


def _narrowed(found: tuple[Array, ...], dtype: np.dtype) -> tuple[Array, ...]:
    return tuple(np.asarray(array, dtype) for array in found)


@register
class Determinant(SquareDecomposition):
    """The determinants of matrices."""

    name = "determinant"
    results_notation = "..."
    products = 1 / 3
    examples = (Example(("f64[3, 3]",)), Example(("f64[4, 3, 3]",)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Factor."""
        (a,) = working(*operands)
        return np.asarray(np.linalg.det(a), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Scale the transpose of the inverse; zero where the determinant is, as in PyTorch."""
        (a,), (det,), emit = at.operands, at.results, build.emit
        slope = emit("mul", at.cotangents[0], det)
        is_regular = emit("not_equal", det, emit("zeros_like", det))
        for _ in range(2):
            slope = emit("expand_dims", slope, axis=-1)
            is_regular = emit("expand_dims", is_regular, axis=-1)
        found = emit("mul", turned(build, emit("inverse", a)), slope)
        return [emit("where", is_regular, found, emit("zeros_like", found))]


@register
class OrthogonalFactors(Decomposition):
    """The ``q`` and ``r`` of matrices with at least as many rows as columns: ``a = q r``."""

    name = "qr"
    results_notation = "... m^ n^, ... j^ n^"
    products = 2.0
    examples = (Example(("f64[3, 3]",)), Example(("f64[2, 4, 3]",)))

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Reflect."""
        (a,) = working(*operands)
        if a.shape[-2] < a.shape[-1]:
            raise IRError(f"`qr` of {a.shape[-2]} rows, expected at least {a.shape[-1]}")
        return _narrowed(tuple(np.linalg.qr(a)), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Solve with the triangle.

        References
        ----------
        Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010.
        """
        (dq, dr), (q, r), emit = at.cotangents, at.results, build.emit
        inner = emit("matmul", r, dr, transpose_b=True)
        inner = emit("sub", inner, emit("matmul", dq, q, transpose_a=True))
        lower = emit("tril", inner, diagonal=-1)
        both = emit("add", emit("tril", inner), turned(build, lower))
        total = emit("add", dq, emit("matmul", q, both))
        found = emit("solve_triangular", r, turned(build, total), lower=False)
        return [turned(build, found)]


@register
class SymmetricEigenvectors(SquareDecomposition):
    """The eigenvalues of symmetric matrices in ascending order, and their vectors as columns.

    The lower triangle is read, or the ``upper`` one; the gradient is that of the whole matrix.
    """

    name = "eigh"
    defaults: ClassVar = {"upper": False}
    results_notation = "... n^, ... m^ n^"
    products = 9.0
    # Gradients of random matrices, which are not symmetric, are not those of differences.
    examples = (Example(("f64[1, 1]",)), Example(("f64[3, 1, 1]",)))

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Decompose."""
        (a,) = working(*operands)
        found = np.linalg.eigh(a, "U" if self.attributes["upper"] else "L")
        return _narrowed(tuple(found), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Divide what turns vectors by the distances of their values."""
        (dw, dv), (w, v), emit = at.cotangents, at.results, build.emit
        turn = emit("scale", _skew(build, emit("matmul", v, dv, transpose_a=True)), factor=0.5)
        total = emit("matmul", v, _over(build, turn, distances(build, w)))
        total = emit("add", total, emit("mul", v, _row(build, dw)))
        return [emit("matmul", total, v, transpose_b=True)]


@register
class SingularVectors(Decomposition):
    """The ``u``, ``s`` and ``vh`` of matrices: ``a = u diag(s) vh``, with ``s`` descending."""

    name = "svd"
    results_notation = "... m^ k^, ... k^, ... k^ n^"
    products = 20.0
    examples = (Example(("f64[3, 3]",)), Example(("f64[2, 4, 2]",)), Example(("f64[2, 3]",)))

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Decompose."""
        (a,) = working(*operands)
        return _narrowed(tuple(np.linalg.svd(a, full_matrices=False)), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Divide what turns vectors by the distances of squared values.

        References
        ----------
        Townsend, "Differentiating the singular value decomposition", 2016.
        """
        (du, ds, dvh), (u, s, vh), emit = at.cotangents, at.results, build.emit
        row, column = _row(build, s), emit("expand_dims", s, axis=-1)
        apart = distances(build, emit("square", s))
        along_u = emit("matmul", u, du, transpose_a=True)
        along_v = emit("matmul", vh, dvh, transpose_b=True)
        left = emit("mul", _over(build, _skew(build, along_u), apart), row)
        right = emit("mul", column, _over(build, _skew(build, along_v), apart))
        total = emit("matmul", u, emit("add", left, right))
        total = emit("add", total, emit("mul", u, _row(build, ds)))
        (*_, m, n), k = at.operands[0].type.shape, s.type.shape[-1]
        if m > k:
            beside = emit("sub", du, emit("matmul", u, along_u))
            total = emit("add", total, _over(build, beside, row))
        found = emit("matmul", total, vh)
        if n > k:
            beside = emit("sub", dvh, emit("matmul", along_v, vh, transpose_a=True))
            found = emit("add", found, emit("matmul", u, _over(build, beside, column)))
        return [found]


@register
class PseudoInverse(Decomposition):
    """The pseudo-inverses of matrices.

    Singular values at most ``relative`` times the largest one, or ``absolute``, count as zero.
    """

    name = "pseudo_inverse"
    defaults: ClassVar = {"relative": 0.0, "absolute": 0.0}
    results_notation = "... n^ m^"
    products = 22.0
    examples = (Example(("f64[3, 3]",)), Example(("f64[2, 4, 2]",)), Example(("f64[2, 3]",)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Invert the singular values."""
        (a,) = working(*operands)
        u, s, vh = np.linalg.svd(a, full_matrices=False)
        least = self.attributes["relative"] * s.max(axis=-1, keepdims=True, initial=0.0)
        is_kept = s > np.maximum(least, self.attributes["absolute"])
        inverse = np.where(is_kept, 1 / np.where(is_kept, s, 1), 0)
        found = np.swapaxes(vh, -1, -2) @ (inverse[..., None] * np.swapaxes(u, -1, -2))
        return np.asarray(found, operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Add what moves the spaces of rows and columns, at a rank that stays.

        References
        ----------
        Golub and Pereyra, "The differentiation of pseudo-inverses ...", 1973.
        """
        (a,), (p,), emit = at.operands, at.results, build.emit
        g = turned(build, at.cotangents[0])
        inside = turned(build, emit("matmul", emit("matmul", p, g), p))
        left = emit("matmul", g, emit("matmul", p, p, transpose_b=True))
        right = emit("matmul", emit("matmul", p, p, transpose_a=True), g)
        left = emit("sub", left, emit("matmul", a, emit("matmul", p, left)))
        right = emit("sub", right, emit("matmul", emit("matmul", right, p), a))
        return [emit("sub", emit("add", left, right), inside)]


def _row(build: Emitter, x: Value) -> Value:
    return build.emit("expand_dims", x, axis=-2)


def distances(build: Emitter, values: Value) -> Value:
    """Emit how much a value is over another, in the column of the one and the row of the other."""
    return build.emit("sub", _row(build, values), build.emit("expand_dims", values, axis=-1))


def _skew(build: Emitter, x: Value) -> Value:
    return build.emit("sub", x, turned(build, x))


def _over(build: Emitter, x: Value, divisor: Value) -> Value:
    """Emit a quotient that is zero where the dividend is."""
    is_zero = build.emit("equal", x, build.emit("zeros_like", x))
    one = build.emit("fill", shape=(), dtype=x.type.dtype, value=1.0)
    return build.emit("div", x, build.emit("where", is_zero, one, divisor))
