"""Datasets: readers, transformations and batches."""

from shardwright.mindspore.dataset import transforms, vision
from shardwright.mindspore.dataset.datasets import (
    Cifar10Dataset,
    Dataset,
    GeneratorDataset,
    ImageFolderDataset,
    MnistDataset,
    NumpySlicesDataset,
    TextFileDataset,
    config,
)

__all__ = [
    "Cifar10Dataset",
    "Dataset",
    "GeneratorDataset",
    "ImageFolderDataset",
    "MnistDataset",
    "NumpySlicesDataset",
    "TextFileDataset",
    "config",
    "transforms",
    "vision",
]
