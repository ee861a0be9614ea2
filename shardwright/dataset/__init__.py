"""Datasets: readers, transformations and batches, under MindSpore's names."""

from shardwright.dataset import transforms
from shardwright.dataset import transforms as vision
from shardwright.dataset.dataset import Dataset
from shardwright.dataset.files import ImageFolderDataset, TextFileDataset
from shardwright.dataset.readers import Cifar10Dataset, MnistDataset, digits
from shardwright.dataset.sources import ArrayDataset, GeneratorDataset

__all__ = [
    "ArrayDataset",
    "Cifar10Dataset",
    "Dataset",
    "GeneratorDataset",
    "ImageFolderDataset",
    "MnistDataset",
    "TextFileDataset",
    "digits",
    "transforms",
    "vision",
]
