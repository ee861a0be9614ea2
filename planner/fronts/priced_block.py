"""One block with a price on memory: the plan of the least sum of seconds and bytes times a price.

The bytes are those that it holds at its turn from forward to backward: parameters, optimizer states
and what it saves for backward. A problem without a memory limit is solved by elimination, and
prices change its costs alone, so a block is solved at many prices in little time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.ir.errors import NotFoundError
from shardwright.search.space.space import SearchSpace
from shardwright.solver.problem import Array, Identity, Problem
from shardwright.solver.solve import solve
from shardwright.solver.work import Budget

_UNKNOWN = "no bound was found within the budget"


@dataclass(frozen=True)
class Priced:
    """The least sum of seconds and of bytes times their price.

    Parameters
    ----------
    seconds : float
        A lower bound on the sum.
    nbytes : float
        What a plan of about that sum holds, in which others in flight count as often.
    assignment : tuple of int
        That plan; empty of several blocks.
    """

    seconds: float
    nbytes: float
    assignment: tuple[int, ...] = ()


@dataclass
class PricedBlock:
    """One block.

    Parameters
    ----------
    problem : Problem
        Its search space, without a limit.
    held : sequence of array or None
        The bytes that each choice holds from forward to backward, by option; None for none.
    others : callable
        Returns the bytes that it holds of each other micro-batch in flight.
    gap : float
        The relative gap between a sum and its bound at which a search for it stops.
    """

    problem: Problem
    held: Sequence[Array | None]
    others: Callable[[], Sequence[Array | None]]
    gap: float = 0.0
    _found: dict[tuple[float, float], Priced] = field(default_factory=dict)

    def least(self, price: float, in_flight: float, budget: Budget) -> Priced:
        """Return the least sum at a price of a byte.

        Raises
        ------
        NotFoundError
            If no bound was found within the budget.
        """
        key = price, in_flight
        if key not in self._found:
            problem = self._priced(price, price * (in_flight - 1))
            solution = solve(problem, budget=budget.within(budget.left), gap=self.gap)
            if solution.assignment is None:
                raise NotFoundError(_UNKNOWN, hint="allow more effort")
            nbytes = self._bytes(solution.assignment, in_flight - 1)
            bound = float(solution.lower_bound)
            self._found[key] = Priced(bound, nbytes, tuple(solution.assignment))
        return self._found[key]

    def _priced(self, price: float, other_price: float) -> Problem:
        """Return the problem whose costs include those of memory."""
        known: dict[Hashable, Array] = {}
        costs = []
        of_others = self.others() if other_price else [None] * len(self.held)
        rows = zip(self.problem.variables, self.held, of_others, strict=True)
        for variable, held, others in rows:
            key = Identity(variable.cost), id(held), id(others)
            if key not in known:
                cost = variable.cost
                for usage, each in ((held, price), (others, other_price)):
                    if usage is not None and each:
                        cost = cost + each * usage
                known[key] = cost
            costs.append(known[key])
        return self.problem.costing(costs)

    def _bytes(self, assignment: Sequence[int], times: float) -> float:
        found = sum_of(self.held, assignment)
        return found + times * sum_of(self.others(), assignment) if times else found


def sum_of(usages: Sequence[Array | None], assignment: Sequence[int]) -> float:
    """Return the bytes of an assignment, of usages by option."""
    pairs = zip(usages, assignment, strict=True)
    return sum(float(usage[option]) for usage, option in pairs if usage is not None)


def at_turn(space: SearchSpace) -> list[Array | None]:
    """Return the bytes of each variable that it holds in the last moment forward and the next."""
    turn = len(space.graph.nodes)
    return _held(space, turn - 1, turn)


def at_moment(space: SearchSpace, moment: int) -> list[Array | None]:
    """Return the bytes of each variable at a moment; those of the backward pass follow the turn."""
    return _held(space, moment, moment)


def _held(space: SearchSpace, first: int, last: int) -> list[Array | None]:
    """Return the bytes of each variable that it holds over some moments."""
    known: dict[Hashable, Array] = {}
    found: list[Array | None] = []
    for variable in space.problem.variables:
        usages = [use.usage for use in variable.memory if use.start <= first and last < use.end]
        key = tuple(Identity(usage) for usage in usages)
        if key and key not in known:
            known[key] = usages[0] if len(usages) == 1 else np.sum(usages, axis=0)
        found.append(known[key] if key else None)
    return found
