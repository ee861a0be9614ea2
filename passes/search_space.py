"""The search space: one assignment problem that holds every decision about a program.

A variable for every operator (its strategies), every parameter (how it is stored, and how it is
gathered for its reader), every input, and every tensor with several readers (where they meet). A
pairwise table for every tensor between two of them: the cost to bring it there, and its gradient
back. Memory is counted where the gradient keeps a tensor, from its forward node to the mirror image
of that node in the backward program.

Equal layers have equal tables *by reference*: a model of 96 layers holds as many distinct tables as
one of two, and a solver can do the work once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.passes.partition import Decisions, Meeting
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


Option = Strategy | Storage | Meeting | Layout


@dataclass(frozen=True, eq=False)
class Choice:
    """One variable: what is decided, and what the options are.

    Parameters
    ----------
    kind : str
        ``operator``, ``parameter``, ``input``, ``tensor`` or ``output``.
    name : str
        The node, parameter, input or tensor.
    options : tuple of Option
        What it can be.
    """

    kind: str
    name: str
    options: tuple[Option, ...]


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
    constant : float
        Cost of the program that no choice changes.
    pinned : frozenset of str
        Operators whose strategy a person has fixed.
    """

    graph: Graph
    mesh: Mesh
    choices: tuple[Choice, ...]
    problem: Problem
    constant: float = 0.0
    pinned: frozenset[str] = frozenset()

    @cached_property
    def position(self) -> dict[tuple[str, str], int]:
        """Variable of each (kind, name)."""
        return {(choice.kind, choice.name): i for i, choice in enumerate(self.choices)}

    def decisions(self, assignment: Sequence[int]) -> Decisions:
        """Return what an assignment decides."""
        strategies: dict[str, Strategy] = {}
        stored: dict[str, Layout] = {}
        meetings: dict[str, Meeting] = {}
        again: set[str] = set()
        for choice, chosen in zip(self.choices, assignment, strict=True):
            option = choice.options[chosen]
            if isinstance(option, Strategy):
                strategies[choice.name] = option
            elif isinstance(option, Meeting):
                meetings[choice.name] = option
            elif isinstance(option, Storage):
                stored[choice.name] = option.layout
                if option.again and option.used != option.layout:
                    again.add(choice.name)
            elif choice.kind == "input":
                stored[choice.name] = option
        return Decisions(self.mesh, strategies, stored, meetings, frozenset(again))
