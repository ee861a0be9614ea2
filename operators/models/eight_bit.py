"""Adam with states of 8 bits: blocks of 256 numbers, each with a scale.

A block of a matrix is a rectangle whose sides divide it, so a split that cuts no block leaves every
rank whole ones, and any plan has the same blocks. A number is stored as the position of the nearest
of 256 values between -1 and 1, times the largest of its block (`dynamic_tree`).
"""

from collections.abc import Sequence
from math import prod
from typing import ClassVar, Final

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.dynamic_tree import SHARING, edges_of, tiled, values_of
from shardwright.operators.info import Array, Example, register
from shardwright.operators.models.updates import AdamUpdate

LEAST: Final = 4096
"""Elements of the smallest tensor with such states: as bitsandbytes and torchao, whose smaller ones
keep states of 32 bits, where all together take little."""
_SIDES = tuple(2**n for n in (4, 5, 3, 6, 2, 7, 1, 8, 0))  # of a block, the most square first


def block_of(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sides of the blocks of a tensor, of its last dimensions; None if it has none.

    Examples
    --------
    >>> block_of((768, 3072)), block_of((50257, 768)), block_of((4096,)), block_of((768,))
    ((16, 16), (1, 256), (256,), None)
    """
    if prod(shape) < LEAST:
        return None
    if len(shape) == 1:
        return (SHARING,) if shape[0] % SHARING == 0 else None
    for rows in _SIDES:
        sides = rows, SHARING // rows
        if not shape[-2] % sides[0] and not shape[-1] % sides[1]:
            return sides
    return None


def _spread(scale: Array, block: tuple[int, ...]) -> Array:
    """Return the scale of the block of every element."""
    for side, axis in zip(reversed(block), range(-1, -len(block) - 1, -1), strict=True):
        scale = np.repeat(scale, side, axis)
    return scale


def dequantized(codes: Array, scale: Array, block: tuple[int, ...], signed: bool) -> Array:
    """Return the numbers that codes and scales stand for, in the type of the scales."""
    values = values_of(signed).astype(scale.dtype)
    return values[codes.astype(np.uint8)] * _spread(scale, block)


def quantized(x: Array, block: tuple[int, ...], signed: bool) -> tuple[Array, Array]:
    """Return the codes of the nearest values, and the largest number of every block."""
    parts, sides = tiled(x.shape, block)
    scale = np.abs(x).reshape(parts).max(axis=sides)
    share = np.divide(x, _spread(np.where(scale > 0, scale, 1), block))
    return np.searchsorted(edges_of(signed).astype(x.dtype), share).astype(np.uint8), scale


def _tiles(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n // side for n, side in zip(shape[-len(block) :], block, strict=True))


@register
class Adam8bitUpdate(AdamUpdate):
    """One step of Adam whose means are stored in 8 bits; see `adam_update`.

    The states are the codes and the scales of the mean, then of the mean square. The parameter
    steps by the exact means; what is stored of them is rounded. ``block`` has the sides of a block,
    of the last dimensions.
    """

    name = "adam8bit_update"
    defaults: ClassVar = {**AdamUpdate.defaults, "block": (16, 16)}
    flops_per_point = 40.0
    states = 4
    by_rows = False
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            ("f64[4, 6]", "f64[4, 6]", "u8[4, 6]", "f64[2, 2]", "u8[4, 6]", "f64[2, 2]", "i64[]"),
            {"block": (2, 3), "weight_decay": 0.1},
            {2: (0, 256), 3: (0, 1), 4: (128, 256), 5: (0, 1), 6: (1, 9)},
        ),
        Example(
            (*("f64[3, 8]",) * 2, *("u8[3, 8]", "f64[3, 2]") * 2, "i64[]", "f64[]"),
            {"block": (4,)},
            {2: (0, 256), 3: (0, 1), 4: (128, 256), 5: (0, 1), 6: (1, 9), 7: (0, 1)},
        ),
    )

    @classmethod
    def state_types(cls, parameter: TensorType) -> tuple[TensorType, ...]:
        """Return the types of codes and scales, twice."""
        block = block_of(parameter.shape)
        assert block is not None
        tiles = (*parameter.shape[: -len(block)], *_tiles(parameter.shape, block))
        return (TensorType("uint8", parameter.shape), TensorType("float32", tiles)) * 2

    def check_shapes(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse blocks that do not divide the tensor, and scales of other blocks."""
        (own, gradient, m, m_scale, v, v_scale), block = shapes, self.attributes["block"]
        sides = zip(own[-len(block) :], block, strict=True)
        if len(block) not in (1, 2) or len(own) < len(block) or any(n % s for n, s in sides):
            raise IRError(f"blocks of {block} do not divide a tensor of {own}")
        tiles = (*own[: -len(block)], *_tiles(own, block))
        if not (own == gradient == m == v and tiles == m_scale == v_scale):
            raise IRError(
                f"parameter, gradient and states have the shapes {list(shapes)}, expected {own} "
                f"and scales of {tiles}"
            )

    def make_notation(self) -> str:
        """Return the notation in which a split dimension has whole blocks on every rank."""
        block = self.attributes["block"]
        tiles = " ".join(f"t{i}" for i in range(len(block)))
        own = " ".join(f"(t{i} s{i}^)" if n > 1 else f"t{i}" for i, n in enumerate(block))
        states = ", ".join([f"... {own}", f"... {tiles}"] * 2)
        return f"... {own}, ... {own}, {states}, -> ... {own}, {states}"

    def make_sizes(self) -> dict[str, int]:
        """Return the sides of a block, and the number of blocks along each dimension."""
        block = self.attributes["block"]
        tiles = _tiles(self.operand_types[0].shape, block)
        sides = {f"s{i}": n for i, n in enumerate(block) if n > 1}
        return sides | {f"t{i}": n for i, n in enumerate(tiles)}

    @classmethod
    def fitted(cls, layout: Layout, parameter: TensorType, mesh: Mesh) -> Layout:
        """Return the layout without the minor axes that would cut blocks."""
        block = block_of(parameter.shape)
        assert block is not None
        splits = list(layout.splits)
        tiles = _tiles(parameter.shape, block)
        for i, (side, count) in enumerate(zip(block, tiles, strict=True), -len(block)):
            while side > 1 and count % mesh.extent(splits[i]):
                splits[i] = splits[i][:-1]
        return Layout(tuple(splits), stage=layout.stage)

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Step by the exact means, and round them."""
        p, g, m, m_scale, v, v_scale, step = operands
        block = self.attributes["block"]
        mean = dequantized(m, m_scale, block, signed=True)
        square = dequantized(v, v_scale, block, signed=False)
        after, mean, square = super().updated(rate, p, g, mean, square, step)
        return after, *quantized(mean, block, True), *quantized(square, block, False)

    def write(self, rate: float, *operands: Array, room: Array | None = None) -> None:
        """Refuse: parts of a tensor are no parts of its scales."""
        raise NotImplementedError
