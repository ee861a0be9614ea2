"""Transformations of columns of a dataset."""

from shardwright.dataset.transforms import TypeCast

__all__ = ["TypeCast"]
