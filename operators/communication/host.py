"""Copies between the memory of the devices and that of the host, over the link of each device.

Both are the identity, and each is the gradient of the other. Where a tensor is, is part of its type
(`TensorType.in_host`): `to_host` alone makes a tensor in host memory, `from_host` alone reads one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, Emitter, Gradients, Linearization, register
from shardwright.operators.rule import Rule, ShardView


class HostCopy(Communication):
    """A copy of a tensor to or from host memory, in its layout: each rank copies its part."""

    is_collective = False
    transpose: ClassVar[str]

    @property
    def axes(self) -> tuple[str, ...]:
        """No axes: no rank sends to another."""
        return ()

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Keep the layout."""
        return layout

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Copy."""
        return part.copy()

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Copy."""
        return operands[0].copy()

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Copy the cotangent the other way."""
        return [build.emit(self.transpose, at.cotangents[0])]


@register
class ToHost(HostCopy):
    """Copy a tensor from the memory of the devices to host memory."""

    name = "to_host"
    priced_as = "to_host"
    transpose = "from_host"

    @cached_property
    def result_types(self) -> tuple[TensorType, ...]:
        """The type of the operand, in host memory."""
        return (replace(self.operand_types[0], in_host=True),)


@register
class FromHost(HostCopy):
    """Copy a tensor from host memory to the memory of the devices."""

    name = "from_host"
    priced_as = "from_host"
    transpose = "to_host"
    reads_host = True

    def make_rule(self) -> Rule:
        """Check that the operand is in host memory, and keep the shape."""
        operand = self.operand_types[0]
        if not operand.in_host:
            raise IRError(
                f"the operand is {operand}, in the memory of the devices; expected host memory",
                hint="copy it with `to_host` first",
            )
        return super().make_rule()

    @cached_property
    def result_types(self) -> tuple[TensorType, ...]:
        """The type of the operand, in the memory of the devices."""
        return (replace(self.operand_types[0], in_host=False),)
