"""Random numbers of keys that are arguments: other ones than JAX's, and others in every step.

Such a key stands for the name of a stream. What is split from it, or folded into it, names others,
so that equal keys give equal numbers, and different keys different ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Constant
from shardwright.ir.graph import Value
from shardwright.operators.info import Array


@dataclass(frozen=True, eq=False)
class Stream:
    """Keys of random numbers that are not known when the function is imported.

    Parameters
    ----------
    names : array of object
        The name of the stream of each key; of unwrapped keys, for each of its two numbers.
    """

    names: Array


def stream_of(name: str, shape: tuple[int, ...]) -> Stream:
    """Return the keys of an argument."""
    names = np.empty(shape, object)
    for index in np.ndindex(*shape):
        names[index] = "/".join([name, *map(str, index)])
    return Stream(names)


def wrapped(value: Value) -> Stream:
    """Return the keys that the numbers of an argument are."""
    return stream_of(value.name, value.type.shape[:-1])


def derived(name: str, params: Any, operands: list[Any]) -> "Stream | Bits | None":
    """Return what a primitive makes of keys; None if it is unknown."""
    first = operands[0]
    if name == "random_wrap":
        return Stream(first.names[..., 0]) if isinstance(first, Stream) else wrapped(first)
    if name == "random_unwrap":
        return Stream(np.stack([first.names, first.names], axis=-1))
    if name == "random_split":
        shape = tuple(params["shape"])
        rows = [stream_of(key, shape).names for key in first.names.ravel()]
        names = np.stack(rows).reshape(*first.names.shape, *shape)
        return Stream(names)
    if name == "random_fold_in":
        return _folded(first, operands[1])
    if name == "random_bits":
        return Bits("+".join(dict.fromkeys(first.names.ravel())))
    return None


def _folded(keys: Stream, data: Any) -> Stream:
    if not isinstance(data, Constant):
        raise UnsupportedError("`fold_in` of a number that depends on data")
    numbers = np.broadcast_to(data.array, keys.names.shape)
    names = np.empty(keys.names.shape, object)
    for index in np.ndindex(*names.shape):
        names[index] = f"{keys.names[index]}/folded{int(numbers[index])}"
    return Stream(names)


def moved(keys: Stream, positions: Array) -> Stream:
    """Return keys at positions among all."""
    names = np.empty(positions.shape, object)
    names[...] = keys.names.reshape(-1)[positions]
    return Stream(names)


@dataclass(frozen=True, eq=False)
class Bits:
    """Random bits, which JAX makes the mantissa of a number from 1 to 2.

    Parameters
    ----------
    name : str
        The name of their stream.
    steps : int
        How many primitives of that have been seen.
    """

    name: str
    steps: int = 0


# What JAX does to bits: it shifts them, gives them the exponent of 1, reads them as a number.
_STEPS = ("shift_right_logical", "or", "bitcast_convert_type")


def from_bits(importer: Any, name: str, operands: list[Any], kind: Any) -> Bits | Value | None:
    """Return what a primitive makes of bits: at last a random number; None if it is unknown."""
    bits = operands[0]
    if not isinstance(bits, Bits):
        return None
    if bits.steps < len(_STEPS) and name == _STEPS[bits.steps]:
        return Bits(bits.name, bits.steps + 1)
    one = operands[1] if len(operands) > 1 else None
    is_one = isinstance(one, Constant) and bool((one.array == 1).all())
    if bits.steps < len(_STEPS) or name != "sub" or not is_one:
        return None
    build, step = importer.emission.build, importer.emission.step()
    zeros = build.emit("fill", shape=kind.shape, dtype=kind.dtype, value=0.0)
    found: Value = build.emit("random_uniform", zeros, step, key=f"{bits.name}/uniform")
    return found
