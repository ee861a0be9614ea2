"""Reductions over dimensions."""

from collections.abc import Callable, Sequence

import numpy as np

from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import FOLDERS, converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array


def _reduced(
    ours: str,
    before: Callable[[Call, Value], Value] | None = None,
    after: Callable[[Call, Value], Value] | None = None,
) -> Callable[[Call], Value]:
    """Return the converter of a reduction, with functions of the elements and of the result."""

    def convert(call: Call) -> Value:
        x = call.value(0)
        axes = call.ints_of("axes", 1)
        if not axes and call.attribute("noop_with_empty_axes", 0):
            return (
                after(call, before(call, x) if before else x)
                if after
                else (before(call, x) if before else x)
            )
        x = before(call, x) if before else x
        dtype = x.type.dtype
        if dtype == "bool":
            x = call.cast(x, "int32")
        elif ours == "reduce_mean" and not x.type.is_float:
            x = call.cast(x, "float64")
        keep = bool(call.attribute("keepdims", 1))
        total = call.emit(ours, x, axis=axes or None, keep_dims=keep)
        total = call.cast(total, dtype)
        return after(call, total) if after else total

    return convert


def _mapped(ours: str) -> Callable[[Call, Value], Value]:
    """Return an operator as a function of a value; integers are converted to floating point."""

    def apply(call: Call, x: Value) -> Value:
        if x.type.is_float or ours in ("abs", "square"):
            return call.emit(ours, x)
        return call.cast(call.emit(ours, call.cast(x, "float64")), x.type.dtype)

    return apply


converts("ReduceSum")(_reduced("reduce_sum"))
converts("ReduceMean")(_reduced("reduce_mean"))
converts("ReduceMax")(_reduced("reduce_max"))
converts("ReduceMin")(_reduced("reduce_min"))
converts("ReduceProd")(_reduced("reduce_prod"))
converts("ReduceL1")(_reduced("reduce_sum", _mapped("abs")))
converts("ReduceL2")(_reduced("reduce_sum", _mapped("square"), _mapped("sqrt")))
converts("ReduceSumSquare")(_reduced("reduce_sum", _mapped("square")))
converts("ReduceLogSum")(_reduced("reduce_sum", None, _mapped("log")))


# Reductions of an empty dimension.
_NOTHING = {
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceProd": 1.0,
    "ReduceMax": -np.inf,
    "ReduceMin": np.inf,
    "ReduceLogSum": -np.inf,
    "ReduceLogSumExp": -np.inf,
}


def _of_nothing(number: float) -> Callable[[Call, Sequence[Array]], Array]:
    def fold(call: Call, arrays: Sequence[Array]) -> Array:
        x, axes = arrays[0], call.ints_of("axes", 1)
        keep = bool(call.attribute("keepdims", 1))
        dims = tuple(range(x.ndim)) if axes is None else axes
        shape = np.any(x, axis=dims, keepdims=keep).shape
        if np.isinf(number) and not np.issubdtype(x.dtype, np.floating):
            bounds = (
                (False, True) if x.dtype == bool else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
            )
            return np.full(shape, bounds[number > 0], x.dtype)
        return np.full(shape, number, x.dtype)

    return fold


FOLDERS.update({name: _of_nothing(number) for name, number in _NOTHING.items()})


@converts("ReduceLogSumExp")
def _log_sum_exp(call: Call) -> Value:
    x, axes = call.value(0), call.ints_of("axes", 1)
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return x
    keep = bool(call.attribute("keepdims", 1))
    most = call.emit("reduce_max", x, axis=axes or None, keep_dims=True)
    shift = call.emit("stop_gradient", most)
    terms = call.emit("exp", call.emit("sub", x, shift))
    total = call.emit("log", call.emit("reduce_sum", terms, axis=axes or None, keep_dims=True))
    found = call.emit("add", total, shift)
    if keep:
        return found
    shape = call.importer.build.emit("reduce_sum", x, axis=axes or None).type.shape
    return call.reshape(found, shape)


@converts("GlobalAveragePool")
def _global_average(call: Call) -> Value:
    space = tuple(range(2, len(call.shape(0))))
    return call.emit("reduce_mean", call.value(0), axis=space, keep_dims=True)


@converts("GlobalMaxPool")
def _global_max(call: Call) -> Value:
    space = tuple(range(2, len(call.shape(0))))
    return call.emit("reduce_max", call.value(0), axis=space, keep_dims=True)
