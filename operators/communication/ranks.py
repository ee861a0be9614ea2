"""Communication between single ranks, for models that call it themselves.

What a rank holds is passed on as it is, so these operators have no meaning for the slices of one
tensor: where tensors have layouts they are refused.
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
            f"{self.name}: it passes on what a rank holds, which is no change of layout",
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
        """Pass the cotangent at the root; what the others held was not used."""
        root, size = self.attributes["root"], self.attributes["group_size"]
        ends = {"axes": self.axes, "source": root, "destination": root, "group_size": size}
        return [build.emit("send", at.cotangents[0], **ends)]


@register
class NeighborExchange(OfRanks):
    """Pass the own values ``shift`` members on; where no member passes any, zeros arrive."""

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
    """One member's values, on their way to another."""

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
    """Take at ``destination`` what `send` offered; zeros arrive elsewhere."""

    name = "receive"
    transpose = "send"
    forwards_parts = True

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Move the one part."""
        moved = [np.zeros_like(part) for part in parts]
        moved[self.attributes["destination"]] = parts[self.attributes["source"]]
        return moved
