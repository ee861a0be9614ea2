"""Transformations of pictures."""

from typing import Any

import numpy as np

from shardwright.dataset.files import decoded
from shardwright.dataset.transforms import (
    HWC2CHW,
    CenterCrop,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
    Rescale,
    Resize,
)
from shardwright.ir.values import POSITIVE_INTEGER, check_choice, wrong_value
from shardwright.operators.info import Array


class Decode:
    """Decode a picture from the bytes of its file, to ``[height, width, 3]``."""

    def __call__(self, x: Array) -> Array:
        """Return the picture."""
        return decoded(x)


class SliceMode:
    """What becomes of pictures that patches do not divide: `SlicePatches`."""

    PAD = "pad"
    DROP = "drop"


class SlicePatches:
    """Cut a picture, ``[height, width, channel]`` or without channels, into a grid of patches.

    Parameters
    ----------
    num_height, num_width : int
        Rows and columns of the grid; patches are those of the rows in turn.
    slice_mode : str
        What becomes of a picture that they do not divide: it grows by pixels at the right and the
        bottom, or loses some.
    fill_value : int
        Those pixels.
    """

    def __init__(
        self,
        num_height: int = 1,
        num_width: int = 1,
        slice_mode: str = SliceMode.PAD,
        fill_value: int = 0,
    ) -> None:
        POSITIVE_INTEGER.check("num_height", num_height)
        POSITIVE_INTEGER.check("num_width", num_width)
        check_choice("slice_mode", slice_mode, (SliceMode.PAD, SliceMode.DROP))
        if fill_value not in range(256):
            raise wrong_value("fill_value", fill_value, "an integer from 0 to 255")
        self._grid, self._pads = (num_height, num_width), slice_mode == SliceMode.PAD
        self._fill_value = fill_value

    def __call__(self, x: Array) -> Any:
        """Return the patches, or the picture alone where there is one."""
        counts = zip(x.shape[:2], self._grid, strict=True)
        height, width = (-(-n // k) if self._pads else n // k for n, k in counts)
        rows, columns = self._grid
        more = [max(0, height * rows - x.shape[0]), max(0, width * columns - x.shape[1])]
        pads = [(0, n) for n in (*more, *(0,) * (x.ndim - 2))]
        whole = np.pad(x, pads, constant_values=self._fill_value)
        patches = tuple(
            whole[i * height : (i + 1) * height, j * width : (j + 1) * width]
            for i in range(rows)
            for j in range(columns)
        )
        return patches if len(patches) > 1 else patches[0]


class Inter:
    """How pictures are interpolated."""

    LINEAR = "linear"
    BILINEAR = "linear"
    NEAREST = "nearest"


class Border:
    """How pictures are padded."""

    CONSTANT = "constant"


__all__ = [
    "HWC2CHW",
    "Border",
    "CenterCrop",
    "Decode",
    "Inter",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "Rescale",
    "Resize",
    "SliceMode",
    "SlicePatches",
]
