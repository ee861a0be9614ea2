"""Products with frozen weights of 4 bits: NormalFloat in blocks of 64, with scales of 8 bits.

A weight is the product of one of 16 values and the scale of its block of 64 inputs. A scale is one
of 256 values times a number for each 256 scales, plus one number for all (double quantization). A
product unpacks the weight, and its gradient unpacks it again: no unpacked weight is saved.

References
----------
Dettmers et al., "QLoRA: efficient finetuning of quantized LLMs", NeurIPS 2023. Codes, their order
and both scales are those of bitsandbytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.dynamic_tree import SHARING, edges_of, values_of
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.rule import Rule, ShardView
from shardwright.operators.workspace import WithWorkspace

BLOCK = 64  # inputs that share a scale
VALUES = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""The values of codes: means of quantiles of normal numbers, zero among them, over the largest."""


@dataclass(frozen=True)
class Quantized:
    """A weight ``[out, in]`` of 4 bits.

    Parameters
    ----------
    codes : array
        Pairs of codes, the first in the high half, ``[out, in / 64, 32]`` of uint8.
    scales : array
        The codes of the scales, ``[out, in / 64]`` of uint8.
    nested : array
        The bits of the float32 number of each 256 scales in their order, of int32.
    offset : array
        The bits of the float32 number that is added to all scales, a scalar of int32.
    """

    codes: Array
    scales: Array
    nested: Array
    offset: Array


def quantized(weight: Array) -> Quantized:
    """Return a weight ``[out, in]`` in 4 bits: the nearest values, as bitsandbytes rounds them.

    Raises
    ------
    IRError
        If 64 does not divide the inputs.
    """
    outputs, inputs = weight.shape
    check_inputs(inputs)
    blocks = np.asarray(weight, np.float32).reshape(outputs, inputs // BLOCK, BLOCK)
    largest = np.abs(blocks).max(axis=-1)
    share = blocks / np.where(largest > 0, largest, 1)[..., None]
    codes = np.searchsorted((VALUES[1:] + VALUES[:-1]) / 2, share).astype(np.uint8)
    offset = largest.mean(dtype=np.float32)
    rest = (largest - offset).reshape(-1)
    groups = np.pad(rest, (0, -len(rest) % SHARING)).reshape(-1, SHARING)
    nested = np.abs(groups).max(axis=-1)
    parts = groups / np.where(nested > 0, nested, 1)[:, None]
    scales = np.searchsorted(edges_of(True).astype(np.float32), parts).astype(np.uint8)
    return Quantized(
        codes[..., ::2] << 4 | codes[..., 1::2],
        scales.reshape(-1)[: len(rest)].reshape(largest.shape),
        nested.astype(np.float32).view(np.int32),
        np.asarray(offset, np.float32).view(np.int32),
    )


def check_inputs(inputs: int) -> None:
    """Refuse inputs that are no whole blocks.

    Raises
    ------
    IRError
        If they are not.
    """
    if inputs % BLOCK:
        raise IRError(f"a weight of 4 bits has blocks of {BLOCK} inputs, not {inputs} inputs")


def unpacked(own: Quantized, first: tuple[int, int] = (0, 0), blocks: int | None = None) -> Array:
    """Return a weight, or the part of it that some codes are of, in float32.

    Parameters
    ----------
    own : Quantized
        The codes and the scales of the part, and all nested numbers.
    first : tuple of (int, int)
        The output and the block of inputs with which the part begins.
    blocks : int, optional
        Blocks of inputs of the whole weight; those of the part unless given.
    """
    (outputs, count), (row, column) = own.scales.shape, first
    places = (np.arange(outputs) + row)[:, None] * (blocks or count) + np.arange(count) + column
    nested = own.nested.view(np.float32)[places // SHARING]
    scale = values_of(True)[own.scales] * nested + own.offset.view(np.float32)
    pairs = np.stack([own.codes >> 4, own.codes & 15], axis=-1).reshape(outputs, count, BLOCK)
    return np.asarray((VALUES[pairs] * scale[..., None]).reshape(outputs, count * BLOCK))


@register
class NF4MatMul(Product, WithWorkspace):
    """Rows ``[..., in]`` times a frozen weight ``[out, in]`` of 4 bits, which is unpacked for it.

    The operands after the rows are those of `Quantized`. With ``transposed`` rows ``[..., out]``
    are multiplied by the weight as it is: the gradient by the rows.
    """

    name = "nf4_matmul"
    of_reals = True
    linear = ((0,),)
    defaults: ClassVar = {"transposed": False, **Product.defaults}
    examples = (
        Example(
            ("f64[2, 3, 128]", "u8[4, 2, 32]", "u8[4, 2]", "i32[1]", "i32[]"),
            {},
            {3: (1 << 29, 1 << 30), 4: (1 << 29, 1 << 30)},
        ),
        Example(
            ("f64[2, 4]", "u8[4, 2, 32]", "u8[4, 2]", "i32[1]", "i32[]"),
            {"transposed": True},
            {3: (1 << 29, 1 << 30), 4: (1 << 29, 1 << 30)},
        ),
    )

    def make_rule(self) -> Rule:
        """Keep blocks whole; the nested numbers of all of them are on every rank."""
        shapes = [operand.shape for operand in self.operand_types]
        if len(shapes) != 5 or len(shapes[1]) != 3 or shapes[1][2] != BLOCK // 2:
            raise IRError(f"the operands have the shapes {shapes}, expected rows and a weight")
        sizes = {"n": shapes[1][1], "q": BLOCK}
        if self.attributes["transposed"]:
            rule = resolve("... o+, o+ n p^, o+ n, m^, -> ... (n q)", shapes, sizes)
            return replace(rule, kinds={**rule.kinds, "q": "whole"})
        return resolve("... (n+ q^), o n+ p^, o n+, m^, -> ... o", shapes, sizes)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the rows."""
        found = [operand.dtype for operand in self.operand_types[1:]]
        if found != ["uint8", "uint8", "int32", "int32"]:
            raise IRError(f"{self.name}: the weight is of {found}, expected codes and scales")
        return (self.operand_types[0].dtype,)

    @property
    def flops(self) -> float:
        """Count the product."""
        rows = prod(self.operand_types[0].shape[:-1])
        return 2.0 * rows * prod(self.operand_types[2].shape) * BLOCK

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the bytes of the unpacked weight."""
        elements = prod(operands[2].slice_shape(self.operand_types[2].shape, mesh)) * BLOCK
        return float(elements * item_bytes(self.operand_types[0].dtype))

    def bytes_between(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the bytes of the unpacked weight, which is written and then read."""
        return 2.0 * prod(shapes[2]) * BLOCK * item_bytes(self.operand_types[0].dtype)

    def launches(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the kernels: of the scales, of the weight, and of the product."""
        return 3

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Unpack, and multiply."""
        x, *own = operands
        first = view.starts["o"], view.starts["n"]
        weight = unpacked(Quantized(*own), first, self.rule.sizes["n"]).astype(x.dtype)
        return self.product(x, weight if self.attributes["transposed"] else weight.T)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Unpack the weight again: nothing but its codes is saved."""
        transposed = not self.attributes["transposed"]
        operands = (at.cotangents[0], *at.operands[1:])
        dx = build.emit(self.name, *operands, transposed=transposed)
        return [dx, None, None, None, None]
