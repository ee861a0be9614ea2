"""Random numbers that do not depend on how a tensor is split.

A number is a function of a seed, the name of a stream and the global index of the element, so every
rank draws exactly its part of the tensor of one device, in any order and without state.

Seed and name are hashed (BLAKE2b) to the start of a SplitMix64 sequence; element ``i`` takes its
``i``-th output, which SplitMix64 can jump to directly.

References
----------
Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import prod

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardwright.ir.errors import IRError
from shardwright.operators.info import Array
from shardwright.operators.rule import Shape

Index = NDArray[np.uint64]
Reals = NDArray[np.float64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)


def _bits(seed: int, key: str, index: Index) -> Index:
    """Return 64 random bits for each index."""
    digest = blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
    start = np.uint64(int.from_bytes(digest, "little"))
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64
        state = (index + np.uint64(1)) * _GAMMA + start
        for shift, factor in _MIXERS:
            state = (state ^ (state >> shift)) * factor
    return state ^ (state >> np.uint64(31))


def uniform(seed: int, key: str, index: Index) -> Reals:
    """Return a number in [0, 1) for each index.

    Parameters
    ----------
    seed : int
        Seed of the whole program.
    key : str
        Name of the stream: of a parameter, or of a use in a step.
    index : array of uint64
        Global indices of the elements, of any shape.
    """
    return (_bits(seed, key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(seed: int, key: str, index: Index) -> Reals:
    """Return a standard normal number for each index (Box and Muller, 1958)."""
    radius = np.sqrt(-2 * np.log1p(-uniform(seed, f"{key}/radius", index)))
    return radius * np.cos(2 * np.pi * uniform(seed, f"{key}/angle", index))


def truncated_normal(seed: int, key: str, index: Index) -> Reals:
    """Return a standard normal number for each index, redrawn until within two."""
    numbers = normal(seed, key, index)
    draw = 0
    while (outside := np.abs(numbers) > 2).any():
        draw += 1
        numbers[outside] = normal(seed, f"{key}/{draw}", index[outside])
    return numbers


def gamma(seed: int, key: str, index: Index, alpha: Reals) -> Reals:
    """Return a number of the gamma distribution with scale 1 for each index.

    Parameters
    ----------
    seed, key, index
        As for `uniform`.
    alpha : array of float64
        The shape parameter of each.

    References
    ----------
    Marsaglia and Tsang, "A simple method for generating gamma variables", TOMS 2000.
    """
    d = np.where(alpha < 1, alpha + 1, alpha) - 1 / 3
    cubes, draw = np.zeros(index.shape), 0
    left = np.isfinite(alpha) & (alpha > 0)
    while left.any():
        x = normal(seed, f"{key}/gamma {draw}", index[left])
        v = (1 + x / np.sqrt(9 * d[left])) ** 3
        share = uniform(seed, f"{key}/accepted {draw}", index[left])
        with np.errstate(all="ignore"):
            kept = np.log1p(-share) < x * x / 2 + d[left] * (1 - v + np.log(v))
        places = np.flatnonzero(left)[kept & (v > 0)]
        cubes.flat[places] = v[kept & (v > 0)]
        left.flat[places] = False
        draw += 1
    with np.errstate(all="ignore"):
        less = (1 - uniform(seed, f"{key}/less", index)) ** (1 / alpha)
        return np.where(alpha > 0, d * cubes * np.where(alpha < 1, less, 1), np.nan)


def block_index(shape: Shape, blocks: Shape, region: Sequence[slice]) -> tuple[Index, Index]:
    """Return for each element of a region the number of its block, and its index in the block.

    Parameters
    ----------
    shape : tuple of int
        The shape of the whole tensor.
    blocks : tuple of int
        Into how many equal blocks each dimension is divided; blocks are numbered in order.
    region : sequence of slice
        The region: a start and a stop for each dimension.
    """
    number, index = (np.zeros((1,) * len(shape), np.uint64) for _ in range(2))
    sizes = [size // count for size, count in zip(shape, blocks, strict=True)]
    for d, part in enumerate(region):
        along = np.arange(part.start, part.stop, dtype=np.uint64)
        along = along.reshape((-1,) + (1,) * (len(shape) - d - 1))
        size = np.uint64(sizes[d])
        number = number + along // size * np.uint64(prod(blocks[d + 1 :]))
        index = index + along % size * np.uint64(prod(sizes[d + 1 :]))
    return number, index


def global_index(shape: Shape, region: Sequence[slice]) -> Index:
    """Return for each element of a region its linear index in a whole tensor of shape `shape`."""
    index: Index = np.zeros((1,) * len(shape), np.uint64)
    for dimension, part in enumerate(region):
        along = np.arange(part.start, part.stop, dtype=np.uint64)
        along = along * np.uint64(prod(shape[dimension + 1 :]))
        index = index + along.reshape((-1,) + (1,) * (len(shape) - dimension - 1))
    return index


# Initial values of parameters


def _fans(shape: Shape) -> tuple[int, int]:
    """Return the fan in and the fan out of a weight ``[out, in, window...]``."""
    if len(shape) < 2:
        return prod(shape), prod(shape)
    window = prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _spread(seed: int, key: str, index: Index) -> Reals:
    return 2 * uniform(seed, key, index) - 1


def _constant(seed: int, key: str, index: Index) -> Reals:
    return np.ones(index.shape)


Draw = Callable[[int, str, Index], Reals]
# Initializer: the draw, and the factor on it for a shape and the argument.
_INITIALIZERS: dict[str, tuple[Draw, Callable[[Shape, float], float]]] = {
    "zeros": (_constant, lambda shape, value: 0.0),
    "ones": (_constant, lambda shape, value: 1.0),
    "constant": (_constant, lambda shape, value: value),
    "uniform": (_spread, lambda shape, scale: scale),
    "whole": (uniform, lambda shape, bound: bound),
    "normal": (normal, lambda shape, sigma: sigma),
    "truncated_normal": (truncated_normal, lambda shape, sigma: sigma),
    "xavier_uniform": (_spread, lambda shape, gain: gain * (6 / sum(_fans(shape))) ** 0.5),
    "xavier_normal": (normal, lambda shape, gain: gain * (2 / sum(_fans(shape))) ** 0.5),
    "he_uniform": (_spread, lambda shape, gain: gain * (6 / _fans(shape)[0]) ** 0.5),
    "he_normal": (normal, lambda shape, gain: gain * (2 / _fans(shape)[0]) ** 0.5),
    "he_uniform_out": (_spread, lambda shape, gain: gain * (6 / _fans(shape)[1]) ** 0.5),
    "he_normal_out": (normal, lambda shape, gain: gain * (2 / _fans(shape)[1]) ** 0.5),
}
# Default arguments: MindSpore's values.
_ARGUMENTS = {"constant": 0.0, "uniform": 0.07, "normal": 0.01, "truncated_normal": 0.01}
_CALL = re.compile(r"(\w+)(?:\(([^()]*)\))?")
_WITHOUT = " without row "


def _parsed(initializer: str) -> tuple[str, float]:
    match = _CALL.fullmatch(initializer)
    if not match or match[1] not in _INITIALIZERS:
        raise IRError(
            f"no initializer is called `{initializer}`",
            hint=f"use one of {', '.join(_INITIALIZERS)}, with a number where it takes one: "
            "`normal(0.02)`",
        )
    default = _ARGUMENTS.get(match[1], 1.0)
    try:
        return match[1], float(match[2]) if match[2] else default
    except ValueError:
        raise IRError(
            f"the argument of `{initializer}` is not a number", hint="write `normal(0.02)`"
        ) from None


def initial_value(
    initializer: str,
    name: str,
    seed: int,
    shape: Shape,
    region: Sequence[slice],
    dtype: DTypeLike,
) -> Array:
    """Return the initial value of a region of a parameter, independent of other regions.

    Parameters
    ----------
    initializer : str
        ``zeros``, ``ones``, ``constant(value)``, ``uniform(bound)`` in [-bound, bound),
        ``whole(bound)`` for whole numbers from 0 to below the bound,
        ``normal(sigma)``, ``truncated_normal(sigma)`` within two sigma, or ``xavier_uniform``,
        ``xavier_normal``, ``he_uniform``, ``he_normal``, with a gain if it is not one, of a weight
        ``[out, in, window...]``; ``he_uniform_out`` and ``he_normal_out`` are by its outputs.
        Behind it ``without row N`` for zeros there.
    name : str
        Name of the parameter.
    seed : int
        Seed of the whole program.
    shape : tuple of int
        Whole shape of the parameter.
    region : sequence of slice
        The region: a start and a stop for each dimension.
    dtype : data type
        Element type of the result; numbers are drawn in float64 and rounded.

    Raises
    ------
    IRError
        If there is no such initializer.
    """
    index = global_index(shape, region)
    return _initial(initializer, name, seed, shape, index, dtype)


def initial_rows(
    initializer: str, name: str, seed: int, shape: Shape, rows: Array, dtype: DTypeLike
) -> Array:
    """Return the initial values of some rows of a parameter, each with its elements in sequence.

    Parameters
    ----------
    initializer, name, seed, shape, dtype
        As for `initial_value`.
    rows : array of int
        Indices along the first dimension.
    """
    width = prod(shape[1:])
    begins: Index = np.asarray(rows, np.uint64)[:, None]
    index: Index = np.add(begins * np.uint64(width), np.arange(width, dtype=np.uint64))
    return _initial(initializer, name, seed, shape, index, dtype)


def _initial(
    initializer: str, name: str, seed: int, shape: Shape, index: Index, dtype: DTypeLike
) -> Array:
    """Return the initial values of the elements with some linear indices."""
    initializer, _, row = initializer.partition(_WITHOUT)
    kind, argument = _parsed(initializer)
    draw, factor = _INITIALIZERS[kind]
    numbers = draw(seed, name, index.reshape(-1)).reshape(index.shape)
    if row:
        numbers = np.where(index // np.uint64(prod(shape[1:])) == int(row), 0.0, numbers)
    return (numbers * factor(shape, argument)).astype(dtype)
