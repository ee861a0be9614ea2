"""Cosine transforms of the second type, orthonormal, as products with a constant."""

from collections.abc import Sequence
from string import ascii_lowercase

import numpy as np

from shardwright.tensor import Tensor, apply


class DCT:
    """The cosine transform along a dimension."""

    inverse = False

    def __call__(self, x: Tensor, n: int | None = None, axis: int = -1) -> Tensor:
        """Transform the first `n` elements, or so many with zeros behind them."""
        axis, letters = axis % x.ndim, ascii_lowercase[: x.ndim]
        there, size = x.shape[axis], n or x.shape[axis]
        place = (2 * np.arange(size) + 1) / (2 * size)
        basis = np.sqrt(2 / size) * np.cos(np.pi * np.outer(place, np.arange(size)))
        basis[:, 0] = np.sqrt(1 / size)
        matrix, shared = np.zeros((there, size)), min(there, size)
        matrix[:shared] = (basis.T if self.inverse else basis)[:shared]
        constant = apply("cast", Tensor(matrix), dtype=x.dtype)
        after = letters.replace(letters[axis], "z")
        return apply("einsum", x, constant, equation=f"{letters},{letters[axis]}z->{after}")


class IDCT(DCT):
    """The inverse of the cosine transform along a dimension."""

    inverse = True


class DCTN:
    """The cosine transform along several dimensions; all, if not told."""

    along: type[DCT] = DCT

    def __call__(
        self, x: Tensor, s: Sequence[int] | None = None, axes: Sequence[int] | None = None
    ) -> Tensor:
        """Transform one dimension after the other, each to a size of `s`."""
        axes = tuple(range(x.ndim))[-len(s or x.shape) :] if axes is None else tuple(axes)
        for axis, size in zip(axes, s or (None,) * len(axes), strict=True):
            x = self.along()(x, size, axis)
        return x


class IDCTN(DCTN):
    """The inverse of the cosine transform along several dimensions."""

    along = IDCT
