"""Dropout and random numbers that do not depend on how the tensor is split."""

from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.models.random import (
    Index,
    Reals,
    block_index,
    gamma,
    global_index,
    uniform,
)
from shardwright.operators.rule import ShardView

_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # of a random number


@register
class Dropout(OperatorInfo):
    """Set elements to zero with the probability ``rate``, and scale the rest by 1 / (1 - rate).

    The mask is a function of ``seed``, ``key`` (the name of this use), the operand ``step`` and the
    global index of the element. The gradient recomputes it, so that no mask is saved for backward.
    """

    name = "dropout"
    of_reals = True
    notation = "..., -> ..."
    defaults: ClassVar = {"rate": 0.5, "seed": 0, "key": "dropout"}
    linear = ((0,),)
    flops_per_point = 20.0
    examples = (
        Example(("f64[4, 3, 6]", "i64[]")),
        Example(("f64[4, 6]", "i64[]"), {"rate": 0.1, "seed": 3, "key": "layer1/dropout"}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Draw the numbers of the local elements."""
        x, rate = operands[0], self.attributes["rate"]
        kept = _drawn(self, view, int(operands[1])) >= rate
        return np.asarray(np.where(kept, x * (1 / (1 - rate)), 0), x.dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Drop the same elements."""
        return [build.emit("dropout", at.cotangents[0], at.operands[1], **self.attributes), None]


class _Random(OperatorInfo):
    """Random numbers, one for each element of the first operand.

    A number is a function of ``seed``, ``key``, ``step`` and the global index, as the mask of
    `dropout`. With ``blocks`` the tensor is divided into equal blocks, and block ``i`` is drawn
    with ``seed + i`` and the index in the block: as a tensor of its own.
    """

    notation = "..., -> ..."
    defaults: ClassVar = {"seed": 0, "key": "random", "blocks": ()}
    stops_gradient = True

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the first operand."""
        operand = self.operand_types[0]
        if operand.dtype not in _BITS:
            raise IRError(
                f"`{self.name}`: numbers of type {operand.dtype}, expected floating point"
            )
        blocks: tuple[int, ...] = self.attributes["blocks"]
        pairs = [*zip(operand.shape, blocks, strict=False)]
        divide = all(count > 0 and size % count == 0 for size, count in pairs)
        if blocks and (len(blocks) != operand.rank or not divide):
            raise IRError(f"`{self.name}`: blocks {blocks} do not divide {operand}")
        return (operand.dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Draw the numbers of the local elements, block by block."""
        x, shape, own = operands[0], self.operand_types[0].shape, self.attributes
        factors = [dims[0] for dims in self.rule.operands[0]]
        region = [slice(view.starts[f], view.starts[f] + view.sizes[f]) for f in factors]
        blocks = own["blocks"] or (1,) * len(shape)
        number, index = np.broadcast_arrays(*block_index(shape, blocks, region))
        found, key = np.empty(x.shape), f"{own['key']}/{int(operands[1])}"
        for block in np.unique(number):
            inside = number == block
            found[inside] = self.draw(own["seed"] + int(block), key, index[inside], x[inside])
        return np.asarray(found, x.dtype)

    def draw(self, seed: int, key: str, index: Index, x: Array) -> Reals:
        """Return the numbers of some elements of one block."""
        raise NotImplementedError


@register
class RandomUniform(_Random):
    """A random number in [0, 1) for each element of the first operand, which is not read."""

    name = "random_uniform"
    flops_per_point = 20.0
    examples = (
        Example(("f64[4, 3, 6]", "i64[]")),
        Example(("f64[4, 6]", "i64[]"), {"seed": 3, "key": "layer1/random", "blocks": (2, 3)}),
    )

    def draw(self, seed: int, key: str, index: Index, x: Array) -> Reals:
        """Draw numbers rounded down: none is one."""
        steps = 2.0 ** _BITS[self.operand_types[0].dtype]
        return np.floor(uniform(seed, key, index) * steps) / steps


@register
class RandomGamma(_Random):
    """A number of the gamma distribution with scale 1 and each element as the shape parameter."""

    name = "random_gamma"
    flops_per_point = 200.0
    examples = (
        Example(("f64[4, 3, 6]", "i64[]"), ranges={0: (0.2, 4.0)}),
        Example(("f64[4, 6]", "i64[]"), {"seed": 3, "blocks": (2, 3)}, {0: (0.2, 4.0)}),
    )

    def draw(self, seed: int, key: str, index: Index, x: Array) -> Reals:
        """Draw."""
        return gamma(seed, key, index, x.astype(np.float64))


def _drawn(info: OperatorInfo, view: ShardView, step: int) -> Array:
    """Return the random numbers of the local elements of the first operand."""
    factors = [dims[0] for dims in info.rule.operands[0]]
    region = [slice(view.starts[f], view.starts[f] + view.sizes[f]) for f in factors]
    index = global_index(info.operand_types[0].shape, region)
    return uniform(info.attributes["seed"], f"{info.attributes['key']}/{step}", index)
