"""Datasets: readers, transformations and batches."""

from shardwright.dataset import ArrayDataset, Cifar10Dataset, GeneratorDataset, MnistDataset
from shardwright.mindspore.dataset import transforms, vision

__all__ = [
    "ArrayDataset",
    "Cifar10Dataset",
    "GeneratorDataset",
    "MnistDataset",
    "transforms",
    "vision",
]
