"""Factors of matrices by Gaussian elimination: the order of rows, and both triangles.

Matrices stay whole on a device; leading dimensions may be split. The order is found first and has
no gradient, so that the factors are those of rows that are in order already.
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
from shardwright.operators.linear.decompositions import Decomposition
from shardwright.operators.linear.square import turned, working
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView


@register
class Pivots(Decomposition):
    """The row that each step of an elimination exchanges its own row with, counted from zero.

    It has the element of largest size in the column, the first one of equal ones.
    """

    name = "lu_pivots"
    result_dtype = "int64"
    results_notation = "... k^"
    products = 1 / 3
    examples = (Example(("f64[3, 3]",)), Example(("f64[2, 4, 3]",)), Example(("f64[2, 5]",)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Eliminate with exchanges."""
        (a,) = working(*operands)
        a = np.array(a).reshape(-1, *a.shape[-2:])
        every, steps = np.arange(len(a)), min(a.shape[1:])
        pivots = np.zeros((len(a), steps), np.int64)
        for k in range(steps):
            pivots[:, k] = row = k + np.abs(a[:, k:, k]).argmax(axis=1)
            a[every, row], a[:, k] = a[:, k].copy(), a[every, row]
            _eliminate(a, k)
        return pivots.reshape(*operands[0].shape[:-2], steps)


@register
class PivotsToPermutation(OperatorInfo):
    """The order of ``rows`` rows that successive exchanges make."""

    name = "pivots_to_permutation"
    result_dtype = "int64"
    positions = (0,)
    defaults: ClassVar = {"rows": 1}
    examples = (
        Example(("i64[3]",), {"rows": 4}, {0: (0, 4)}),
        Example(("i64[2, 3]",), {"rows": 3}, {0: (0, 3)}),
    )

    def make_rule(self) -> Rule:
        """Keep the exchanges whole."""
        shape, rows = self.operand_types[0].shape, self.attributes["rows"]
        if not shape or shape[-1] > rows:
            raise IRError(f"`{self.name}`: exchanges {shape} of {rows} rows, expected no more")
        rule = resolve("... k^ -> ... m^", [shape], {"m": rows})
        return Rule(rule.operands, rule.results, rule.sizes, {**rule.kinds, "m": "whole"})

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Exchange one by one."""
        pivots = operands[0].reshape(-1, operands[0].shape[-1])
        order = np.tile(np.arange(self.attributes["rows"]), (len(pivots), 1))
        every = np.arange(len(pivots))
        for k, row in enumerate(pivots.T):
            order[every, row], order[:, k] = order[:, k].copy(), order[every, row]
        return order.reshape(view.result_shapes[0])


@register
class TriangularFactors(Decomposition):
    """Both triangles of ``a = l u`` without exchanges in one matrix; ``l`` has a diagonal of ones.

    A column whose diagonal is zero is left as it is.
    """

    name = "lu"
    results_notation = "... m^ n^"
    products = 1 / 3
    examples = (
        Example(("f64[3, 3]",), ranges={0: (1, 2)}),
        Example(("f64[2, 4, 2]",), ranges={0: (1, 2)}),
        Example(("f64[2, 4]",), ranges={0: (1, 2)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Eliminate."""
        (a,) = working(*operands)
        found = np.array(a).reshape(-1, *a.shape[-2:])
        for k in range(min(a.shape[-2:])):
            _eliminate(found, k)
        return np.asarray(found.reshape(a.shape), operands[0].dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Solve with both triangles; rows and columns after the square are products with it.

        References
        ----------
        Walter and Lehmann, "Algorithmic differentiation of linear algebra functions", 2010.
        """
        (lu,), (g,), emit = at.results, at.cotangents, build.emit
        *leading, m, n = lu.type.shape
        k = min(m, n)

        def part(x: Value, row: int, column: int, rows: int, columns: int) -> Value:
            begin = (*[0] * len(leading), row, column)
            return emit("slice", x, begin=begin, size=(*leading, rows, columns))

        square, both = part(lu, 0, 0, k, k), part(g, 0, 0, k, k)
        of_l, of_u = emit("tril", both, diagonal=-1), emit("triu", both)
        below = emit("matmul", emit("tril", square, diagonal=-1), of_l, transpose_a=True)
        below = emit("add", below, of_l)
        above = emit("matmul", of_u, emit("triu", square), transpose_b=True)
        if m > k:
            rest, slope = part(lu, k, 0, m - k, k), part(g, k, 0, m - k, k)
            above = emit("sub", above, emit("matmul", rest, slope, transpose_a=True))
            last = _over_upper(build, square, slope)
        if n > k:
            rest, slope = part(lu, 0, k, k, n - k), part(g, 0, k, k, n - k)
            below = emit("sub", below, emit("matmul", slope, rest, transpose_b=True))
            last = _over_lower(build, square, slope)
        found = emit("add", emit("tril", below, diagonal=-1), emit("triu", above))
        found = _over_lower(build, square, _over_upper(build, square, found))
        return [found if m == n else emit("concat", found, last, axis=-2 if m > n else -1)]


def _over_lower(build: Emitter, lu: Value, x: Value) -> Value:
    """Emit a product with the inverse of the transpose of the lower triangle from the left."""
    return build.emit("solve_triangular", lu, x, transposed=True, unit_diagonal=True)


def _over_upper(build: Emitter, lu: Value, x: Value) -> Value:
    """Emit a product with the inverse of the transpose of the upper triangle from the right."""
    return turned(build, build.emit("solve_triangular", lu, turned(build, x), lower=False))


def _eliminate(a: Array, k: int) -> None:
    """Subtract a row of matrices from those below; nothing where its diagonal is zero."""
    head = a[:, k, k, None]
    factor = np.divide(a[:, k + 1 :, k], head, out=a[:, k + 1 :, k].copy(), where=head != 0)
    a[:, k + 1 :, k] = factor
    a[:, k + 1 :, k + 1 :] -= factor[:, :, None] * a[:, None, k, k + 1 :]
