"""The search space: one assignment problem that holds every decision about a program.

A variable for every operator (its strategies), every parameter (how it is stored, and how it is
gathered for its reader), every input, and every tensor with several readers (their shared layout).
A pairwise table for every tensor between two of them prices its redistribution, and that of its
gradient back. `memory` says what the variables hold, and when. Where a tensor is saved for backward
by several readers, a variable of kind ``copy`` says whether one of them saves a copy of its own.

Tables are interned: equal layers share them by reference, so a model of 96 layers holds as many
distinct tables as one of two, and a solver does the work once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import OFFLOADED, REGATHERED, WHEN_READ, EdgeLayout
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, SharedLayout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.search.space.casts import cast_strategy
from shardwright.solver.problem import Pair, Problem


@dataclass(frozen=True)
class Storage:
    """How a parameter is stored, and how it is gathered for its reader.

    Parameters
    ----------
    layout : Layout
        The layout in which it is stored and updated.
    used : Layout or None
        The layout to which it is gathered; None where several readers share a layout.
    regathered : bool
        Whether it is gathered a second time for the gradient, instead of being saved for backward.
    in_passes : bool
        Whether it is gathered in every pass over micro-batches, not once before the first.
    reduced_in_passes : bool
        Whether its gradient is reduced in every pass, before it is accumulated.
    """

    layout: Layout
    used: Layout | None = None
    regathered: bool = False
    in_passes: bool = False
    reduced_in_passes: bool = False

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Storage":
        """Return the storage under a permutation of axes."""
        used = None if self.used is None else self.used.renamed(names, mesh)
        return replace(self, layout=self.layout.renamed(names, mesh), used=used)

    def gathers(self, passes: float) -> float:
        """Return how often it is gathered in a step, for a reader that runs in every pass."""
        return self.first_gathers(passes) + self.second_gathers(passes)

    def first_gathers(self, passes: float) -> float:
        """Return how often it is gathered in a step for the forward pass."""
        return passes if self.in_passes or self.regathered else 1

    def second_gathers(self, passes: float) -> float:
        """Return how often it is gathered in a step a second time, for the gradient."""
        return passes if self.regathered else 0

    def reductions(self, passes: float) -> float:
        """Return how often its gradient is reduced in a step."""
        return passes if self.reduced_in_passes else 1


@dataclass(frozen=True, repr=False)
class RecomputedStrategy(Strategy):
    """A strategy of an operator that is computed a second time for the gradient.

    Parameters
    ----------
    when : int
        As in `OperatorTable.remade`.
    """

    when: int = WHEN_READ

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "RecomputedStrategy":
        """Return the strategy with axes renamed."""
        return replace(self, assignment=super().renamed(names, mesh).assignment)


Option = Strategy | Storage | SharedLayout | Layout


@dataclass(frozen=True, eq=False)
class Choice:
    """One variable of the problem, and its options.

    Parameters
    ----------
    kind : str
        ``operator``, ``parameter``, ``input``, ``tensor``, ``copy``, ``output``, or ``sent`` for
        what another pipeline stage reads.
    name : str
        The node, parameter, input or tensor.
    options : tuple of Option
        Each is a strategy, a storage, a shared layout or a layout, or an orbit of them.
    """

    kind: str
    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, eq=False)
class Edge:
    """A tensor between two choices, priced by one pair of the problem.

    Parameters
    ----------
    tensor : TensorType
        Its type.
    sources, targets : tuple of EdgeLayout
        Its layout, and that of its gradient, for each option of the first and second choice.
    again : array of shape (sources, targets), optional
        Where it is redistributed a second time, as it is recomputed; None for nowhere.
    passes : float
        How often the reader runs in a step.
    forward, backward : float
        How often the tensor, and its gradient, are redistributed in a step; of a parameter its
        storage decides.
    of_parameters : bool
        Whether it is made of parameters alone, so that its communication is deferrable.
    gradient : TensorType, optional
        The type in which its gradient is reduced, if another.
    """

    tensor: TensorType
    sources: tuple[EdgeLayout, ...]
    targets: tuple[EdgeLayout, ...]
    again: NDArray[np.bool_] | None = None
    passes: float = 1
    forward: float = 1
    backward: float = 1
    of_parameters: bool = False
    gradient: TensorType | None = None

    def times(self, option: Option) -> tuple[float, float, float]:
        """Return how often a step redistributes the tensor, again, and its gradient.

        `option` is that of the first choice; the storage of a parameter decides.
        """
        if not isinstance(option, Storage):
            return self.forward, 0.0, self.backward
        first, second = option.first_gathers(self.passes), option.second_gathers(self.passes)
        return first, second, option.reductions(self.passes)

    def planner(self, planner: RedistributionPlanner, times: float) -> RedistributionPlanner:
        """Return the planner of its redistributions that run so often in a step."""
        own = planner.of_parameters if self.of_parameters else planner
        return own.in_step(times, self.of_parameters)


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """All decisions about a program, as an assignment problem.

    Parameters
    ----------
    graph : Graph
        The whole program.
    mesh : Mesh
        The mesh.
    choices : tuple of Choice
        The variables.
    problem : Problem
        Their costs; without a memory limit.
    edges : tuple of Edge
        The tensors of the pairs with the role ``edge``, in the order of the pairs.
    constant : float
        Cost of the program that no choice changes.
    pinned : frozenset of str
        Operators whose strategy is pinned by the user.
    fixed_inputs : frozenset of str
        Inputs whose layout is given by the user.
    planner : RedistributionPlanner, optional
        Permutes axes and prices redistributions, where options are orbits.
    casts : mapping of str to Node
        Casts that follow the storage of a parameter, by parameter.
    offloaded : frozenset of str
        Operators whose result is saved in host memory, as the user marks.
    """

    graph: Graph
    mesh: Mesh
    choices: tuple[Choice, ...]
    problem: Problem
    edges: tuple[Edge, ...]
    constant: float = 0.0
    pinned: frozenset[str] = frozenset()
    fixed_inputs: frozenset[str] = frozenset()
    planner: RedistributionPlanner | None = None
    casts: Mapping[str, Node] = field(default_factory=dict)
    offloaded: frozenset[str] = frozenset()

    @cached_property
    def priced(self) -> tuple[tuple[int, Pair, Edge], ...]:
        """The pairs that price a tensor, with their positions in the problem."""
        pairs = enumerate(self.problem.pairs)
        priced = [(position, pair) for position, pair in pairs if pair.role == "edge"]
        return tuple((*pair, edge) for pair, edge in zip(priced, self.edges, strict=True))

    def is_fixed(self, index: int) -> bool:
        """Return whether a choice is an input whose layout is given by the user."""
        choice = self.choices[index]
        return choice.kind == "input" and choice.name in self.fixed_inputs

    @cached_property
    def position(self) -> dict[tuple[str, str], int]:
        """Variable of each (kind, name)."""
        return {(choice.kind, choice.name): i for i, choice in enumerate(self.choices)}

    def decisions(self, assignment: Sequence[int]) -> Decisions:
        """Return the decisions of an assignment."""
        pairs = zip(self.choices, assignment, strict=True)
        return self.decide([choice.options[chosen] for choice, chosen in pairs])

    def decide(self, options: Sequence[Option]) -> Decisions:
        """Return the decisions of one option for each choice."""
        strategies: dict[str, Strategy] = {}
        stored: dict[str, Layout] = {}
        shared_layouts: dict[str, SharedLayout] = {}
        regathered: set[str] = set()
        recomputed, offloaded = set(self.graph.recomputed), set(self.offloaded)
        gathered_in_passes: set[str] = set()
        reduced_in_passes: set[str] = set()
        for choice, option in zip(self.choices, options, strict=True):
            if isinstance(option, RecomputedStrategy):
                strategies[choice.name] = Strategy(option.assignment)
                {REGATHERED: regathered, OFFLOADED: offloaded}.get(option.when, recomputed).add(
                    choice.name
                )
            elif isinstance(option, Strategy):
                strategies[choice.name] = option
            elif isinstance(option, SharedLayout):
                shared_layouts[choice.name] = option
            elif isinstance(option, Storage):
                stored[choice.name] = option.layout
                if option.used != option.layout:
                    if option.regathered:
                        regathered.add(choice.name)
                    if option.in_passes:
                        gathered_in_passes.add(choice.name)
                    if option.reduced_in_passes:
                        reduced_in_passes.add(choice.name)
            elif choice.kind in ("input", "sent"):
                stored[choice.name] = option
        for parameter, cast in self.casts.items():
            layout = stored[parameter]
            strategies[cast.name] = cast_strategy(cast, layout, self.graph, self.mesh)
        return Decisions(
            self.mesh,
            strategies,
            stored,
            shared_layouts,
            frozenset(regathered),
            frozenset(recomputed),
            frozenset(gathered_in_passes),
            frozenset(reduced_in_passes),
            offloaded=frozenset(offloaded),
        )
