"""Functions with a derivative of their own, which is kept.

``f(x)`` with a rule that gives the tangent ``L(x) t`` (`custom_jvp`) becomes ``f(s)`` with the
gradient of ``L(s) x``, where ``s`` is x as a constant to gradients: L is linear, so that its own
value, which may be infinite, counts nowhere. The backward pass of a `custom_vjp` is imported, and
its operators act on gradients (`frontends.common.own_gradients`). Functions of JAX itself whose
rule is that of an operator of ours become the operator.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.jax.places import is_of_jax
from shardwright.frontends.jax.primitives import converts
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
    targets = [importer.value(operands[i]) for i in floats]
    if equation.primitive.name == "custom_jvp_call":
        moved = importer.within(equation, _tangents(equation, floats), [*stopped, *targets])
        pairs = zip(values, moved, strict=True)
        made = [_with_gradient(importer, value, tangent) for value, tangent in pairs]
    else:
        made = _with_backward(importer, equation, floats, stopped, values, targets)
    importer.is_stopped = False
    return made


def _with_backward(
    importer: Any,
    equation: Any,
    floats: list[int],
    stopped: list[Item],
    values: list[Item],
    targets: list[Value],
) -> list[Item]:
    """Return the values of a function with the gradients of its backward pass."""
    results = [importer.value(value) for value in values]
    marks = [importer.own.mark(r.type) if r.type.is_float else None for r in results]
    given = [
        mark or importer.constant(np.zeros(v.aval.shape, v.aval.dtype))
        for mark, v in zip(marks, equation.outvars, strict=True)
    ]
    found = importer.within(equation, _backward(equation, floats), [*stopped, *given])
    gradients = [importer.value(gradient) for gradient in found]
    return list(importer.own.given(results, marks, targets, gradients))


def _is_trained(item: Item) -> bool:
    return bool(getattr(item, "trained", False))


def _with_gradient(importer: Any, value: Item, tangent: Item) -> Item:
    if not isinstance(tangent, Value) or not tangent.type.is_float:
        return importer.stopped(value)
    build = importer.emission.build
    found: Value = build.emit("with_gradient_of", importer.value(value), tangent)
    return found


def _tangents(equation: Any, floats: list[int]) -> Any:
    """Return the jaxpr of the tangents of a function's results, from primals and tangents."""

    def rule(*both: Any) -> Any:
        primals, tangents = both[: len(equation.invars)], both[len(equation.invars) :]
        of_floats, points = _of_floats(equation, floats, primals)
        return _plain(jax.jvp(of_floats, points, list(tangents))[1], equation)

    return _traced(rule, equation, [equation.invars[i] for i in floats])


def _backward(equation: Any, floats: list[int]) -> Any:
    """Return the jaxpr of the gradients of a function's operands, from primals and cotangents."""

    def rule(*both: Any) -> Any:
        primals, cotangents = both[: len(equation.invars)], both[len(equation.invars) :]
        of_floats, points = _of_floats(equation, floats, primals)
        kinds = (
            c if jnp.issubdtype(c.dtype, jnp.inexact) else np.zeros(c.shape, jax.dtypes.float0)
            for c in cotangents
        )
        return jax.vjp(of_floats, *points)[1](list(kinds))

    return _traced(rule, equation, equation.outvars)


def _of_floats(
    equation: Any, floats: list[int], primals: Sequence[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function of its floating-point operands alone, and these."""

    def of_floats(*chosen: Any) -> Any:
        arrays = list(primals)
        for i, array in zip(floats, chosen, strict=True):
            arrays[i] = array
        made = equation.primitive.get_bind_params(equation.params)
        functions, params = made if isinstance(made, tuple) else ((), made)
        return equation.primitive.bind(*functions, *arrays, **params)

    return of_floats, [primals[i] for i in floats]


def _traced(rule: Callable[..., Any], equation: Any, more: Sequence[Any]) -> Any:
    """Return the jaxpr of a rule, of the operands of a function and more."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in (*equation.invars, *more)]
    try:
        return jax.make_jaxpr(rule)(*avals)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise UnsupportedError(
            f"a derivative of the user's own, whose rule cannot be traced "
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
