"""The search space: one assignment problem that holds every decision about a program.

A variable for every operator (its strategies), every parameter (how it is stored, and how it is
gathered for its reader), every input, and every tensor with several readers (where they meet). A
pairwise table for every tensor between two of them: the cost to bring it there, and its gradient
back. What is held in memory when, `space_memory` tells; where the gradient keeps what one of the
several readers of a parameter takes, a variable of its own (``copy``) tells whether that lies
beside what they have met at.

Equal layers have equal tables *by reference*: a model of 96 layers holds as many distinct tables as
one of two, and a solver can do the work once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright.cost_model.profile import EdgeLayout
from shardwright.ir.decisions import Decisions, SharedLayout
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.solver.problem import Problem


@dataclass(frozen=True)
class Storage:
    """How a parameter is stored, and as what its reader takes it.

    Parameters
    ----------
    layout : Layout
        As which it is stored, and updated.
    used : Layout or None
        As which it is gathered; None where several readers decide for themselves.
    again : bool
        Whether it is gathered again for the gradient instead of being kept.
    """

    layout: Layout
    used: Layout | None = None
    again: bool = False

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Storage":
        """Return the same with other axes in the place of these."""
        used = None if self.used is None else self.used.renamed(names, mesh)
        return Storage(self.layout.renamed(names, mesh), used, self.again)


Option = Strategy | Storage | SharedLayout | Layout


@dataclass(frozen=True, eq=False)
class Choice:
    """One variable: what is decided, and what the options are.

    Parameters
    ----------
    kind : str
        ``operator``, ``parameter``, ``input``, ``tensor``, ``copy`` or ``output``.
    name : str
        The node, parameter, input or tensor.
    options : tuple of Option
        What it can be.
    """

    kind: str
    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, eq=False)
class Edge:
    """What a pairwise table prices: a tensor between the options of two choices.

    Parameters
    ----------
    tensor : TensorType
        Its type.
    sources, targets : tuple of EdgeLayout
        How it lies, and its gradient, for each option of the one and of the other choice.
    """

    tensor: TensorType
    sources: tuple[EdgeLayout, ...]
    targets: tuple[EdgeLayout, ...]


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
        What each pair of the problem prices; the pairs after those tell which copies are kept.
    constant : float
        Cost of the program that no choice changes.
    pinned : frozenset of str
        Operators whose strategy a person has fixed.
    """

    graph: Graph
    mesh: Mesh
    choices: tuple[Choice, ...]
    problem: Problem
    edges: tuple[Edge, ...]
    constant: float = 0.0
    pinned: frozenset[str] = frozenset()

    @cached_property
    def position(self) -> dict[tuple[str, str], int]:
        """Variable of each (kind, name)."""
        return {(choice.kind, choice.name): i for i, choice in enumerate(self.choices)}

    def decisions(self, assignment: Sequence[int]) -> Decisions:
        """Return what an assignment decides."""
        pairs = zip(self.choices, assignment, strict=True)
        return self.decide([choice.options[chosen] for choice, chosen in pairs])

    def decide(self, options: Sequence[Option]) -> Decisions:
        """Return what an option for each choice decides."""
        strategies: dict[str, Strategy] = {}
        stored: dict[str, Layout] = {}
        shared_layouts: dict[str, SharedLayout] = {}
        again: set[str] = set()
        for choice, option in zip(self.choices, options, strict=True):
            if isinstance(option, Strategy):
                strategies[choice.name] = option
            elif isinstance(option, SharedLayout):
                shared_layouts[choice.name] = option
            elif isinstance(option, Storage):
                stored[choice.name] = option.layout
                if option.again and option.used != option.layout:
                    again.add(choice.name)
            elif choice.kind == "input":
                stored[choice.name] = option
        return Decisions(self.mesh, strategies, stored, shared_layouts, frozenset(again))
