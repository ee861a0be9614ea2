"""Datasets: readers, what is done to samples, and batches; named as MindSpore names them."""

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
