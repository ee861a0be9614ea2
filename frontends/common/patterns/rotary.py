"""The pattern of a rotary embedding written with tables of cosines and sines.

Models of transformers turn a tensor as ``x cos + concat(-second half, first half) sin``, with
tables that exporters fold. One operator needs no tables and saves nothing for backward.
"""

from collections.abc import Iterator

import numpy as np

from shardwright.frontends.common.patterns.matches import Matches, attribute_of
from shardwright.ir.graph import Node, Value
from shardwright.ir.types import numpy_dtype
from shardwright.operators.info import Array

_BASES = (10_000.0, 500_000.0, 1_000_000.0)
_ROUNDINGS = 4.0  # of angles: the frequency, its product with the position, cosine and sine


def match_rotary(m: Matches, node: Node) -> Value | None:
    """Match the sum of a tensor times cosines and its turned halves times sines."""
    for first, second in (node.operands, node.operands[::-1]):
        for (name, cos), (turned, sin) in _pairs(m, first, second):
            x = m.value(name)
            halves = _halves(m, turned)
            if halves != name or m.value(node.name).type != x.type:
                continue
            base = _known_base(m, cos, sin, x)
            if base is not None:
                return m.build.emit("rotary_embedding", x, base=base)
    return None


def _pairs(
    m: Matches, first: str, second: str
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield the tensors and tables of two products, in every order."""
    a, b = m.made(first, "mul"), m.made(second, "mul")
    for left in (a.operands, a.operands[::-1]) if a else ():
        for right in (b.operands, b.operands[::-1]) if b else ():
            yield (left[0], left[1]), (right[0], right[1])


def _halves(m: Matches, name: str) -> str | None:
    """Return the tensor of which a value is the negative second half and the first half."""
    joined = m.made(name, "concat")
    if joined is None or len(joined.operands) != 2:
        return None
    negative, first = m.made(joined.operands[0], "neg"), m.made(joined.operands[1], "slice")
    second = m.made(negative.operands[0], "slice") if negative else None
    if first is None or second is None or first.operands != second.operands:
        return None
    shape = m.value(first.operands[0]).type.shape
    half = shape[-1] // 2
    zeros, rest = (0,) * (len(shape) - 1), shape[:-1]
    cuts = [(attribute_of(n, "begin"), attribute_of(n, "size")) for n in (first, second)]
    if attribute_of(joined, "axis") not in (-1, len(shape) - 1) or shape[-1] % 2:
        return None
    expected = [((*zeros, 0), (*rest, half)), ((*zeros, half), (*rest, half))]
    return first.operands[0] if cuts == expected else None


def _table(m: Matches, name: str, x: Value) -> Array | None:
    """Return a table ``[position, feature]`` that is the same for all leading dimensions."""
    known = None if name in m.trained else m.data.get(name)
    shape = x.type.shape
    if known is None or known.shape[-2:] != shape[-2:] or known.size != shape[-1] * shape[-2]:
        return None
    return np.asarray(known.reshape(shape[-2:]), np.float64)


def _known_base(m: Matches, cos: str, sin: str, x: Value) -> float | None:
    """Return the base of two tables, which all layers share."""
    key = (cos, sin, x.type.dtype, x.type.shape[-2:])
    if key not in m.bases:
        m.bases[key] = _base(_table(m, cos, x), _table(m, sin, x), x.type.dtype)
    return m.bases[key]


def _base(cos: Array | None, sin: Array | None, dtype: str) -> float | None:
    """Return the base whose cosines and sines two tables are, up to the rounding of angles."""
    if cos is None or sin is None or len(cos) < 2:
        return None
    positions, features = cos.shape
    exact = numpy_dtype(dtype) == np.float64
    unit = float(np.finfo(np.float64 if exact else np.float32).eps)
    coarse = 0.0 if dtype in ("float64", "float32") else 2.0**-7
    for base in _candidates(cos, sin, features):
        pairs = np.tile(base ** (-2.0 * np.arange(features // 2) / features), 2)
        angles = np.arange(positions)[:, None] * pairs
        allowed = _ROUNDINGS * unit * np.maximum(angles, 1.0) + coarse
        near = (np.abs(np.cos(angles) - cos) <= allowed) & (np.abs(np.sin(angles) - sin) <= allowed)
        if near.all():
            return base
    return None


def _candidates(cos: Array, sin: Array, features: int) -> list[float]:
    """Return bases to try: estimates from the second pair at the second position, rounded."""
    found = list(_BASES)
    frequency = float(np.arctan2(sin[1, 1], cos[1, 1])) if features > 2 else 0.0
    if 0 < frequency < 1:
        estimate = frequency ** (-features / 2)
        found += [float(f"{estimate:.{digits}g}") for digits in range(1, 8)]
    return list(dict.fromkeys(found))
