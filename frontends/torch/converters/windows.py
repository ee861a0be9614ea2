"""Poolings, resizing, and samples of images."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.sampling import grid_sample
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.linear import spread
from shardwright.ir.graph import Value
from shardwright.operators.indexing.scatter import emit_scatter_elements_add
from shardwright.operators.info import Array

# PyTorch's numbers of how samples are made of elements, and of what is outside.
_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _windows(call: Call, x: Value, kernel_size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    rank = int(call.operator.split("pool")[1][0])
    kernel = spread(kernel_size, rank)
    pads = spread(padding, rank)
    return {
        "kernel": kernel,
        "stride": spread(stride, rank) if stride not in (None, []) else kernel,
        "padding": tuple((n, n) for n in pads),
    }


def _batched(call: Call, x: Value) -> Value:
    rank = int(call.operator.split("pool")[1][0])
    return call.reshape(x, (1, *x.type.shape)) if x.type.rank == rank + 1 else x


@converts("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
@converts("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def _max_pool(
    call: Call,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    how = _windows(call, x, kernel_size, stride, padding)
    how["dilation"] = spread(dilation, len(how["kernel"]))
    found = call.emit("max_pool", _batched(call, x), ceil_mode=ceil_mode, **how)
    found = call.reshape(found, call.result.shape)
    return found if len(call.results) == 1 else [found, _places_of_largest(call, x, how)]


def _places_of_largest(call: Call, x: Value, how: dict[str, Any]) -> Value:
    """Return where the largest elements of windows stand, the first ones of equal."""
    shape, rank = call.result.shape, len(how["kernel"])
    table = np.zeros((1, 1), np.int64)
    for size, many, width, step, (pad, _), apart in zip(
        x.type.shape[-rank:],
        shape[-rank:],
        *(how[key] for key in ("kernel", "stride", "padding", "dilation")),
        strict=True,
    ):
        places = np.arange(many)[:, None] * step - pad + np.arange(width) * apart
        inside = (places >= 0) & (places < size)
        first = np.take_along_axis(places, inside.argmax(1)[:, None], 1)
        places = np.where(inside, places, first)  # what is padded is never the largest
        table = table[:, None, :, None] * size + places[None, :, None, :]
        table = table.reshape(table.shape[0] * many, -1)
    outer, (outputs, window) = x.type.shape[:-rank], table.shape
    rows = call.reshape(x, (*outer, prod(x.type.shape[-rank:])))
    rows = call.taken(rows, table.reshape(-1).tolist(), len(outer))
    rows = call.reshape(rows, (*outer, outputs, window))
    place = call.cast(call.emit("argmax", rows, axis=len(outer) + 1), "int64")
    place = call.emit("add", place, call.like(np.arange(outputs) * window, place))
    return call.reshape(
        call.emit("gather", call.constant(table.reshape(-1), "int64"), place, axis=0), shape
    )


@converts("aten.max_unpool2d", "aten.max_unpool3d")
def _unpool(
    call: Call,
    x: Value,
    indices: Value,
    output_size: Any,
    stride: Any = None,
    padding: Any = None,
) -> Value:
    """Write elements to their places; where windows overlap, each has the gradient of its place."""
    outer = x.type.rank - len(output_size)
    lead, inner = x.type.shape[:outer], prod(x.type.shape[outer:])
    flat, places = (call.reshape(one, (*lead, inner)) for one in (x, indices))
    zeros = call.fill(0, x.type.dtype, (*lead, prod(output_size)))
    written = call.emit("scatter_elements", zeros, places, flat, axis=outer)
    total = emit_scatter_elements_add(call.build, zeros, places, flat, outer)
    found = call.emit("with_gradient_of", call.emit("stop_gradient", written), total)
    return call.reshape(found, call.result.shape)


@converts("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def _average_pool(
    call: Call,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    if divisor_override is not None and (ceil_mode or not count_include_pad):
        raise UnsupportedError("`divisor_override` beside `ceil_mode` or `count_include_pad=False`")
    how = _windows(call, x, kernel_size, stride, padding)
    how |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    # Classifiers of EfficientNet have windows far larger than what they average.
    sides = zip(how["kernel"], x.type.shape[-len(how["kernel"]) :], how["padding"], strict=True)
    how["kernel"] = tuple(min(kernel, side + sum(pads)) for kernel, side, pads in sides)
    found = call.emit("average_pool", _batched(call, x), **how)
    if divisor_override is not None:
        found = call.scaled(found, prod(how["kernel"]) / divisor_override)
    return call.reshape(found, call.result.shape)


@converts("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d")
@converts("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")
def _adaptive(call: Call, x: Value, output_size: Any) -> Value:
    rank = int(call.operator.split("pool")[1][0])
    size = spread(output_size, rank)
    space = x.type.shape[-rank:]
    axes = tuple(range(x.type.rank - rank, x.type.rank))
    if all(n == 1 for n in size):
        return call.emit("reduce_mean", x, axis=axes, keep_dims=True)
    if any(n % s for n, s in zip(space, size, strict=True)):  # windows of different sizes
        for axis, n, s in zip(axes, space, size, strict=True):
            x = call.mixed(x, _of_units(F.adaptive_avg_pool1d, n, s), axis)
        return x
    kernel = tuple(n // s for n, s in zip(space, size, strict=True))
    found = call.emit("average_pool", _batched(call, x), kernel=kernel, stride=kernel)
    return call.reshape(found, call.result.shape)


@converts("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def _adaptive_max(call: Call, x: Value, output_size: Any) -> list[Value | None]:
    rank = int(call.operator.split("pool")[1][0])
    size = spread(output_size, rank)
    found = _batched(call, x)
    for d, after in enumerate(size):
        axis, before = found.type.rank - rank + d, found.type.shape[found.type.rank - rank + d]
        ends = [(i * before // after, -(-(i + 1) * before // after)) for i in range(after)]
        single = [1] * rank
        parts = []
        for begin, end in ends:
            single[d] = end - begin
            part = call.part(found, axis, begin, end - begin)
            parts.append(call.emit("max_pool", part, kernel=tuple(single), stride=tuple(single)))
        found = parts[0] if after == 1 else call.emit("concat", *parts, axis=axis)
    return [call.reshape(found, call.result.shape), None]


def _of_units(function: Callable[..., torch.Tensor], before: int, *how: Any) -> Array:
    """Return the matrix ``[before, after]`` of a linear function of one dimension."""
    units = torch.eye(before, dtype=torch.float64)
    array: Array = function(units[None], *how)[0].numpy()
    return array


# Resizing


@converts("aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d")
@converts("aten.upsample_bicubic2d", "aten._upsample_bilinear2d_aa", "aten._upsample_bicubic2d_aa")
@converts("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d")
@converts("aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d")
@converts("aten._upsample_nearest_exact3d")
def _resized(
    call: Call,
    x: Value,
    output_size: Any = None,
    align_corners: bool = False,
    scale_factors: Any = None,
    scales_d: Any = None,
    scales_h: Any = None,
    scales_w: Any = None,
    scales: Any = None,
) -> Value:
    given = scale_factors or [scales_d, scales_h, scales_w, scales]
    factors = _factors(call, x, given)
    if "nearest" in call.operator:
        return _nearest(call, x, factors)
    return _smooth(call, x, factors, align_corners)


def _smooth(call: Call, x: Value, factors: list[float | None], align_corners: bool) -> Value:
    space = tuple(range(2, x.type.rank))
    size = call.result.shape[2:]
    is_plain = "linear" in call.operator and "_aa" not in call.operator
    if is_plain and not any(factors):
        coordinates = "align_corners" if align_corners else "half_pixel"
        return call.emit("resize", x, size=size, mode="linear", coordinates=coordinates)
    name = call.operator.split(".")[1]
    name = name if name.endswith(("2d", "_aa")) else "upsample_bilinear2d"
    function = getattr(torch.ops.aten, name).default

    def resized(units: torch.Tensor, after: int, factor: float | None) -> torch.Tensor:
        columns = units.transpose(1, 2)[None]  # [1, 1, place, unit]: resized as images
        size = [after, columns.shape[3]]
        found: torch.Tensor = function(columns, size, align_corners, factor, None)
        return found[0].transpose(1, 2)

    for axis, after, factor in zip(space, size, factors, strict=True):
        if x.type.shape[axis] != after or factor:
            x = call.mixed(x, _of_units(resized, x.type.shape[axis], after, factor), axis)
    return x


def _nearest(call: Call, x: Value, factors: list[float | None]) -> Value:
    size = call.result.shape[2:]
    is_exact = "exact" in call.operator
    sizes = list(zip(x.type.shape[2:], size, strict=True))
    if not is_exact and not any(factors) and all(not m % n or not n % m for n, m in sizes):
        return call.emit("resize", x, size=size, mode="nearest", coordinates="asymmetric")
    name = "_upsample_nearest_exact1d" if is_exact else "upsample_nearest1d"
    function = getattr(torch.ops.aten, name).default
    for axis, (before, after), factor in zip(range(2, x.type.rank), sizes, factors, strict=True):
        line = torch.arange(before, dtype=torch.float64)[None, None]
        places = function(line, [after], factor)[0, 0].to(torch.int64)
        x = call.taken(x, places.tolist(), axis)
    return x


def _factors(call: Call, x: Value, given: list[float | None]) -> list[float | None]:
    """Return for each dimension the factor that places elements, if not the ratio of sizes."""
    rank = x.type.rank - 2
    factors = [one for one in given if one is not None]
    if len(factors) != rank:
        return [None] * rank
    sizes = zip(x.type.shape[2:], call.result.shape[2:], factors, strict=True)
    return [None if n * factor == m else factor for n, m, factor in sizes]


@converts("aten.pixel_shuffle")
def _pixel_shuffle(call: Call, x: Value, upscale_factor: int) -> Value:
    return call.emit("depth_to_space", x, block=upscale_factor, mode="CRD")


# Samples at positions that are computed


@converts("aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.grid_sampler")
def _grid_sampler(
    call: Call,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    mode, padding = _MODES[interpolation_mode], _PADDINGS[padding_mode]
    return grid_sample(call, x, grid, mode, padding, align_corners, mode != "cubic")
