"""Transformations of single arrays of a dataset; `vision` and `transforms` in MindSpore."""

from collections.abc import Sequence

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.types import numpy_dtype
from shardwright.ir.values import (
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    check_choice,
    wrong_value,
)
from shardwright.operators.info import Array


class RandomOperation:
    """An operation that draws random numbers, which the dataset gives it for every sample."""

    def draw(self, x: Array, random: np.random.Generator) -> Array:
        """Return the transformed array."""
        raise NotImplementedError

    def __call__(self, x: Array) -> Array:
        """Return the transformed array, with numbers that nothing seeds."""
        return self.draw(x, np.random.default_rng())


class Rescale:
    """Multiply and add: ``x * rescale + shift``."""

    def __init__(self, rescale: float, shift: float) -> None:
        self.rescale = rescale
        self.shift = shift

    def __call__(self, x: Array) -> Array:
        """Return the array in its new scale, as float32."""
        return (x * self.rescale + self.shift).astype(np.float32)


class Normalize:
    """Subtract the mean and divide by the deviation of each channel, last or first."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], is_hwc: bool = True) -> None:
        shape = (-1,) if is_hwc else (-1, 1, 1)
        self.mean = np.asarray(mean, np.float32).reshape(shape)
        self.std = np.asarray(std, np.float32).reshape(shape)

    def __call__(self, x: Array) -> Array:
        """Return the normalized array, as float32."""
        return ((x - self.mean) / self.std).astype(np.float32)


class HWC2CHW:
    """Put the channel first: ``[height, width, channel]`` to ``[channel, height, width]``."""

    def __call__(self, x: Array) -> Array:
        """Return the array with its channel first."""
        return np.transpose(x, (2, 0, 1))


class RandomCrop(RandomOperation):
    """Cut a window of a picture ``[height, width, ...]`` at a random place.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the window.
    padding : int or sequence of int, optional
        What is put around the picture first: on all sides, on left and right and on top and bottom,
        or on left, top, right and bottom.
    pad_if_needed : bool
        Whether a picture that is smaller than the window is padded.
    fill_value : int
        The padding.
    padding_mode : str
        ``constant``.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill_value: int = 0,
        padding_mode: str = "constant",
    ) -> None:
        check_choice("padding_mode", padding_mode, ("constant",))
        self.size = _two("size", size)
        self.padding = _sides(padding)
        self.pad_if_needed, self.fill_value = pad_if_needed, fill_value

    def draw(self, x: Array, random: np.random.Generator) -> Array:
        """Return the window.

        Raises
        ------
        ModelError
            If the picture is smaller.
        """
        left, top, right, bottom = self.padding
        around = [(top, bottom), (left, right), *[(0, 0)] * (x.ndim - 2)]
        if self.pad_if_needed:
            for i, size in enumerate(self.size):
                missing = max(0, size - x.shape[i] - sum(around[i]))
                around[i] = (around[i][0] + missing, around[i][1] + missing)
        x = np.pad(x, around, constant_values=self.fill_value)
        (height, width), (high, wide) = self.size, x.shape[:2]
        if height > high or width > wide:
            raise ModelError(
                f"a window of {height} x {width} is cut out of a picture of {high} x {wide}",
                hint="pad it: `pad_if_needed=True`",
            )
        i = int(random.integers(high - height + 1))
        j = int(random.integers(wide - width + 1))
        return x[i : i + height, j : j + width]


class _RandomFlip(RandomOperation):
    def __init__(self, axis: int, prob: float) -> None:
        if prob not in NOT_NEGATIVE or prob > 1:
            raise wrong_value("prob", prob, "a number from 0 to 1")
        self._axis, self.prob = axis, prob

    def draw(self, x: Array, random: np.random.Generator) -> Array:
        """Return the picture, or its mirror image."""
        return np.flip(x, self._axis) if random.random() < self.prob else x


class RandomHorizontalFlip(_RandomFlip):
    """Exchange left and right, with some probability."""

    def __init__(self, prob: float = 0.5) -> None:
        super().__init__(1, prob)


class RandomVerticalFlip(_RandomFlip):
    """Exchange top and bottom, with some probability."""

    def __init__(self, prob: float = 0.5) -> None:
        super().__init__(0, prob)


class CenterCrop:
    """Cut the middle of a picture ``[height, width, ...]``; a smaller one has zeros around it."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _two("size", size)

    def __call__(self, x: Array) -> Array:
        """Return the middle."""
        missing = [max(0, size - had) for had, size in zip(x.shape, self.size, strict=False)]
        if any(missing):
            around = [(n - n // 2, n // 2) for n in missing]
            x = np.pad(x, [*around, *[(0, 0)] * (x.ndim - 2)])
        (i, j), (height, width) = (
            [(had - size) // 2 for had, size in zip(x.shape, self.size, strict=False)],
            self.size,
        )
        return x[i : i + height, j : j + width]


class Resize:
    """Give a picture ``[height, width, ...]`` another size.

    Parameters
    ----------
    size : int or (int, int)
        Height and width; one number is that of the shorter side.
    interpolation : str
        ``linear``: between the nearest pixels along both sides, whose centres are at halves, of
        bytes to the bit as OpenCV rounds; or ``nearest``.
    """

    def __init__(self, size: int | Sequence[int], interpolation: str = "linear") -> None:
        check_choice("interpolation", interpolation, ("linear", "nearest"))
        self.size = size if isinstance(size, int) else _two("size", size)
        if isinstance(size, int):
            POSITIVE_INTEGER.check("size", size)
        self.interpolation = interpolation

    def __call__(self, x: Array) -> Array:
        """Return the picture in its new size, in the type that it has."""
        sides = self._sides(x.shape)
        if self.interpolation == "nearest":
            rows, columns = (
                np.arange(size) * had // size for size, had in zip(sides, x.shape, strict=False)
            )
            return x[rows][:, columns]
        if x.dtype == np.uint8:
            return _between_bytes(x, sides)
        y = x.astype(np.float32)
        for axis, size in enumerate(sides):
            y = _between(y, axis, size)
        return np.rint(y).astype(x.dtype) if np.issubdtype(x.dtype, np.integer) else y

    def _sides(self, shape: Sequence[int]) -> tuple[int, int]:
        if not isinstance(self.size, int):
            return self.size
        high, wide = shape[:2]
        if high < wide:
            return self.size, self.size * wide // high
        return self.size * high // wide, self.size


def _between(x: Array, axis: int, size: int) -> Array:
    """Interpolate along one dimension."""
    had = x.shape[axis]
    at = np.clip((np.arange(size) + 0.5) * had / size - 0.5, 0, had - 1)
    below = np.floor(at).astype(int)
    above = np.minimum(below + 1, had - 1)
    share = (at - below).astype(np.float32).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return np.take(x, below, axis) * (1 - share) + np.take(x, above, axis) * share


def _between_bytes(x: Array, sides: tuple[int, int]) -> Array:
    """Interpolate bytes along both sides with the integers of OpenCV.

    A sum along a row has 19 bits; of those the sums along columns drop 4, then 16, then 2.
    """
    high, wide = sides
    first, second = _two_weighed(x.astype(np.int64), 1, wide)
    first, second = _two_weighed((first + second) >> 4, 0, high)
    return (((first >> 16) + (second >> 16) + 2) >> 2).astype(np.uint8)


def _two_weighed(x: Array, axis: int, size: int) -> tuple[Array, Array]:
    """Return the pixels before and behind each place along a side, times weights of 11 bits."""
    had = x.shape[axis]
    at = ((np.arange(size) + 0.5) * (had / size) - 0.5).astype(np.float32)
    below = np.floor(at)
    share = (at - below).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    before, behind = (np.clip(below.astype(int) + i, 0, had - 1) for i in (0, 1))
    weights = (np.rint(part * np.float32(1 << 11)).astype(np.int64) for part in (1 - share, share))
    taken = (np.take(x, places, axis) for places in (before, behind))
    first, second = (a * b for a, b in zip(taken, weights, strict=True))
    return first, second


def _two(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return a height and a width.

    Raises
    ------
    OptionError
        If it is something else.
    """
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if len(sizes) != 2:
        raise wrong_value(name, size, "an integer, or height and width")
    for side in sizes:
        POSITIVE_INTEGER.check(name, side)
    return sizes


def _sides(padding: int | Sequence[int] | None) -> tuple[int, int, int, int]:
    """Return what is put left, on top, right and at the bottom."""
    sides = (padding or 0,) if padding is None or isinstance(padding, int) else tuple(padding)
    for side in sides:
        NOT_NEGATIVE_INTEGER.check("padding", side)
    if len(sides) not in (1, 2, 4):
        raise wrong_value("padding", padding, "one, two or four integers")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


class OneHot:
    """Make a class a vector that is one there and zero elsewhere.

    Parameters
    ----------
    num_classes : int
        Number of classes.
    """

    def __init__(self, num_classes: int) -> None:
        POSITIVE_INTEGER.check("num_classes", num_classes)
        self.num_classes = num_classes

    def __call__(self, x: Array) -> Array:
        """Return the vector, in the type of the class."""
        return np.eye(self.num_classes, dtype=x.dtype)[x]


class ToBytes:
    """Make a text the numbers of its bytes in UTF-8, cut or padded to a length.

    Parameters
    ----------
    length : int
        The length.
    fill_value : int
        The padding.
    """

    def __init__(self, length: int, fill_value: int = 0) -> None:
        POSITIVE_INTEGER.check("length", length)
        NOT_NEGATIVE_INTEGER.check("fill_value", fill_value)
        self.length, self.fill_value = length, fill_value

    def __call__(self, x: Array) -> Array:
        """Return the numbers, as int32."""
        data = np.frombuffer(str(x).encode()[: self.length], np.uint8)
        found = np.full(self.length, self.fill_value, np.int32)
        found[: len(data)] = data
        return found


class TypeCast:
    """Give the elements another type."""

    def __init__(self, output_type: str) -> None:
        self.output_type = output_type

    def __call__(self, x: Array) -> Array:
        """Return the elements as the other type."""
        return x.astype(numpy_dtype(self.output_type))
