"""Blocks of numbers of 8 bits: the values that these stand for, and the shapes of the blocks.

It needs numpy alone: packages that are exported have a copy.

References
----------
T. Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022: the dynamic tree of
values, signed for the mean and unsigned for the mean square.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SHARING = 256
"""Numbers that share a scale of 4 bytes, as in bitsandbytes; half follow outliers closer."""
_EXPONENTS = 7  # of 8 bits, one is the sign or a further bit of the fraction


@lru_cache
def values_of(signed: bool) -> NDArray[np.float32]:
    """Return the 256 values between -1 and 1 that numbers of 8 bits stand for, sorted.

    Of every power of ten from 1e-6 to 1, the middles of 2^i equal intervals of its last nine tenths
    for the i-th power, both signs of them, or twice as many without a sign; and 0 and 1.
    """
    found = [0.0, 1.0]
    for i in range(_EXPONENTS):
        edges = np.linspace(0.1, 1.0, 2 ** (i if signed else i + 1) + 1)
        middles = 10.0 ** (i - _EXPONENTS + 1) * (edges[:-1] + edges[1:]) / 2
        found += [*middles, *(-middles if signed else ())]
    return np.sort(np.array(found, np.float32))


@lru_cache
def edges_of(signed: bool) -> NDArray[np.float64]:
    """Return the numbers halfway between two values: a number between two is nearest to theirs."""
    values = values_of(signed)
    return (values[:-1].astype(np.float64) + values[1:]) / 2


def tiled(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[list[int], tuple[int, ...]]:
    """Return a shape whose last dimensions are parted into blocks and sides, and the axes of sides.

    Examples
    --------
    >>> tiled((5, 32, 48), (16, 16))
    ([5, 2, 16, 3, 16], (-1, -3))
    """
    leading, own = shape[: -len(block)], shape[-len(block) :]
    parts = [size for n, side in zip(own, block, strict=True) for size in (n // side, side)]
    return [*leading, *parts], tuple(-1 - 2 * i for i in range(len(block)))
