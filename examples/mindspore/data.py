"""The data of these examples: scikit-learn's digits, in the files of MNIST and of CIFAR-10.

The folder is DATA_PATH, or a temporary one that is filled with the digits.
"""

import os
import struct
import tempfile
from pathlib import Path

import numpy as np

from shardwright.dataset import digits

SAMPLES = int(os.environ.get("SAMPLES", "1536"))


def _digits():
    columns = digits().columns
    images = (columns["image"][:SAMPLES] * 255).astype(np.uint8).reshape(-1, 28, 28)
    return images, columns["label"][:SAMPLES].astype(np.uint8)


def mnist():
    """Return a folder with the files of MNIST."""
    if "DATA_PATH" in os.environ:
        return os.environ["DATA_PATH"]
    folder = Path(tempfile.mkdtemp(prefix="mnist-"))
    images, labels = _digits()
    head = struct.pack(">4i", 2051, len(images), 28, 28)
    (folder / "train-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">2i", 2049, len(labels))
    (folder / "train-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return str(folder)


def cifar():
    """Return a folder with the files of CIFAR-10, the digits in three colours."""
    if "DATA_PATH" in os.environ:
        return os.environ["DATA_PATH"]
    folder = Path(tempfile.mkdtemp(prefix="cifar-"))
    images, labels = _digits()
    coloured = np.pad(np.repeat(images[:, None], 3, 1), ((0, 0), (0, 0), (2, 2), (2, 2)))
    records = np.concatenate([labels[:, None], coloured.reshape(len(labels), -1)], 1)
    (folder / "data_batch_1.bin").write_bytes(records.tobytes())
    return str(folder)
