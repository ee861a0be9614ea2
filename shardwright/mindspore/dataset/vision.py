"""Transformations of pictures."""

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
from shardwright.operators.info import Array


class Decode:
    """Decode a picture from the bytes of its file, to ``[height, width, 3]``."""

    def __call__(self, x: Array) -> Array:
        """Return the picture."""
        return decoded(x)


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
]
