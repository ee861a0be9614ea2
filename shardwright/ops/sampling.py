"""Images looked up between their pixels: along a grid, in regions, in boxes."""

from itertools import product

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ops.composite import Composition
from shardwright.tensor import Tensor, apply


def _one_of(value: str, *known: str) -> str:
    if value not in known:
        raise ModelError(f"images are sampled by one of {known}, not by `{value}`")
    return value


def _taps(place: Tensor, mode: str) -> list[tuple[Tensor, Tensor | None]]:
    """Return the neighbouring pixels of positions along one dimension, and their weights."""
    if mode == "nearest":  # of two that are as near the even one
        return [(apply("round", place), None)]
    if mode == "nearest or above":
        return [(apply("floor", place + 0.5), None)]
    first = apply("floor", place)
    after = place - apply("stop_gradient", first)
    return [(first, -after + 1.0), (first + 1.0, after)]


def _sampled(images: Tensor, sample: Tensor, y: Tensor, x: Tensor, mode: str) -> Tensor:
    """Return ``[*places, c]`` of images ``[n, h, w, c]``; pixels outside of them are zero."""
    shape = x.shape
    total: Tensor | None = None
    for (row, by_row), (column, by_column) in product(_taps(y, mode), _taps(x, mode)):
        places = [sample, apply("cast", row, dtype="int64"), apply("cast", column, dtype="int64")]
        term = apply("gather_nd", images, apply("stack", *places, axis=-1))
        if by_row is not None and by_column is not None:
            term = term * (by_row * by_column).reshape((*shape, 1))
        total = term if total is None else total + term
    assert total is not None
    return total


def _wide(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return apply("broadcast_to", x, shape=shape)


def _within(place: Tensor, low: float, high: float) -> Tensor:
    return apply("logical_and", place >= low, -place >= -high)


class GridSampler2D(Composition):
    """Images ``[n, c, h, w]`` at places ``[n, *, *, 2]`` of x and y, from -1 to 1 across.

    Parameters
    ----------
    interpolation_mode : str
        ``bilinear`` or ``nearest``.
    padding_mode : str
        Padding of positions outside: ``zeros``, or ``border``.
    align_corners : bool
        Whether -1 and 1 are the middles of the outermost pixels, or their outer edges.
    """

    def __init__(
        self,
        interpolation_mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
    ) -> None:
        self.mode = _one_of(interpolation_mode, "bilinear", "nearest")
        self.padding, self.align = _one_of(padding_mode, "zeros", "border"), align_corners

    def compose(self, input_x: Tensor, grid: Tensor) -> Tensor:
        """Look up, ``[n, c, *, *]``."""
        samples, _, height, width = input_x.shape
        shape = grid.shape[:-1]
        y, x = self.place(grid[..., 1], height), self.place(grid[..., 0], width)
        first = Tensor(np.arange(samples).reshape(-1, *(1,) * (len(shape) - 1)))
        images = apply("transpose", input_x, permutation=(0, 2, 3, 1))
        pixels = _sampled(images, _wide(first, shape), y, x, self.mode)
        return apply("transpose", pixels, permutation=(0, 3, 1, 2))

    def place(self, g: Tensor, size: int) -> Tensor:
        """Return which pixel a place from -1 to 1 is."""
        place = (g + 1.0) * ((size - 1) / 2) if self.align else (g + 1.0) * (size / 2) - 0.5
        return apply("clip", place, low=0.0, high=size - 1.0) if self.padding == "border" else place


class ROIAlign(Composition):
    """Means over the bins of regions ``[k, 5]``: an image, left, upper, right and lower.

    Parameters
    ----------
    pooled_height, pooled_width : int
        Bins of each region.
    spatial_scale : float
        Scale from the regions to the images.
    sample_num : int
        Places along each side of a bin whose mean it is.
    roi_end_mode : int
        1 if the last pixel belongs to a region; 0 if not, and regions have one pixel at least.
    """

    def __init__(
        self,
        pooled_height: int,
        pooled_width: int,
        spatial_scale: float,
        sample_num: int = 2,
        roi_end_mode: int = 1,
    ) -> None:
        if sample_num < 1 or roi_end_mode not in (0, 1):
            raise ModelError(
                f"a bin has {sample_num} samples and the mode is {roi_end_mode}; at least 1, and "
                "0 or 1, are possible"
            )
        self.bins, self.scale = (pooled_height, pooled_width), spatial_scale
        self.samples, self.end = sample_num, roi_end_mode

    def compose(self, features: Tensor, rois: Tensor) -> Tensor:
        """Pool images ``[n, c, h, w]`` to ``[k, c, pooled_height, pooled_width]``."""
        regions, (high, wide), times = rois.shape[0], self.bins, self.samples
        shape = (regions, high * times, wide * times)
        y, inside_y = self.places(rois[:, 2], rois[:, 4], high, features.shape[2])
        x, inside_x = self.places(rois[:, 1], rois[:, 3], wide, features.shape[3])
        y, inside_y = (apply("expand_dims", t, axis=2) for t in (y, inside_y))
        x, inside_x = (apply("expand_dims", t, axis=1) for t in (x, inside_x))
        sample = apply("cast", rois[:, 0], dtype="int64").reshape((regions, 1, 1))
        images = apply("transpose", features, permutation=(0, 2, 3, 1))
        places = _wide(y, shape), _wide(x, shape)
        pixels = _sampled(images, _wide(sample, shape), *places, "bilinear")
        inside = apply("expand_dims", apply("logical_and", inside_y, inside_x), axis=-1)
        pixels = apply("mask", pixels, inside)
        means = pixels.reshape((regions, high, times, wide, times, -1)).mean((2, 4))
        return apply("transpose", means, permutation=(0, 3, 1, 2))

    def places(self, begin: Tensor, end: Tensor, bins: int, size: int) -> tuple[Tensor, Tensor]:
        """Return ``[k, place]`` along one side, within the image, and whether they are near it."""
        first, last = begin * self.scale, (end + float(self.end)) * self.scale
        extent = last - first
        if not self.end:
            extent = apply("maximum", extent, extent * 0.0 + 1.0)
        count = bins * self.samples
        steps = Tensor(((np.arange(count) + 0.5) / count)[None].astype(np.float32))
        steps = apply("cast", steps, dtype=begin.dtype)
        column = (-1, 1)
        place = first.reshape(column) + extent.reshape(column) * steps
        near = _within(place, -1.0, float(size))
        return apply("clip", place, low=0.0, high=size - 1.0), near


class CropAndResize(Composition):
    """Boxes ``[k, 4]`` of images ``[n, h, w, c]``, each brought to one size.

    A box is upper, left, lower and right, from 0 to 1 across the image.

    Parameters
    ----------
    method : str
        ``bilinear`` or ``nearest``.
    extrapolation_value : float
        Value of positions outside.
    """

    notation = "n h w c, k b^, k -> k c"

    def __init__(self, method: str = "bilinear", extrapolation_value: float = 0.0) -> None:
        nearest = _one_of(method, "bilinear", "nearest") == "nearest"
        self.mode = "nearest or above" if nearest else method
        self.outside = extrapolation_value

    def compose(
        self, x: Tensor, boxes: Tensor, box_indices: Tensor, crop_size: tuple[int, int]
    ) -> Tensor:
        """Cut the boxes out of the images that `box_indices` tells, ``[k, *crop_size, c]``."""
        count, (high, wide) = boxes.shape[0], crop_size
        shape = (count, high, wide)
        y = self.places(boxes[:, 0], boxes[:, 2], high, x.shape[1])
        across = self.places(boxes[:, 1], boxes[:, 3], wide, x.shape[2])
        y, across = apply("expand_dims", y, axis=2), apply("expand_dims", across, axis=1)
        inside = [_within(p, 0.0, x.shape[d] - 1.0) for d, p in ((1, y), (2, across))]
        inside_box = apply("expand_dims", apply("logical_and", *inside), axis=-1)
        sample = apply("cast", box_indices, dtype="int64").reshape((count, 1, 1))
        places = _wide(y, shape), _wide(across, shape)
        pixels = apply("mask", _sampled(x, _wide(sample, shape), *places, self.mode), inside_box)
        if not self.outside:
            return pixels
        beyond = apply("cast", apply("logical_not", inside_box), dtype=x.dtype)
        return pixels + beyond * self.outside

    def places(self, begin: Tensor, end: Tensor, count: int, size: int) -> Tensor:
        """Return ``[k, place]`` along one side; the middle where only one is wanted."""
        share = np.arange(count) / (count - 1) if count > 1 else np.array([0.5])
        steps = apply("cast", Tensor(share[None].astype(np.float32)), dtype=begin.dtype)
        first, extent = begin.reshape((-1, 1)), (end - begin).reshape((-1, 1))
        return first * (size - 1.0) + extent * (size - 1.0) * steps
