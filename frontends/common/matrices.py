"""Factors of matrices that several frameworks have: orthogonal ones, and by elimination."""

from shardwright.frontends.common.call import Emitting
from shardwright.ir.graph import Value


def orthogonal(call: Emitting, a: Value) -> tuple[Value, Value]:
    """Return an orthogonal factor and an upper triangle, of fewer rows than columns, too."""
    m, n = a.type.shape[-2:]
    axis = a.type.rank - 1  # the first columns make the factor, the others are projected
    q, r = call.emit_all("qr", call.part(a, axis, 0, min(m, n)))
    if m >= n:
        return q, r
    rest = call.emit("matmul", q, call.part(a, axis, m, n - m), transpose_a=True)
    return q, call.emit("concat", r, rest, axis=-1)


def factored(call: Emitting, a: Value) -> tuple[Value, Value]:
    """Return both triangles of a matrix whose rows are exchanged, and the exchanges from zero."""
    pivots = call.emit("lu_pivots", a)
    return call.emit("lu", ordered(call, a, order_of(call, pivots, a.type.shape[-2]))), pivots


def order_of(call: Emitting, pivots: Value, rows: int) -> Value:
    """Return the order of rows that exchanges make."""
    return call.emit("pivots_to_permutation", pivots, rows=rows)


def ordered(call: Emitting, x: Value, order: Value) -> Value:
    """Return the rows of matrices in an order."""
    leading, (*_, m, n) = order.type.shape[:-1], x.type.shape
    x = call.broadcast(x, (*leading, m, n))
    places = call.broadcast(call.reshape(order, (*leading, m, 1)), (*leading, m, n))
    return call.emit("gather_elements", x, places, axis=x.type.rank - 2)


def permuting(call: Emitting, order: Value, dtype: str) -> Value:
    """Return the matrices whose products with others put rows in an order."""
    return call.emit("one_hot", order, depth=order.type.shape[-1], dtype=dtype)


def triangles(call: Emitting, lu: Value) -> tuple[Value, Value]:
    """Return the lower triangle, with ones on its diagonal, and the upper one."""
    rank, (m, n) = lu.type.rank, lu.type.shape[-2:]
    k = min(m, n)
    lower = call.emit("tril", call.part(lu, rank - 1, 0, k), diagonal=-1)
    one = call.fill(1, lu.type.dtype, (m, k))
    eye = call.emit("tril", call.emit("triu", one))
    upper = call.emit("triu", call.part(lu, rank - 2, 0, k))
    return call.emit("add", lower, eye), upper


def solved(call: Emitting, lu: Value, order: Value, b: Value, transposed: bool = False) -> Value:
    """Return the ``x`` of ``a x = b`` by the factors of ``a``, or with the transpose of ``a``."""
    if not transposed:
        lower = call.emit("solve_triangular", lu, ordered(call, b, order), unit_diagonal=True)
        return call.emit("solve_triangular", lu, lower, lower=False)
    upper = call.emit("solve_triangular", lu, b, lower=False, transposed=True)
    lower = call.emit("solve_triangular", lu, upper, transposed=True, unit_diagonal=True)
    return call.emit("matmul", permuting(call, order, b.type.dtype), lower, transpose_a=True)
