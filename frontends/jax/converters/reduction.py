"""Reductions, scans, and the order of elements."""

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value

_REDUCTIONS = {
    "reduce_and": "reduce_all",
    "reduce_max": "reduce_max",
    "reduce_min": "reduce_min",
    "reduce_or": "reduce_any",
    "reduce_prod": "reduce_prod",
    "reduce_sum": "reduce_sum",
}
_SCANS = {"cumsum": "cumsum", "cumprod": "cumprod", "cummax": "cummax", "cummin": "cummin"}


def _reduction(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        x = call.at(0)
        axes = tuple(int(d) for d in call.params["axes"])
        if name in ("reduce_and", "reduce_or") and x.type.dtype != "bool":
            raise UnsupportedError(f"`{name}` of integers")
        return call.emit(ours, x, axis=axes) if axes else x

    converts(name)(convert)


def _scan(name: str, ours: str) -> None:
    def convert(call: Call) -> Value:
        x, axis = call.at(0), int(call.params["axis"])
        back = bool(call.params["reverse"])
        if name == "cumsum":
            return call.emit("cumsum", x, axis=axis, reverse=back)
        x = call.emit("reverse", x, axis=axis) if back else x
        found = call.emit_all(ours, x, axis=axis)[0]
        return call.emit("reverse", found, axis=axis) if back else found

    converts(name)(convert)


for _name, _ours in _REDUCTIONS.items():
    _reduction(_name, _ours)
for _name, _ours in _SCANS.items():
    _scan(_name, _ours)


@converts("argmax", "argmin")
def _position(call: Call) -> Value:
    (axis,) = call.params["axes"]
    found = call.emit(call.primitive, call.at(0), axis=int(axis))
    return _placed(call, found, int(axis), call.result.dtype)


def _placed(call: Call, places: Value, axis: int, dtype: str) -> Value:
    """Return positions along a dimension of the first operand."""
    call.notes.spans[places.name] = 0, call.at(0).type.shape[axis] - 1
    return call.cast(places, dtype)


@converts("top_k", "approx_top_k")
def _top_k(call: Call) -> list[Value]:
    axis = int(call.params.get("axis", -1)) % call.at(0).type.rank
    how = {"k": int(call.params["k"]), "largest": bool(call.params.get("is_max_k", True))}
    values, places = call.emit_all("top_k", call.at(0), axis=axis, **how)
    return [values, _placed(call, places, axis, call.results[1].dtype)]


@converts("sort")
def _sort(call: Call) -> list[Value]:
    if call.params["num_keys"] != 1:
        raise UnsupportedError("a sort by several keys")
    first, *others = call.values()
    axis = int(call.params["dimension"]) % first.type.rank
    values, places = call.emit_all("sort", first, axis=axis)
    found = [values]
    for i, other in enumerate(others, 1):
        if _is_count(call, i, axis):
            found.append(_placed(call, places, axis, other.type.dtype))
        else:
            found.append(call.emit("gather_elements", other, places, axis=axis))
    return found


def _is_count(call: Call, position: int, axis: int) -> bool:
    """Return whether an operand is the position of each element along a dimension."""
    known = call.known(position)
    if known is None:
        return False
    shape = [1] * known.ndim
    shape[axis] = known.shape[axis]
    return bool((known == np.arange(known.shape[axis]).reshape(shape)).all())
