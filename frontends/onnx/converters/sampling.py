"""Sampling of images at positions and in regions that are computed."""

from math import prod

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.sampling import grid_sample, linear, sampled
from shardwright.frontends.onnx.converters.linear import geometry
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value


@converts("GridSample")
def _grid_sample(call: Call) -> Value:
    mode, padding = call.attribute("mode", "linear"), call.attribute("padding_mode", "zeros")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode == "cubic" and padding != "zeros":  # implementations move other positions inside
        raise UnsupportedError(f"mode `cubic` with padding `{padding}` (`zeros` can)")
    align = bool(call.attribute("align_corners", 0))
    return grid_sample(call, call.value(0), call.value(1), mode, padding, align)


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
            places.append(linear(call, call.emit("add", own, call.like(line, own))))
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
        taps.append(linear(call, kept))
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
    usual = "half_pixel" if call.opset >= 16 else "output_half_pixel"
    half = call.attribute("coordinate_transformation_mode", usual) == "half_pixel"
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
