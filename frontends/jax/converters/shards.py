"""`shard_map`: a function of shards, as what it computes of whole arrays.

The devices of each axis of its mesh become samples that `vmap` maps the function over. Its
collectives are then sums, permutations and lookups along them, by JAX's own rules. How the program
is split is the plan's choice.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.jax.converters.control import scan_counts
from shardwright.frontends.jax.converters.custom import known_name
from shardwright.frontends.jax.places import is_of_jax
from shardwright.frontends.jax.primitive_call import Call
from shardwright.frontends.jax.primitives import converts
from shardwright.ir.graph import Value


@converts("shard_map")
def _shard_map(importer: Any, equation: Any, operands: list[Item]) -> list[Item]:
    params = equation.params
    # Up to JAX 0.9 the parameter has the other name.
    axes = params.get("newly_manual_axes", params.get("manual_axes", ()))
    named = {str(axis) for axis in axes}
    sizes = {axis: n for axis, n in params["mesh"].shape.items() if axis in named}
    body = partial(_evaluated, params["jaxpr"], ())
    taken = [_axes(spec, v.aval.ndim) for spec, v in _pairs(params["in_specs"], equation.invars)]
    left = [_axes(spec, v.aval.ndim) for spec, v in _pairs(params["out_specs"], equation.outvars)]

    def whole(*arrays: Any) -> Any:
        blocks = [_split(x, axes, sizes) for x, axes in zip(arrays, taken, strict=True)]
        function: Callable[..., Any] = body
        for axis in reversed(sizes):
            places = tuple(0 if any(axis in each for each in axes) else None for axes in taken)
            function = jax.vmap(function, places, 0, axis_name=axis, axis_size=sizes[axis])
        made = function(*blocks)
        return [_joined(x, axes, sizes) for x, axes in zip(made, left, strict=True)]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    try:
        with _without_mesh():
            closed = jax.make_jaxpr(whole)(*avals)
    except UnsupportedError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise UnsupportedError(
            f"`shard_map` of this function ({type(error).__name__}: {lines[0][:120]})"
        ) from error
    return list(importer.within(equation, closed, operands))


def _without_mesh() -> AbstractContextManager[object]:
    """Leave the mesh that the user has set, which has no axes of samples."""
    use = getattr(jax.sharding, "use_abstract_mesh", None)  # JAX 0.7 lacks it, and layouts as types
    return nullcontext() if use is None else use(jax.sharding.AbstractMesh((), ()))


@converts("psum", "pmax", "pmin")
def _over_devices(call: Call) -> list[Value]:
    """Reduce along dimensions, those of devices."""
    axes = tuple(call.params["axes"])
    if not all(isinstance(axis, int) for axis in axes):
        raise UnsupportedError(f"the primitive `{call.primitive}` along {axes}")
    operator = {"psum": "sum", "pmax": "max", "pmin": "min"}[call.primitive]
    return [call.emit(f"reduce_{operator}", value, axis=axes) for value in call.values()]


# The body. Its types say along which axes a value differs between devices; `vmap` has other ones.


def _evaluated(jaxpr: Any, constants: Sequence[Any], *arguments: Any) -> list[Any]:
    """Compute a jaxpr, with collectives that `vmap` knows."""
    bound: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    bound.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else bound[atom]

    for equation in jaxpr.eqns:
        found = _result(equation, [read(atom) for atom in equation.invars])
        bound.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _result(equation: Any, operands: list[Any]) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if name in _COLLECTIVES:
        return [_COLLECTIVES[name](x, params) for x in operands]
    if name in _CALLS:
        body = params["jaxpr"]
        return _evaluated(getattr(body, "jaxpr", body), getattr(body, "consts", ()), *operands)
    if name.startswith("custom_"):
        return _own_derivative(equation, operands)
    if name == "scan":
        return _scan(params, operands)
    if name == "cond":
        branches = [partial(_evaluated, b.jaxpr, b.consts) for b in params["branches"]]
        return list(jax.lax.switch(operands[0], branches, *operands[1:]))
    made = equation.primitive.get_bind_params(params)
    functions, keywords = made if isinstance(made, tuple) else ((), made)
    found = equation.primitive.bind(*functions, *operands, **keywords)
    return list(found) if equation.primitive.multiple_results else [found]


def _own_derivative(equation: Any, operands: list[Any]) -> list[Any]:
    """Call a function of JAX that has a derivative of its own; its rule is of shards."""
    body = equation.params.get("call_jaxpr")
    name = known_name(body.jaxpr) if body is not None and is_of_jax(body.jaxpr) else ""
    if name == "relu":
        return [jax.nn.relu(*operands)]
    if name == "softmax":  # the same derivative as that of what it computes
        return _evaluated(body.jaxpr, body.consts, *operands)
    raise UnsupportedError("a function with a derivative of its own inside of `shard_map`")


def _scan(params: Mapping[str, Any], operands: list[Any]) -> list[Any]:
    body, (fixed, carries) = params["jaxpr"], scan_counts(params)
    constants, state = operands[:fixed], operands[fixed : fixed + carries]

    def step(carried: Any, row: Any) -> Any:
        found = _evaluated(body.jaxpr, body.consts, *constants, *carried, *row)
        return found[:carries], found[carries:]

    columns = operands[fixed + carries :]
    last, rows = jax.lax.scan(
        step, state, columns, length=params["length"], reverse=params["reverse"]
    )
    return [*last, *rows]


def _differing(x: Any, names: Sequence[Any]) -> Any:
    """Return a value as one that may differ between the devices of axes."""
    for name in names:
        if isinstance(name, str):
            x = jnp.where(jax.lax.axis_index(name) >= 0, x, x)
    return x


def _names(params: Mapping[str, Any], key: str = "axis_name") -> tuple[Any, ...]:
    names = params[key]
    return tuple(names) if isinstance(names, (tuple, list)) else (names,)


def _summed(x: Any, params: Mapping[str, Any]) -> Any:
    names = _names(params, "axes")
    groups = params.get("axis_index_groups")
    return jax.lax.psum(_differing(x, names), names, axis_index_groups=groups)


def _permuted(x: Any, params: Mapping[str, Any]) -> Any:
    """Send to other devices; those that get nothing have zeros."""
    names, pairs = _names(params), params["perm"]
    x = _differing(x, names)
    if len(names) > 1:
        raise UnsupportedError("`ppermute` along several axes")
    count = jax.lax.axis_size(names[0])
    senders = {after: before for before, after in pairs}
    if len(senders) == count:
        return jax.lax.ppermute(x, names[0], pairs)
    own = jax.lax.axis_index(names[0])
    places = jnp.asarray([senders.get(i, 0) for i in range(count)])
    receives = jnp.asarray([i in senders for i in range(count)])
    found = jax.lax.all_gather(x, names[0])[places[own]]
    return jnp.where(receives[own], found, jnp.zeros_like(found))


_CALLS = ("jit", "pjit", "closed_call", "remat", "remat2", "checkpoint")
_COLLECTIVES: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "ppermute": _permuted,
    "psum": _summed,
    "psum_invariant": _summed,
    "pvary": lambda x, params: x,
}


# Arrays and their shards


def _pairs(specs: Any, variables: Sequence[Any]) -> Any:
    return zip(specs, variables, strict=True)


def _axes(spec: Any, rank: int) -> list[tuple[str, ...]]:
    """Return the axes of the mesh that split each dimension."""
    found = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
    return found + [()] * (rank - len(found))


def _split(x: Any, axes: list[tuple[str, ...]], sizes: Mapping[str, int]) -> Any:
    """Return an array with the axes of the mesh that split it as its first dimensions."""
    shape: list[int] = []
    places: dict[str, int] = {}
    for n, names in zip(x.shape, axes, strict=True):
        for name in names:
            places[name] = len(shape)
            shape.append(sizes[name])
            n //= sizes[name]
        shape.append(n)
    first = [places[axis] for axis in sizes if axis in places]
    rest = [d for d in range(len(shape)) if d not in first]
    return jnp.transpose(jnp.reshape(x, shape), (*first, *rest))


def _joined(x: Any, axes: list[tuple[str, ...]], sizes: Mapping[str, int]) -> Any:
    """Return the array of which each device has a part; of what all have, that of the first."""
    split = [name for names in axes for name in names]
    x = x[tuple(slice(None) if axis in split else 0 for axis in sizes)]
    first = [axis for axis in sizes if axis in split]
    order, shape = [], []
    for d, names in enumerate(axes):
        order += [*(first.index(name) for name in names), len(first) + d]
        n = x.shape[len(first) + d]
        for name in names:
            n *= sizes[name]
        shape.append(n)
    return jnp.reshape(jnp.transpose(x, order), shape)
