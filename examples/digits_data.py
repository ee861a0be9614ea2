"""The data of the examples: MNIST in ``DATA_PATH``, else scikit-learn's digits."""

import os

import shardwright.dataset as ds
from shardwright import int32


def create_dataset(batch_size):
    path = os.getenv("DATA_PATH")
    if path is None:
        return ds.digits().shuffle(seed=1).batch(batch_size)
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = ds.MnistDataset(path)
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(ds.transforms.TypeCast(int32), "label")
    return dataset.batch(batch_size)
