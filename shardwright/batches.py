"""Training batches: the user's data, or built-in data that fits the inputs of a model.

Without the user's data, a classifier of images trains on handwritten digits (of scikit-learn), a
language model on the bytes of Python's manual, which comes with Python, and any other model on a
few random batches.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from shardwright.compiler.plans.document import InputDocument
from shardwright.dataset import ArrayDataset, Cifar10Dataset, MnistDataset, digits
from shardwright.ir.errors import ExecutionError, PackageError
from shardwright.ir.files.reading import read_bytes
from shardwright.operators.info import Array
from shardwright.runtime.agreement import checksum

_FIXED_BATCHES = 4  # of random samples
# Bytes of a text to train on: each is a token of 4 bytes, so 16 GiB of memory. Half would refuse
# texts that a process still learns from; twice as many are more than most hosts hold.
_MOST_TEXT = 2**32


@dataclass(frozen=True)
class Samples:
    """Samples to draw batches from.

    Parameters
    ----------
    description : str
        What the samples are, for messages.
    arrays : mapping of str to array
        All samples of each input.
    batch : int
        Samples in a batch.
    """

    description: str
    arrays: Mapping[str, Array]
    batch: int

    @property
    def per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return max(1, len(next(iter(self.arrays.values()))) // self.batch)

    @cached_property
    def digest(self) -> str:
        """Number and sum of the samples, by which a resumed run knows them again."""
        arrays = [self.arrays[name] for name in sorted(self.arrays)]
        return f"{len(arrays[0])} samples, sum {checksum(arrays):08x}, batches of {self.batch}"

    def batches(self, count: int, seed: int = 0, begin: int = 0) -> Iterator[dict[str, Array]]:
        """Yield batches from number `begin` on; every epoch shuffles the samples."""
        random = np.random.default_rng(seed)
        size = len(next(iter(self.arrays.values())))
        order = np.zeros(0, np.int64)
        for number in range(begin + count):
            while len(order) < self.batch:
                order = np.concatenate([order, random.permutation(size)])
            chosen, order = order[: self.batch], order[self.batch :]
            if number < begin:
                continue
            yield {name: array[chosen] for name, array in self.arrays.items()}


def samples_for(
    inputs: Sequence[InputDocument], data: Path | None = None, seed: int = 0
) -> Samples:
    """Return samples that fit the inputs of a model.

    Parameters
    ----------
    inputs : sequence of InputDocument
        The inputs of the model.
    data : Path, optional
        For images a folder of MNIST's files or of CIFAR-10's, for tokens a file of text.
    seed : int
        Seed of random samples.

    Raises
    ------
    ExecutionError
        If the data cannot be read, or does not fit.
    """
    if _takes_images(inputs):
        images = _images(data)
        if images is not None:
            return _image_samples(inputs, *images)
    elif _takes_tokens(inputs):
        return _token_samples(inputs, data)
    if data is not None:
        names = ", ".join(f"{item.name}: {item.type}" for item in inputs)
        raise ExecutionError(
            f"the model takes {names}, which no data can be read for", str(data), "leave it out"
        )
    return _random_samples(inputs, seed)


# Images


def _takes_images(inputs: Sequence[InputDocument]) -> bool:
    if len(inputs) != 2 or inputs[1].high is None or inputs[1].high < 10:
        return False
    images, labels = inputs[0].tensor, inputs[1].tensor
    side = _side(images.shape)
    return images.is_float and labels.rank == 1 and side is not None and side >= 8


def _side(shape: tuple[int, ...]) -> int | None:
    """Return the side of the square images of a batch; None if they are not square."""
    if len(shape) == 4:
        return shape[2] if shape[2] == shape[3] else None
    if len(shape) != 2:
        return None
    side = math.isqrt(shape[1])
    return side if side * side == shape[1] else None


def _images(data: Path | None) -> tuple[str, ArrayDataset] | None:
    """Return a description, and images with labels; None without scikit-learn."""
    if data is not None:
        coloured = any(data.glob("data_batch_*.bin"))
        return f"images in {data}", Cifar10Dataset(data) if coloured else MnistDataset(data)
    try:
        dataset = digits()
        count = len(dataset.columns["label"])
        return f"{count:,} handwritten digits of scikit-learn, enlarged from 8x8", dataset
    except PackageError:
        return None


def _image_samples(
    inputs: Sequence[InputDocument], description: str, dataset: ArrayDataset
) -> Samples:
    kind, side = inputs[0].tensor, _side(inputs[0].tensor.shape)
    assert side is not None
    channels = kind.shape[1] if kind.rank == 4 else 1
    images = _fitted(dataset.columns["image"], side, channels)
    arrays = {
        inputs[0].name: images.reshape(-1, *kind.shape[1:]),
        inputs[1].name: dataset.columns["label"].astype(inputs[1].tensor.dtype),
    }
    return Samples(description, arrays, kind.shape[0])


def _fitted(images: Array, side: int, channels: int) -> Array:
    """Return images as ``[n, channel, side, side]``, from 0 to 1.

    The nearest point stands for each; grey images get equal channels, and where one channel is
    wanted it is the mean.
    """
    if images.ndim == 2:  # rows of square images
        size = math.isqrt(images.shape[1])
        images = images.reshape(-1, size, size, 1)
    nearest = np.arange(side) * images.shape[1] // side
    chosen = images[:, nearest][:, :, nearest].transpose(0, 3, 1, 2)
    fitted = chosen.astype(np.float32)
    if images.dtype == np.uint8:
        fitted /= 255
    if fitted.shape[1] != channels:
        fitted = np.repeat(fitted.mean(axis=1, keepdims=True), channels, axis=1)
    return fitted


# Tokens


def _takes_tokens(inputs: Sequence[InputDocument]) -> bool:
    if len(inputs) != 2:
        return False
    tokens, labels = inputs[0].tensor, inputs[1].tensor
    return tokens == labels and tokens.rank == 2 and not tokens.is_float


def _token_samples(inputs: Sequence[InputDocument], data: Path | None) -> Samples:
    """Cut a text into sequences; the labels are the tokens one further."""
    batch, length = inputs[0].tensor.shape
    text = _text(data)
    count = (len(text) - 1) // length
    if not count:
        raise ExecutionError(f"the text has {len(text)} bytes, a sequence takes {length + 1}")
    high = min(item.high or 256 for item in inputs)  # the values of a byte
    tokens = np.frombuffer(text, np.uint8).astype(inputs[0].tensor.dtype) % high
    arrays = {
        item.name: tokens[shift : shift + count * length].reshape(count, length)
        for shift, item in enumerate(inputs)
    }
    name = f"bytes of {data}" if data else "bytes of Python's manual"
    return Samples(name, arrays, batch)


def _text(data: Path | None) -> bytes:
    if data is None:
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        return read_bytes(data, _MOST_TEXT)
    except OSError as error:
        reason = (error.strerror or "unknown").lower()
        raise ExecutionError(f"the text cannot be read: {reason}", str(data)) from error


# Anything else


def _random_samples(inputs: Sequence[InputDocument], seed: int) -> Samples:
    random = np.random.default_rng(seed)
    batch = inputs[0].tensor.shape[0] if inputs and inputs[0].tensor.rank else 1
    arrays: dict[str, Array] = {}
    for item in inputs:
        kind = item.tensor
        shape = (_FIXED_BATCHES * kind.shape[0], *kind.shape[1:])
        if kind.is_float:
            arrays[item.name] = random.standard_normal(shape, "float32")
        else:
            arrays[item.name] = random.integers(0, item.high or 2, shape).astype(kind.dtype)
    return Samples("random samples", arrays, batch)
