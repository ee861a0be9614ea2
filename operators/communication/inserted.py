"""Communication operators that the compiler inserts: copies, redistributions, and transfers."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Ragged
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, Emitter, Gradients, Linearization, register
from shardwright.operators.rule import Rule


@register
class ToPartial(Communication):
    """Turn equal copies into partial sums: one member keeps its copy, the others get zeros."""

    name = "to_partial"
    defaults: ClassVar = {"axes": (), "group_size": 0}
    is_collective = False

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Add the partial axes."""
        used = set(layout.split_axes + layout.partial) & set(self.axes)
        if used or layout.reduction != "sum":
            raise StrategyError(f"to_partial: the axes {sorted(used)} are in use in {layout}")
        return layout.with_partial(mesh.ordered(layout.partial + self.axes))

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Keep or clear."""
        return part if index == 0 else np.zeros_like(part)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent: the copies are one value, which enters the sum once."""
        return [at.cotangents[0]]


@register
class Mirror(Communication):
    """The identity, whose gradient is summed over the axes.

    Marks where equal copies enter work that is split, which makes their gradients partial sums.
    """

    name = "mirror"
    defaults: ClassVar = {"axes": (), "group_size": 0, "groups": ()}
    is_collective = False
    is_free = True
    passes_cotangent = True

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Keep the layout."""
        return layout

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Keep."""
        return part

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Sum over the group."""
        return [build.emit("all_reduce", at.cotangents[0], **self.places)]


@register
class Redistribute(Communication):
    """Change the layout of a tensor; lowered to the cheapest collectives before a program runs.

    With ``recompute`` its result is not saved for backward but recomputed there; with ``in_passes``
    every pass over micro-batches makes it.
    """

    name = "redistribute"
    defaults: ClassVar = {"recompute": False, "in_passes": False}
    is_collective = False
    is_free = True
    keeps_tensor = False  # it is lowered before a program runs
    passes_cotangent = True

    @property
    def axes(self) -> tuple[str, ...]:
        """No axes."""
        return ()

    def make_ragged(self) -> tuple[Ragged | None, ...]:
        """Return which entries are filled: as of the operand."""
        return (self.operand_types[0].ragged,)

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Return the wanted layout."""
        wanted = results[0] if results else None
        if wanted is None:
            raise StrategyError("redistribute: there is no target layout")
        return Strategy(), (wanted,)


@register
class Transfer(Communication):
    """Move a tensor to another pipeline stage, in its layout: the identity.

    Each rank of the stage that has it sends its part to the rank at its place in ``stage``; to
    every stage where that is None. What is on every stage already does not move.
    """

    name = "transfer"
    defaults: ClassVar = {"stage": None, "in_passes": False}
    priced_as = "send"
    is_collective = False

    @property
    def axes(self) -> tuple[str, ...]:
        """No axes: the groups are pairs of ranks in two stages."""
        return ()

    def make_rule(self) -> Rule:
        """Check the stage, and keep the shape."""
        stage = self.attributes["stage"]
        if stage is not None and (not isinstance(stage, int) or stage < 0):
            raise IRError(f"`stage` is {stage!r}, expected a number from 0 or None")
        return super().make_rule()

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Change the stage."""
        stage = self.attributes["stage"]
        if not mesh.of_stages:
            raise StrategyError(f"transfer: the mesh {mesh} has no axis of stages")
        if stage == layout.stage:
            where = "on every stage" if stage is None else f"in stage {stage}"
            raise StrategyError(f"transfer: the operand is {where} already")
        return layout.at(stage)

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Keep."""
        return part

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Transfer the cotangent back."""
        layout = at.operands[0].layout
        stage = None if layout is None else layout.stage
        return [build.emit("transfer", at.cotangents[0], stage=stage)]
