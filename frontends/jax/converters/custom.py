"""Functions with a derivative of their own, which is kept.

``f(x)`` with a rule that gives the tangent ``L(x) t`` becomes ``f(s)`` with the gradient of
``L(s) x``, where ``s`` is x as a constant to gradients: L is linear, so that its own value, which
may be infinite, counts nowhere. The cotangents of a `custom_vjp` are linear, too: JAX transposes
them to tangents. Functions of JAX itself whose rule is that of an operator of ours become the
operator.
"""

from typing import Any

import jax
import jax.numpy as jnp

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.jax.places import is_of_jax
from shardwright.frontends.jax.table import converts
from shardwright.ir.graph import Value


@converts("custom")
def _custom(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    body = equation.params.get("call_jaxpr") or equation.params.get("fun_jaxpr")
    known = _known(importer, body, operands) if is_of_jax(body.jaxpr) else None
    if known is not None:
        return [known]
    if importer.is_stopped:
        return list(importer.within(equation, body, operands))
    stopped = [importer.stopped(item) for item in operands]
    importer.is_stopped = True  # what is inside reads constants to gradients alone
    values = importer.within(equation, body, stopped)
    floats = [
        i
        for i, item in enumerate(operands)
        if (isinstance(item, Value) and item.type.is_float) or _is_trained(item)
    ]
    tangents = [importer.value(operands[i]) for i in floats]
    rule = _tangents(equation, floats, equation.primitive.name == "custom_jvp_call")
    moved = importer.within(equation, rule, [*stopped, *tangents])
    importer.is_stopped = False
    pairs = zip(values, moved, strict=True)
    return [_with_gradient(importer, value, tangent) for value, tangent in pairs]


def _is_trained(item: Item) -> bool:
    return bool(getattr(item, "trained", False))


def _with_gradient(importer: Any, value: Item, tangent: Item) -> Item:
    if not isinstance(tangent, Value) or not tangent.type.is_float:
        return importer.stopped(value)
    build = importer.emission.build
    found: Value = build.emit("with_gradient_of", importer.value(value), tangent)
    return found


def _tangents(equation: Any, floats: list[int], is_forward: bool) -> Any:
    """Return the jaxpr of the tangents of a function's results, from primals and tangents."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]

    def applied(*arrays: Any) -> Any:
        made = equation.primitive.get_bind_params(equation.params)
        functions, params = made if isinstance(made, tuple) else ((), made)
        return equation.primitive.bind(*functions, *arrays, **params)

    def rule(*both: Any) -> Any:
        primals, tangents = both[: len(avals)], both[len(avals) :]

        def of_floats(*chosen: Any) -> Any:
            arrays = list(primals)
            for i, array in zip(floats, chosen, strict=True):
                arrays[i] = array
            return applied(*arrays)

        points = [primals[i] for i in floats]
        if is_forward:
            return _plain(jax.jvp(of_floats, points, list(tangents))[1], equation)
        results, backward = jax.vjp(of_floats, *points)
        kinds = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
        turned = jax.linear_transpose(lambda *cotangents: backward(list(cotangents)), *kinds)
        return _plain(turned(tuple(tangents)), equation)

    try:
        return jax.make_jaxpr(rule)(*avals, *(avals[i] for i in floats))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise UnsupportedError(
            f"a derivative of the user's own, whose rule is not linear or cannot be traced "
            f"({type(error).__name__}: {lines[0][:120]}),"
        ) from error


def _plain(tangents: Any, equation: Any) -> list[Any]:
    """Return tangents, those of integers as zeros of their type."""
    return [
        jnp.zeros(v.aval.shape, v.aval.dtype) if t.dtype == jax.dtypes.float0 else t
        for t, v in zip(tangents, equation.outvars, strict=True)
    ]


# Functions of JAX


def _known(importer: Any, body: Any, operands: list[Item]) -> Value | None:
    """Return the operator that a function of JAX is, by its name and its equations."""
    name, equations = known_name(body.jaxpr), _inner(body.jaxpr)[1]
    build = importer.emission.build
    if len(operands) == 1 and name == "relu" and [e.primitive.name for e in equations] == ["max"]:
        found: Value = build.emit("relu", importer.value(operands[0]))
        return found
    if name == "softmax" and len(operands) == 1:
        tops = [e for e in equations if e.primitive.name == "reduce_max"]
        shape = tuple(body.jaxpr.invars[0].aval.shape)
        if (
            len(tops) == 1
            and len(tops[0].params["axes"]) == 1
            and tops[0].invars[0].aval.shape == shape
        ):
            axis = int(tops[0].params["axes"][0])
            made: Value = build.emit("softmax", importer.value(operands[0]), axis=axis)
            return made
    return None


def known_name(jaxpr: Any) -> str:
    """Return the name of a function of JAX, as its users write it."""
    return _inner(jaxpr)[0].removeprefix("_")


def _inner(jaxpr: Any) -> tuple[str, list[Any]]:
    """Return the name of a function, and its equations, of a single `jit` those inside."""
    name = str(jaxpr.debug_info.func_src_info).partition(" at ")[0]
    equations = list(jaxpr.eqns)
    if len(equations) == 1 and equations[0].primitive.name in ("jit", "pjit"):
        return str(equations[0].params["name"]), list(equations[0].params["jaxpr"].jaxpr.eqns)
    return name, equations
