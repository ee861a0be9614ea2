"""Decompositions of matrices, and solutions of linear equations, which carry functions."""

from typing import Any

from jax.extend.core import ClosedJaxpr

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.common.matrices import factored, order_of, orthogonal
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value


@converts("qr")
def _orthogonal(call: Call) -> list[Value]:
    a, (*_, m, n) = call.at(0), call.at(0).type.shape
    if call.params["pivoting"] or (call.params["full_matrices"] and m > n):
        raise UnsupportedError("`qr` with pivots, or whose columns are more than the matrix has,")
    return list(orthogonal(call, a))


@converts("eigh")
def _symmetric(call: Call) -> list[Value]:
    _refuse_part(call)
    values, vectors = call.emit_all("eigh", call.at(0), upper=not call.params["lower"])
    return [vectors, values]


@converts("svd")
def _singular(call: Call) -> list[Value]:
    _refuse_part(call)
    *_, m, n = call.at(0).type.shape
    if call.params["compute_uv"] and call.params["full_matrices"] and m != n:
        raise UnsupportedError(
            f"`svd` of {m} by {n} matrices with `full_matrices`, whose added vectors may be any,"
        )
    u, s, vh = call.emit_all("svd", call.at(0))
    return [s, u, vh] if call.params["compute_uv"] else [s]


def _refuse_part(call: Call) -> None:
    if call.params.get("subset_by_index") is not None:
        raise UnsupportedError(f"`{call.primitive}` of some of the values alone")


@converts("lu")
def _factored(call: Call) -> list[Value]:
    lu, pivots = factored(call, call.at(0))
    order = order_of(call, pivots, lu.type.shape[-2])
    return [lu, call.cast(pivots, "int32"), call.cast(order, "int32")]


@converts("lu_pivots_to_permutation")
def _order(call: Call) -> Value:
    pivots = call.cast(call.at(0), "int64")
    order = order_of(call, pivots, call.params["permutation_size"])
    return call.cast(order, "int32")


@converts("custom_linear_solve")
def _solution(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Return the x of A(x) = b, which its own function finds; its gradient is that of the equation.

    The derivative of x is the solution for that of b - A(x) with a constant x.
    """
    lengths, bodies = equation.params["const_lengths"], equation.params["jaxprs"]
    first, last = lengths.matvec, lengths.matvec + lengths.vecmat
    of_product = operands[:first]
    of_solution = [importer.stopped(one) for one in operands[last : last + lengths.solve]]
    right = operands[sum(lengths) :]

    def solved(targets: list[Item]) -> list[Item]:
        return list(importer.within(equation, _closed(bodies.solve), [*of_solution, *targets]))

    if importer.is_stopped:
        return solved(right)  # a derivative of the user's own, whose solutions are linear in b
    values = [importer.stopped(one) for one in solved([importer.stopped(b) for b in right])]
    made = importer.within(equation, _closed(bodies.matvec), [*of_product, *values])
    emit = importer.emission.build.emit
    rest = [
        emit("sub", importer.value(b), importer.value(product))
        for b, product in zip(right, made, strict=True)
    ]
    pairs = zip(values, solved(rest), strict=True)
    return [emit("with_gradient_of", importer.value(x), importer.value(d)) for x, d in pairs]


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())
