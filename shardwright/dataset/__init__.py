"""Datasets: readers, transformations and batches, under MindSpore's names."""

from shardwright.dataset import transforms
from shardwright.dataset import transforms as vision
from shardwright.dataset.dataset import ArrayDataset, Dataset, GeneratorDataset
from shardwright.dataset.readers import Cifar10Dataset, MnistDataset, digits

__all__ = [
    "ArrayDataset",
    "Cifar10Dataset",
    "Dataset",
    "GeneratorDataset",
    "MnistDataset",
    "digits",
    "transforms",
    "vision",
]
