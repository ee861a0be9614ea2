"""Sampling of images at computed positions: lookups and weighted sums of neighbours."""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.onnx.call import Call
from shardwright.frontends.onnx.converters.linear import geometry
from shardwright.frontends.onnx.table import converts
from shardwright.ir.graph import Value

Tap = tuple[Value, Value]  # a position along one dimension, and its weight


@converts("GridSample")
def _grid_sample(call: Call) -> Value:
    x, grid = call.value(0), call.value(1)
    rank = x.type.rank - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        call.attribute("mode", "linear"), call.attribute("mode", "linear")
    )
    taps = []
    for d in range(rank):
        size = x.type.shape[2 + d]
        place = _coordinate(call, _last(call, grid, rank - 1 - d), size)
        taps.append(_TAPS[mode](call, place, size))
    return sampled(call, x, taps, lambda position, d: _settled(call, position, x.type.shape[2 + d]))


def sampled(
    call: Call,
    x: Value,
    taps: Sequence[Sequence[Tap]],
    settle: Callable[[Value, int], Value],
    combine: str = "add",
) -> Value:
    """Return ``[n, channel, *places]``: the weighted sum of the neighbours of each position.

    Parameters
    ----------
    call : Call
        The node.
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


def _last(call: Call, grid: Value, place: int) -> Value:
    shape = grid.type.shape
    begin, size = [0] * len(shape), [*shape[:-1], 1]
    begin[-1] = place
    cut = call.emit("slice", grid, begin=tuple(begin), size=tuple(size))
    return call.reshape(cut, shape[:-1])


def _coordinate(call: Call, g: Value, size: int) -> Value:
    """Return the position among `size` elements of a coordinate from -1 to 1."""
    if call.attribute("align_corners", 0):
        half = (size - 1) / 2
        place = call.emit("add_scalar", call.emit("scale", g, factor=half), value=half)
    else:
        line = call.emit("scale", g, factor=size / 2)
        place = call.emit("add_scalar", line, value=(size - 1) / 2)
    padding = call.attribute("padding_mode", "zeros")
    if padding == "border":
        return call.emit("clip", place, low=0.0, high=float(size - 1))
    return _reflected(call, place, size) if padding == "reflection" else place


def _reflected(call: Call, place: Value, size: int) -> Value:
    """Return a position, reflected at both ends until it is inside."""
    low, high = (0.0, size - 1.0) if call.attribute("align_corners", 0) else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return call.emit("zeros_like", place)
    away = call.emit("add_scalar", place, value=-low)
    phase = call.emit("mod", away, call.like(2 * span, place))
    back = call.emit("add_scalar", call.emit("neg", phase), value=2 * span)
    return call.emit("add_scalar", call.emit("minimum", phase, back), value=low)


def _settled(call: Call, position: Value, size: int) -> Value:
    """Return the position of a neighbour, which may be outside."""
    padding = call.attribute("padding_mode", "zeros")
    if padding == "reflection":
        position = _reflected(call, position, size)
    if padding == "zeros":
        return position
    return call.emit("clip", position, low=0.0, high=float(size - 1))


def _nearest(call: Call, place: Value, size: int) -> list[Tap]:
    return [(call.emit("round", place), call.emit("ones_like", place))]


def linear(call: Call, place: Value, size: int) -> list[Tap]:
    """Return the two neighbours of a position."""
    low = call.emit("floor", place)
    ratio = call.emit("sub", place, low)
    rest = call.emit("add_scalar", call.emit("neg", ratio), value=1.0)
    return [(low, rest), (call.emit("add_scalar", low, value=1.0), ratio)]


def _cubic(call: Call, place: Value, size: int) -> list[Tap]:
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


def _unknown(call: Call, place: Value, size: int) -> list[Tap]:
    raise UnsupportedError(f"samples of mode `{call.attribute('mode')}`")


_TAPS: dict[str, Callable[[Call, Value, int], list[Tap]]] = {
    "nearest": _nearest,
    "linear": linear,
    "cubic": _cubic,
}


@converts("DeformConv")
def _deformed(call: Call) -> Value:
    """Sample at the moved position of every tap, and multiply by the weights."""
    x, w, offset = (call.value(i) for i in range(3))
    kernel, rank = w.type.shape[2:], x.type.rank - 2
    how = geometry(call, kernel, x.type.shape[2:])
    groups, parts = call.attribute("group", 1), call.attribute("offset_group", 1)
    samples, channels = x.type.shape[:2]
    count = offset.type.shape[2:]
    taps = list(np.ndindex(*kernel))
    # [sample part, tap, dimension, *count]: each part of the channels is moved by itself.
    moved = call.reshape(offset, (samples * parts, len(taps), rank, *count))
    images = call.reshape(x, (samples * parts, channels // parts, *x.type.shape[2:]))
    mask = None
    if call.has(4):
        mask = call.reshape(call.value(4), (samples * parts, len(taps), *count))
    found = []
    for number, tap in enumerate(taps):
        places = []
        for d in range(rank):
            line = np.arange(count[d]) * how["stride"][d] - how["padding"][d][0]
            line = (line + tap[d] * how["dilation"][d]).reshape(-1, *(1,) * (rank - 1 - d))
            own = _component(call, moved, number, d)
            places.append(linear(call, call.emit("add", own, call.like(line, own)), 0))
        made = sampled(call, images, places, lambda position, d: position)
        if mask is not None:
            weight = _component(call, mask, number)
            made = call.emit("mul", made, call.reshape(weight, (samples * parts, 1, *count)))
        found.append(made)
    columns = call.emit("stack", *found, axis=2)  # [sample part, channel, tap, *count]
    flat = call.reshape(columns, (samples, groups, -1, prod(count)))
    weight = call.reshape(w, (1, groups, w.type.shape[0] // groups, -1))
    y = call.reshape(call.emit("matmul", weight, flat), (samples, w.type.shape[0], *count))
    return call.emit("bias_add", y, call.value(3), axis=1) if call.has(3) else y


def _component(call: Call, x: Value, *places: int) -> Value:
    """Return the component at an index of the dimensions after the first."""
    shape = x.type.shape
    begin = (0, *places, *(0,) * (len(shape) - 1 - len(places)))
    size = (shape[0], *(1,) * len(places), *shape[1 + len(places) :])
    cut = call.emit("slice", x, begin=begin, size=size)
    return call.reshape(cut, (shape[0], *shape[1 + len(places) :]))


@converts("RoiAlign")
def _roi_align(call: Call) -> Value:
    x, rois = call.value(0), call.value(1)
    size = (call.attribute("output_height", 1), call.attribute("output_width", 1))
    ratio = call.attribute("sampling_ratio", 0)
    if ratio < 1:
        raise UnsupportedError("regions whose number of samples depends on their size")
    count = rois.type.shape[0]
    images = call.emit("gather", x, call.cast(call.value(2), "int64"), axis=0)
    sides = []
    for d, (first, n) in enumerate(((1, size[0]), (0, size[1]))):
        place = _roi_places(call, rois, first, n, ratio)  # [region, n ratio]
        shape = (count, n * ratio, 1) if d == 0 else (count, 1, n * ratio)
        whole = (count, size[0] * ratio, size[1] * ratio)
        sides.append(call.emit("broadcast_to", call.reshape(place, shape), shape=whole))
    taps, inside = [], []
    for d, place in enumerate(sides):
        high = float(x.type.shape[2 + d])
        within = call.emit(
            "logical_and",
            call.emit("greater_equal", place, call.like(-1.0, place)),
            call.emit("less_equal", place, call.like(high, place)),
        )
        inside.append(within)
        kept = call.emit("clip", place, low=0.0, high=high - 1)
        taps.append(linear(call, kept, x.type.shape[2 + d]))
    greatest = call.attribute("mode", "avg") == "max"

    def kept_inside(position: Value, d: int) -> Value:
        return call.emit("clip", position, low=0.0, high=x.type.shape[2 + d] - 1.0)

    combine = "maximum" if greatest else "add"
    found = sampled(call, images, taps, kept_inside, combine)
    both = call.emit("logical_and", *inside)
    found = call.emit("mask", found, call.reshape(both, (count, 1, *both.type.shape[1:])))
    channels = x.type.shape[1]
    found = call.reshape(found, (count, channels, size[0], ratio, size[1], ratio))
    return call.emit("reduce_max" if greatest else "reduce_mean", found, axis=(3, 5))


def _roi_places(call: Call, rois: Value, first: int, n: int, ratio: int) -> Value:
    """Return the positions of the samples of each region along one dimension."""
    half = call.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale = float(call.attribute("spatial_scale", 1.0))
    ends = []
    for column in (first, first + 2):
        end = call.emit("slice", rois, begin=(0, column), size=(rois.type.shape[0], 1))
        end = call.emit("scale", end, factor=scale)
        ends.append(call.emit("add_scalar", end, value=-0.5) if half else end)
    length = call.emit("sub", ends[1], ends[0])
    if not half:
        length = call.emit("maximum", length, call.like(1.0, length))
    steps = (np.arange(n * ratio) + 0.5) / (n * ratio)
    return call.emit("add", ends[0], call.emit("mul", length, call.like(steps[None, :], length)))
