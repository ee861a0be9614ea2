"""Transformations of pictures."""

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
    "Inter",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "Rescale",
    "Resize",
]
