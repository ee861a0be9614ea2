"""Transformations of pictures."""

from shardwright.dataset.transforms import HWC2CHW, Normalize, Rescale

__all__ = ["HWC2CHW", "Normalize", "Rescale"]
