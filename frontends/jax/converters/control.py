"""Loops and branches: unrolled or chosen when the function is imported."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.frontends.common.errors import MOST_STEPS, UnsupportedError
from shardwright.frontends.common.items import Constant, Item
from shardwright.frontends.jax.importer import Key, is_known
from shardwright.frontends.jax.primitives import converts
from shardwright.frontends.jax.streams import Stream
from shardwright.ir.graph import Value


@converts("scan")
def _scan(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Unroll a scan: its body once for each step."""
    params = equation.params
    length, body = params["length"], params["jaxpr"]
    constants, carries = scan_counts(params)
    if length > MOST_STEPS:
        raise UnsupportedError(f"`scan` of {length:,} steps, over {MOST_STEPS:,} are not unrolled,")
    importer.count(length * len(body.jaxpr.eqns), "`scan`")
    fixed, carry = operands[:constants], operands[constants : constants + carries]
    columns = operands[constants + carries :]
    rows: list[list[Item]] = [[] for _ in body.jaxpr.outvars[carries:]]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    for step in order:
        taken = [_row(importer, column, step) for column in columns]
        found = importer.within(equation, body, [*fixed, *carry, *taken])
        carry = found[:carries]
        for row, item in zip(rows, found[carries:], strict=True):
            row.append(item)
    whole = [_stacked(importer, row[::-1] if params["reverse"] else row) for row in rows]
    return [*carry, *whole]


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried."""
    if "num_consts" in params:  # up to JAX 0.11
        return params["num_consts"], params["num_carry"]
    constants, carries, _ = (len(part) for part in params["ft_in"].unpack())
    return constants, carries


@converts("call_hi_primitive")
def _expanded(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Convert what a primitive of JAX 0.12 is made of, where it has no derivative of its own."""
    primitive = equation.params["_prim"]
    if any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in equation.outvars):
        name = type(primitive).__name__
        raise UnsupportedError(f"the primitive `{name}`, which has a derivative of its own,")

    def of_leaves(*leaves: Any) -> Any:
        return primitive.expand(*jax.tree.unflatten(primitive.in_tree, leaves))

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    return list(importer.within(equation, jax.make_jaxpr(of_leaves)(*avals), operands))


def _row(importer: Any, item: Any, step: int) -> Any:
    """Return one slice along the first dimension."""
    if isinstance(item, Key):
        return Key(item.value[step])
    if isinstance(item, Stream):
        return Stream(np.asarray(item.names[step], object))
    if isinstance(item, Constant) and is_known(item):
        return Constant(np.asarray(item.array[step]), item.dtype)
    value = importer.value(item)
    shape = value.type.shape
    begin, size = (step, *(0,) * (len(shape) - 1)), (1, *shape[1:])
    build = importer.emission.build
    found = value if shape[0] == 1 else build.emit("slice", value, begin=begin, size=size)
    return build.emit("reshape", found, shape=shape[1:])


def _stacked(importer: Any, rows: list[Item]) -> Item:
    """Return slices joined along a new first dimension."""
    if rows and all(isinstance(row, Constant) and is_known(row) for row in rows):
        arrays = [row.array for row in rows if isinstance(row, Constant)]
        return importer.constant(np.stack(arrays))
    values = [importer.value(row) for row in rows]
    found: Value = importer.emission.build.emit("stack", *values, axis=0)
    return found


_COMBINE: dict[str, Any] = {
    "cummax": jax.lax.max,
    "cummin": jax.lax.min,
    "cumlogsumexp": jnp.logaddexp,
}


@converts("cumulative")
def _cumulative(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Compute by the tree that JAX differentiates: equal elements share at each of its nodes."""
    scan = partial(jax.lax.associative_scan, _COMBINE[equation.primitive.name], **equation.params)
    (operand,) = (v.aval for v in equation.invars)
    tree = jax.make_jaxpr(scan)(operand)
    return list(importer.within(equation, tree, operands))


@converts("cond")
def _cond(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Take the branch that is known; where it depends on data, choose among what all compute."""
    which, *rest = operands
    branches = equation.params["branches"]
    if isinstance(which, Constant) and is_known(which):
        chosen = branches[min(max(int(which.array), 0), len(branches) - 1)]
        return importer.within(equation, chosen, rest)
    importer.count(sum(len(branch.jaxpr.eqns) for branch in branches), "`cond`")
    build, index = importer.emission.build, importer.value(which)
    found: list[Item] = []
    for number, branch in enumerate(branches):
        bound = build.emit("fill", shape=(), dtype=index.type.dtype, value=number)
        if number == len(branches) - 1:
            flag = build.emit("greater_equal", index, bound)
        else:
            flag = build.emit("equal" if number else "less_equal", index, bound)
        made = importer.within(equation, branch, [_kept(importer, item, flag) for item in rest])
        pairs = zip(made, found or made, strict=True)
        found = [_either(importer, flag, item, other) for item, other in pairs]
    return found


def _kept(importer: Any, item: Any, flag: Value) -> Any:
    """Return a tensor whose gradient counts only where a flag is true.

    The gradient of a branch that is not taken may be no number.
    """
    if not isinstance(item, (Value, Constant)) or is_known(item):
        return item
    value = importer.value(item)
    if not value.type.is_float:
        return value
    build = importer.emission.build
    return build.emit("where", flag, value, build.emit("stop_gradient", value))


def _either(importer: Any, flag: Value, item: Any, other: Any) -> Any:
    """Return what a branch returns, where it is taken."""
    if item is other:
        return item
    if not all(isinstance(one, (Value, Constant)) for one in (item, other)):
        raise UnsupportedError("`cond` or `switch`, whose branches return keys and depend on data,")
    build = importer.emission.build
    return build.emit("where", flag, importer.value(item), importer.value(other))


@converts("while")
def _while(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    """Unroll a loop whose end is known: its condition depends on constants alone."""
    params = equation.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    outer, inner = operands[:first], operands[first : first + second]
    carry = operands[first + second :]
    for _ in range(MOST_STEPS + 1):
        (going,) = importer.within(equation, condition, [*outer, *carry])
        if not isinstance(going, Constant):
            raise UnsupportedError("`while_loop`, whose end depends on data,")
        if not bool(going.array):
            return carry
        importer.count(len(body.jaxpr.eqns), "`while_loop`")
        carry = importer.within(equation, body, [*inner, *carry])
    raise UnsupportedError(f"`while_loop` of over {MOST_STEPS:,} steps")
