"""Factors of symmetric matrices, and equations with triangular ones, over the last two dimensions.

Matrices stay whole on a device; leading dimensions may be split, and so may the columns that are
solved for.
"""

from typing import ClassVar

import numpy as np

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


@register
class SolveTriangular(OperatorInfo):
    """The ``x`` of ``a x = b`` with a triangular ``a``; the other triangle is not read.

    The triangle is ``lower`` or upper; ``transposed`` solves with its transpose. With
    ``unit_diagonal`` the diagonal counts as ones. Where the diagonal has a zero, the result is NaN.
    """

    name = "solve_triangular"
    result_dtype = "common"
    defaults: ClassVar = {"lower": True, "transposed": False, "unit_diagonal": False}
    linear = ((1,),)
    flops_per_point = 1.0
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[3, 3]", "f64[3, 4]"), ranges={0: (1, 2)}),
        Example(("f64[2, 3, 3]", "f64[2, 3, 2]"), {"transposed": True}, {0: (1, 2)}),
        Example(("f64[2, 3, 3]", "f64[3, 2]"), {"lower": False}, {0: (1, 2)}),
        Example(
            ("f64[2, 2]", "f64[2, 2, 2]"),
            {"lower": False, "transposed": True, "unit_diagonal": True},
        ),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices and the columns of `b` whole; there may be many of either."""
        check_square(self)
        read, found = ("j^", "i^") if self.attributes["transposed"] else ("i^", "j^")
        notation = f"... i^ j^, ... {read} n -> ... {found} n"
        return resolve(notation, [operand.shape for operand in self.operand_types])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Solve."""
        a, b = working(*operands)
        part = np.tril if self.attributes["lower"] else np.triu
        if self.attributes["unit_diagonal"]:
            a = part(a, -1 if self.attributes["lower"] else 1) + np.eye(a.shape[-1], dtype=a.dtype)
        else:
            a = part(a)
        a = np.swapaxes(a, -1, -2) if self.attributes["transposed"] else a
        found = np.empty(view.result_shapes[0], b.dtype)
        return np.asarray(of_each(np.linalg.solve, found, a, b), operands[1].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Solve with the transpose; the matrix gets the outer product of both solutions."""
        (a, b), x, lower = at.operands, at.results[0], self.attributes["lower"]
        transposed, unit = self.attributes["transposed"], int(self.attributes["unit_diagonal"])
        attributes = {**self.attributes, "transposed": not transposed}
        db = build.emit("solve_triangular", a, at.cotangents[0], **attributes)
        factors = (x, db) if transposed else (db, x)
        da = build.emit("neg", build.emit("matmul", *factors, transpose_b=True))
        da = build.emit("tril" if lower else "triu", da, diagonal=-unit if lower else unit)
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class Cholesky(OperatorInfo):
    """The lower triangular ``l`` with ``a = l transpose(l)``, of symmetric positive matrices.

    Of other matrices, the symmetric part is factored. Where it is not positive, the result is NaN.
    """

    name = "cholesky"
    examples: ClassVar[tuple[Example, ...]] = (  # random matrices are positive where they are small
        Example(("f64[1, 1]",), ranges={0: (1, 2)}),
        Example(("f64[2, 3, 1, 1]",), ranges={0: (1, 2)}),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices whole."""
        check_square(self)
        return resolve("... i^ j^ -> ... i^ j^", [self.operand_types[0].shape])

    @property
    def flops(self) -> float:
        """Count a third of a matrix product."""
        return self.operand_types[0].elements * self.operand_types[0].shape[-1] / 3

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Factor."""
        (a,) = working(*operands)
        a = (a + np.swapaxes(a, -1, -2)) / 2
        found = of_each(np.linalg.cholesky, np.empty_like(a), a)
        return np.asarray(found, operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Solve twice with the factor.

        References
        ----------
        Murray, "Differentiation of the Cholesky decomposition", 2016.
        """
        factor = at.results[0]
        both = build.emit("matmul", factor, at.cotangents[0], transpose_a=True)
        halves = [build.emit("tril", both, diagonal=d) for d in (0, -1)]
        inner = build.emit("scale", build.emit("add", *halves), factor=0.5)
        for _ in range(2):
            inner = build.emit("solve_triangular", factor, inner, transposed=True)
            inner = turned(build, inner)
        both = build.emit("add", inner, turned(build, inner))
        return [build.emit("scale", both, factor=0.5)]
