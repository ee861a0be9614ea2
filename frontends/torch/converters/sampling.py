"""Sampling of images at positions that are computed."""

from shardwright.frontends.common.sampling import grid_sample
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value

# PyTorch's numbers.
_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


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
