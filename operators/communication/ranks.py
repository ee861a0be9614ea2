"""Communication between single ranks, for models that call it themselves.

They move the values of one rank, which is no change of layout: tensors with layouts are refused.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import StrategyError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, Emitter, Gradients, Linearization, register


class OfRanks(Communication):
    """An operator on the values of single ranks."""

    keeps_tensor = False

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Refuse: the result would not be the same tensor."""
        raise StrategyError(
            f"{self.name}: moving the values of one rank is no change of layout",
            hint="use it in a program without layouts (`hybrid_parallel`)",
        )


@register
class Broadcast(OfRanks):
    """Give every member the values of member ``root``."""

    name = "broadcast"
    defaults: ClassVar = {"axes": (), "root": 0, "group_size": 0}
    equalizes = True
    forwards_parts = True

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Copy from the root."""
        return [parts[self.attributes["root"]]] * len(parts)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent at the root; the other values are unused."""
        root, size = self.attributes["root"], self.attributes["group_size"]
        ends = {"axes": self.axes, "source": root, "destination": root, "group_size": size}
        return [build.emit("send", at.cotangents[0], **ends)]


@register
class NeighborExchange(OfRanks):
    """Send the values to the member ``shift`` positions on; members without a sender get zeros."""

    name = "neighbor_exchange"
    defaults: ClassVar = {"axes": (), "shift": 1, "wrap": True, "group_size": 0}
    forwards_parts = True

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Shift the parts."""
        count, shift = len(parts), self.attributes["shift"]
        sources = [i - shift for i in range(count)]
        return [
            parts[s % count]
            if self.attributes["wrap"] or 0 <= s < count
            else np.zeros_like(parts[0])
            for s in sources
        ]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Shift back."""
        attributes = {**self.attributes, "shift": -self.attributes["shift"]}
        return [build.emit("neighbor_exchange", at.cotangents[0], **attributes)]


class _PointToPoint(OfRanks):
    """The base of messages from one member to another."""

    defaults: ClassVar = {"axes": (), "source": 0, "destination": 0, "group_size": 0}
    transpose: ClassVar[str]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent the other way."""
        back = {
            **self.attributes,
            "source": self.attributes["destination"],
            "destination": self.attributes["source"],
        }
        return [build.emit(self.transpose, at.cotangents[0], **back)]


@register
class Send(_PointToPoint):
    """Offer the values of member ``source`` to ``destination``; pairs with `receive`."""

    name = "send"
    transpose = "receive"
    is_collective = False
    is_free = True  # `receive` pays for the pair

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Keep at the source, clear elsewhere."""
        return part if index == self.attributes["source"] else np.zeros_like(part)


@register
class Receive(_PointToPoint):
    """Receive at ``destination`` the values of `send`; other members get zeros."""

    name = "receive"
    transpose = "send"
    forwards_parts = True

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Move the one part."""
        moved = [np.zeros_like(part) for part in parts]
        moved[self.attributes["destination"]] = parts[self.attributes["source"]]
        return moved
