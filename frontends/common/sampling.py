"""Sampling of images at computed positions: lookups and weighted sums of neighbours."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from shardwright.frontends.common.call import Emits
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.graph import Value

Tap = tuple[Value, Value]  # a position along one dimension, and its weight


def grid_sample(
    call: Emits,
    x: Value,
    grid: Value,
    mode: str,
    padding: str,
    align_corners: bool,
    moves_first: bool = True,
) -> Value:
    """Return images ``[n, channel, *space]`` at coordinates ``[n, *places, dimension]``.

    Parameters
    ----------
    call : Emits
        Emits the operators.
    x, grid : Value
        The images, and coordinates from -1 to 1, those of the last dimension of space first.
    mode : str
        Interpolation: ``nearest``, ``linear`` or ``cubic``.
    padding : str
        What is outside: ``zeros``, ``border`` or ``reflection``.
    align_corners : bool
        Whether -1 and 1 are the centres of the first and the last element, not their edges.
    moves_first : bool
        Whether a position is moved inside before its neighbours are found, not only they.
    """
    if mode not in _TAPS:
        raise UnsupportedError(f"samples of mode `{mode}`")
    space = x.type.shape[2:]
    taps = []
    for d, size in enumerate(space):
        place = _coordinate(call, _last(call, grid, len(space) - 1 - d), size, align_corners)
        if moves_first:
            place = _settled(call, place, size, padding, align_corners)
        taps.append(_TAPS[mode](call, place))

    def settle(position: Value, d: int) -> Value:
        return _settled(call, position, space[d], padding, align_corners)

    return sampled(call, x, taps, settle)


def sampled(
    call: Emits,
    x: Value,
    taps: Sequence[Sequence[Tap]],
    settle: Callable[[Value, int], Value],
    combine: str = "add",
) -> Value:
    """Return ``[n, channel, *places]``: the weighted sum of the neighbours of each position.

    Parameters
    ----------
    call : Emits
        Emits the operators.
    x : Value
        Images ``[n, channel, *space]``.
    taps : sequence of sequence of (Value, Value)
        Positions ``[n, *places]`` and weights of the neighbours, for each dimension.
    settle : callable
        Maps a position to the position that is looked up; outside are zeros.
    combine : str
        Reduction of weighted neighbours: ``add`` or ``maximum``.
    """
    rank = len(taps)
    order = (0, *range(2, rank + 2), 1)
    images = call.transpose(x, order)
    shape = taps[0][0][0].type.shape
    first = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    sample = call.constant(np.broadcast_to(first, shape), "int64")
    total: Value | None = None
    for neighbour in product(*taps):
        positions = [sample]
        weight: Value | None = None
        for d, (position, part) in enumerate(neighbour):
            positions.append(call.cast(settle(position, d), "int64"))
            weight = part if weight is None else call.emit("mul", weight, part)
        assert weight is not None
        index = call.emit("stack", *positions, axis=-1)
        found = call.emit("gather_nd", images, index)
        term = call.emit("mul", found, call.reshape(weight, (*shape, 1)))
        total = term if total is None else call.emit(combine, total, term)
    assert total is not None
    return call.transpose(total, (0, rank + 1, *range(1, rank + 1)))


def _last(call: Emits, grid: Value, place: int) -> Value:
    shape = grid.type.shape
    begin, size = [0] * len(shape), [*shape[:-1], 1]
    begin[-1] = place
    cut = call.emit("slice", grid, begin=tuple(begin), size=tuple(size))
    return call.reshape(cut, shape[:-1])


def _coordinate(call: Emits, g: Value, size: int, align_corners: bool) -> Value:
    """Return the position among `size` elements of a coordinate from -1 to 1."""
    line = call.emit("scale", g, factor=(size - 1 if align_corners else size) / 2)
    return call.emit("add_scalar", line, value=(size - 1) / 2)


def _reflected(call: Emits, place: Value, size: int, align_corners: bool) -> Value:
    """Return a position, reflected at both ends until it is inside."""
    low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return call.emit("zeros_like", place)
    away = call.emit("add_scalar", place, value=-low)
    phase = call.emit("mod", away, call.like(2 * span, place))
    back = call.emit("add_scalar", call.emit("neg", phase), value=2 * span)
    return call.emit("add_scalar", call.emit("minimum", phase, back), value=low)


def _settled(call: Emits, position: Value, size: int, padding: str, align_corners: bool) -> Value:
    """Return a position that is moved inside, unless there are zeros outside."""
    if padding == "zeros":
        return position
    if padding == "reflection":
        position = _reflected(call, position, size, align_corners)
    return call.emit("clip", position, low=0.0, high=float(size - 1), inside=True)


def _nearest(call: Emits, place: Value) -> list[Tap]:
    return [(call.emit("round", place), call.emit("ones_like", place))]


def linear(call: Emits, place: Value) -> list[Tap]:
    """Return the two neighbours of a position."""
    low = call.emit("floor", place)
    ratio = call.emit("sub", place, low)
    rest = call.emit("add_scalar", call.emit("neg", ratio), value=1.0)
    return [(low, rest), (call.emit("add_scalar", low, value=1.0), ratio)]


def _cubic(call: Emits, place: Value) -> list[Tap]:
    """Return the four neighbours of a position, by the cubic of Keys with a = -0.75."""
    low = call.emit("floor", place)
    ratio = call.emit("sub", place, low)
    a = -0.75
    polynomials = (
        ((a, -2 * a, a, 0.0), -1.0),
        ((a + 2, -(a + 3), 0.0, 1.0), 0.0),
        ((-(a + 2), 2 * a + 3, -a, 0.0), 1.0),
        ((-a, a, 0.0, 0.0), 2.0),
    )
    taps = []
    for coefficients, offset in polynomials:
        weight = call.emit("scale", ratio, factor=coefficients[0])
        for coefficient in coefficients[1:-1]:
            weight = call.emit("mul", call.emit("add_scalar", weight, value=coefficient), ratio)
        weight = call.emit("add_scalar", weight, value=coefficients[-1])
        taps.append((call.emit("add_scalar", low, value=offset), weight))
    return taps


_TAPS: dict[str, Callable[[Emits, Value], list[Tap]]] = {
    "nearest": _nearest,
    "linear": linear,
    "cubic": _cubic,
}
