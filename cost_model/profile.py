"""What a search minimises: the cost of each strategy of an operator and of each change of layout.

A profile prices the forward *and* the backward side of each choice, so that a search over the
forward program minimises the whole step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.backward_memory import BackwardMemory
from shardwright.cost_model.redistribution.moves import Kinds
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import PassError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EdgeLayout:
    """One end of an edge: the layout of a tensor there, and of its cotangent.

    Parameters
    ----------
    layout : Layout
        How the tensor lies.
    cotangent : Layout or None
        How its gradient lies; None where there is none.
    """

    layout: Layout
    cotangent: Layout | None

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "EdgeLayout":
        """Return the same with other axes of the mesh in the place of these."""
        gradient = None if self.cotangent is None else self.cotangent.renamed(names, mesh)
        return EdgeLayout(self.layout.renamed(names, mesh), gradient)


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """One operator under each of its strategies; equal operators share one table.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    strategies : tuple of Strategy
        The choices.
    cost : array of shape (strategies,)
        Forward and backward cost of the operator itself.
    operands : tuple of tuple of EdgeLayout
        For each operand, for each strategy, how it is taken.
    results : tuple of tuple of Layout
        For each result, for each strategy, how it is left.
    memory : BackwardMemory
        What its gradient holds.
    """

    info: OperatorInfo
    strategies: tuple[Strategy, ...]
    cost: Floats
    operands: tuple[tuple[EdgeLayout, ...], ...]
    results: tuple[tuple[Layout, ...], ...]
    memory: BackwardMemory

    @cached_property
    def position(self) -> dict[Strategy, int]:
        """Position of each strategy."""
        return {strategy: i for i, strategy in enumerate(self.strategies)}


class CostProfile(Protocol):
    """What the search asks of a profile."""

    name: str
    mesh: Mesh
    orbit_planner: RedistributionPlanner | None
    kinds: Kinds | None  # of axes, where one strategy stands for all that differ by axes of a kind

    def table(
        self,
        info: OperatorInfo,
        wanted: tuple[bool, ...],
        stored: tuple[bool, ...],
        pinned: bool = False,
    ) -> OperatorTable:
        """Return the strategies of an operator; of a pinned one all that a person may ask for.

        `wanted` says which operands need a gradient, `stored` which are parameters.
        """

    def edges(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the cost of bringing a tensor, and its gradient back, for each pair of ends."""

    def again(
        self, tensor: TensorType, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> Floats:
        """Return the cost of bringing a tensor a second time."""

    def leaving(
        self, tensor: TensorType, sources: Sequence[EdgeLayout], target: EdgeLayout
    ) -> Floats:
        """Return the cost of handing out an output whole, from each of `sources`."""

    def accumulation(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of adding two cotangents."""

    def update(self, tensor: TensorType, layout: Layout) -> float:
        """Return the cost of the optimizer's update of a parameter."""

    def readers_share_layout(self) -> bool:
        """Return whether the readers of a tensor share what it is brought to."""
        ...

    def stays(self, maker: OperatorInfo | None) -> bool:
        """Return whether what an operator makes lies just as all that read it take it.

        None stands for a parameter that several read.
        """

    def stored_freely(self) -> bool:
        """Return whether a parameter may be stored otherwise than its readers take it."""

    def constant(self) -> float:
        """Return the cost of a step that no choice changes."""


def operator_table(
    info: OperatorInfo,
    strategies: tuple[Strategy, ...],
    cost: Floats,
    wanted: tuple[bool, ...],
    mesh: Mesh,
) -> OperatorTable:
    """Return the table of an operator whose layouts are as its rule says."""
    taken = [info.rule.operand_layouts(strategy) for strategy in strategies]
    mirrors = [info.infer_mirror_ops(strategy, mesh) for strategy in strategies]
    operands = tuple(
        tuple(
            EdgeLayout(layouts[i], layouts[i].with_partial(axes[i]) if want else None)
            for layouts, axes in zip(taken, mirrors, strict=True)
        )
        for i, want in enumerate(wanted)
    )
    left = [info.rule.result_layouts(strategy, mesh) for strategy in strategies]
    results = tuple(zip(*left, strict=True))
    memory = BackwardMemory.none(len(operands), len(results), len(strategies))
    return OperatorTable(info, strategies, cost, operands, results, memory)


def check_cotangents(table: OperatorTable, mesh: Mesh) -> None:
    """Check that gradients come out as the rule says: split like the operand, partial elsewhere.

    Raises
    ------
    PassError
        At the first that does not.
    """
    for i, ports in enumerate(table.operands):
        for strategy, port in zip(table.strategies, ports, strict=True):
            expected = port.layout.with_partial(table.info.rule.mirror_axes(i, strategy, mesh))
            if port.cotangent not in (None, expected):
                raise PassError(
                    f"`{table.info.name}` split by `{strategy}` returns the gradient of operand "
                    f"{i} as {port.cotangent}, its rule says {expected}"
                )
