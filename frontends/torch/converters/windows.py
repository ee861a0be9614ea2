"""Poolings and resizing."""

from typing import Any

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.converters.linear import spread
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value


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
    return found if len(call.results) == 1 else [found, None]


@converts("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def _average_pool(
    call: Call,
    x: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    how = _windows(call, x, kernel_size, stride, padding)
    how |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    found = call.emit("average_pool", _batched(call, x), **how)
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
    if any(n % s for n, s in zip(space, size, strict=True)):
        raise UnsupportedError(f"an adaptive mean of {space} elements to {size}, of other windows,")
    kernel = tuple(n // s for n, s in zip(space, size, strict=True))
    found = call.emit("average_pool", _batched(call, x), kernel=kernel, stride=kernel)
    return call.reshape(found, call.result.shape)


@converts("aten.upsample_bilinear2d", "aten.upsample_linear1d")
def _linear(
    call: Call,
    x: Value,
    output_size: Any = None,
    align_corners: bool = False,
    scale_factors: Any = None,
    scales_h: Any = None,
    scales_w: Any = None,
    scales: Any = None,
) -> Value:
    rank = x.type.rank - 2
    size = call.result.shape[-rank:]
    coordinates = "align_corners" if align_corners else "half_pixel"
    return call.emit("resize", x, size=size, mode="linear", coordinates=coordinates)


@converts("aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d")
def _nearest(
    call: Call,
    x: Value,
    output_size: Any = None,
    scale_factors: Any = None,
    scales_d: Any = None,
    scales_h: Any = None,
    scales_w: Any = None,
    scales: Any = None,
) -> Value:
    rank = x.type.rank - 2
    size = call.result.shape[-rank:]
    return call.emit("resize", x, size=size, mode="nearest", coordinates="asymmetric")


@converts("aten.pixel_shuffle")
def _pixel_shuffle(call: Call, x: Value, upscale_factor: int) -> Value:
    return call.emit("depth_to_space", x, block=upscale_factor, mode="CRD")
