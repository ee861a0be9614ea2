"""The methods of `solve`: functions by name. Files outside the package can register more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shardwright.ir.errors import SolverError
from shardwright.ir.registry import Registry
from shardwright.solver.problem import Problem
from shardwright.solver.solution import Solution
from shardwright.solver.work import Budget

MOMENT = 0.05
"""Seconds of work that are too short for another phase, or for another run of CP-SAT."""

MOST_ENTRIES = 1_000_000
"""Largest number of table entries for CP-SAT: building its model takes seconds then."""

ROUGH = 2e-3
"""Gap at which a search is rough: prices on memory often do, so that dominated strategies are only
dropped where they do not, which takes longer than a few eliminations with them."""

DEFAULT_SECONDS = 60.0
"""Seconds of the default budget, which is that of one configuration with effort 1.

At half and at twice, a search does what `--effort 0.5` and `--effort 2` say (`benchmarks/work.md`).
"""

Progress = Callable[[float, float, float], None]
"""Called with seconds, cost and lower bound."""


@dataclass(frozen=True)
class SolveOptions:
    """What a method is told besides the problem.

    Parameters
    ----------
    budget : Budget
        What the search may spend; the best answer known by then is returned.
    seed, workers : int
        For CP-SAT and the local searches. One worker gives the same answer every time.
    progress : callable, optional
        Called with (seconds, cost, lower bound) whenever one of them improves.
    gap : float
        The relative gap between cost and lower bound at which the search stops.
    """

    budget: Budget = field(default_factory=lambda: Budget(DEFAULT_SECONDS))
    seed: int = 0
    workers: int = 1
    progress: Progress | None = None
    gap: float = 0.0


Method = Callable[[Problem, SolveOptions], Solution]

METHODS: Registry[Method] = Registry("solver method", SolverError)

register_method = METHODS.under
"""Register a function as a method of `solve`, under a name; a decorator.

    @register_method("by brute force")
    def enumerate_all(problem, options):
        return brute_force(problem)
"""
