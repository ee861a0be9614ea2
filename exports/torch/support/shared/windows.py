"""Exchanges of channels and space, by functions that all systems have."""

from collections.abc import Sequence

from .arrays import Array, permuted


def depth_to_space(
    x: Array, *, block: int = 1, mode: str = "DCR", size_p: int, size_q: int, shape: Sequence[int]
) -> Array:
    n, _, h, w = x.shape
    if mode == "DCR":
        apart, order = x.reshape(n, size_p, size_q, -1, h, w), (0, 3, 4, 1, 5, 2)
    else:
        apart, order = x.reshape(n, -1, size_p, size_q, h, w), (0, 1, 4, 2, 5, 3)
    return permuted(apart, order).reshape(tuple(shape))


def space_to_depth(
    x: Array, *, block: int = 1, mode: str = "DCR", size_p: int, size_q: int, shape: Sequence[int]
) -> Array:
    n, c, h, w = x.shape
    apart = x.reshape(n, c, h // size_p, size_p, w // size_q, size_q)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return permuted(apart, order).reshape(tuple(shape))
