"""Exact search: eliminations, prices on memory, and what remains to CP-SAT.

1. Variable elimination without memory. If the optimum fits, it is the answer.
2. Otherwise prices on the memory rows give a bound and assignments that fit.
3. A strategy whose best assignment (at the best prices) costs as much as the one in hand goes;
   steps 2 and 3 repeat while that helps.
4. CP-SAT searches what is left.

What is too wide for elimination in the time, or too large for CP-SAT, goes to message passing.

Ties: the elimination takes the lowest strategy index among equal ones, variable by variable in the
reverse of the elimination order; of equal assignments the first one found stays.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from shardwright.solver.elimination import MESSAGE_LIMIT, Elimination, OutOfTimeError
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.coordinate_descent import descend
from shardwright.solver.exact.dual import Dual, DualState, Piece, maximise_bound
from shardwright.solver.exact.frontier import Frontier
from shardwright.solver.exact.integer_scaling import IS_FAST, solve_whole
from shardwright.solver.exact.path_relinking import along, blend
from shardwright.solver.memory import MemoryRows
from shardwright.solver.network import (
    Network,
    build_network,
    drop_dominated,
    drop_forbidden,
    fold_decided,
    restrict,
)
from shardwright.solver.problem import Problem
from shardwright.solver.solution import OPTIMALITY_GAP, Solution, Status, relative_gap

PRUNING_GAP = OPTIMALITY_GAP / 10
"""What is not better than the assignment in hand by this much, relatively, is not looked at."""

FIRST_WIDTH = 200
"""States of a Pareto front at first; it grows by `WIDENING` until `LAST_WIDTH`."""

WIDENING = 10

LAST_WIDTH = 20_000

FIRST_REACH = 1 / 64
"""Part of the gap that is searched at first."""

LONGER_REACH = 8

PATIENCE = 1 / 4
"""Part of the time limit that one elimination may take."""

SMALLER = 16
"""Messages are made so much smaller when they take too long."""

LEAST_MESSAGE = 2**12
"""They are not made smaller than this."""

BLENDED = 3
"""Answers that fit, and that do not, which are blended with each other."""

MOST_ENTRIES = 1_000_000
"""Entries of all tables together that CP-SAT is given: building its model takes seconds then."""

MOST_ROWS = 32
"""With more rows the fronts hardly prune."""

SHRINKING = 0.9
"""Fixing is repeated while it leaves at most this part of the strategies."""

FREE = np.zeros(0)
"""The prices where memory has none."""

Progress = Callable[[float, float, float], None]
"""Called with seconds, cost and lower bound."""


@dataclass
class Incumbent:
    """The best assignment and the best bound so far.

    Parameters
    ----------
    problem : Problem
    deadline : float
        On the monotonic clock.
    """

    problem: Problem
    deadline: float
    progress: Progress | None = None
    started: float = field(default_factory=time.monotonic)
    assignment: tuple[int, ...] | None = None
    cost: float = math.inf
    bound: float = -math.inf
    set_aside: float = math.inf
    how: str = "variable elimination"
    message_limit: int = MESSAGE_LIMIT
    allowed_gap: float = 0.0

    def __post_init__(self) -> None:
        arrays = [variable.cost for variable in self.problem.variables]
        arrays += [pair.table for pair in self.problem.pairs]
        self.whole = all(array.dtype.kind == "i" for array in arrays)

    def offer(self, assignment: tuple[int, ...]) -> None:
        """Keep the assignment if it is feasible and the best so far."""
        result = evaluate(self.problem, assignment)
        if result.feasible and result.cost < self.cost:
            self.assignment, self.cost = assignment, result.cost
            self._report()

    def raise_bound(self, bound: float) -> None:
        """Keep a bound on everything not set aside."""
        bound = min(bound, self.set_aside)
        if self.whole and math.isfinite(bound):
            bound = math.ceil(bound)
        if bound > self.bound:
            self.bound = bound
            self._report()

    def cutoff(self) -> float:
        """Return what an assignment must cost less than, and set aside all that do not."""
        worth = self.cost - (0.5 if self.whole else PRUNING_GAP * abs(self.cost))
        self.set_aside = min(self.set_aside, worth)
        return worth

    def within(self, reach: float) -> float:
        """Return a cost that this part of the gap lies below."""
        if reach >= 1:
            return self.cutoff()
        gap = self.cost - self.bound if math.isfinite(self.cost) else abs(self.bound)
        return self.bound + reach * gap

    @property
    def gap(self) -> float:
        """How far the cost is above the bound, relatively."""
        return math.inf if self.assignment is None else relative_gap(self.cost, self.bound)

    @property
    def closed(self) -> bool:
        """Whether the bound is as near to the cost as was asked for."""
        return self.gap <= max(OPTIMALITY_GAP, self.allowed_gap)

    @property
    def remaining(self) -> float:
        """Seconds left."""
        return self.deadline - time.monotonic()

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(time.monotonic() - self.started, self.cost, self.bound)

    def solution(self, statistics: dict[str, float]) -> Solution:
        """Return the answer as it stands."""
        status: Status = "unknown"
        if self.gap <= OPTIMALITY_GAP:
            status = "optimal"
        elif self.assignment is not None:
            status = "feasible"
        elif self.bound == math.inf:
            status = "infeasible"
        return Solution(
            assignment=self.assignment,
            cost=self.cost,
            lower_bound=min(self.bound, self.cost),
            status=status,
            how=self.how,
            seconds=time.monotonic() - self.started,
            statistics=statistics,
        )


def solve_exact(
    problem: Problem,
    time_limit: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    gap: float = 0.0,
) -> Solution:
    """Return the cheapest assignment with a bound that proves how good it is."""
    incumbent = Incumbent(problem, time.monotonic() + time_limit, progress, allowed_gap=gap)
    statistics: dict[str, float] = {
        "variables": len(problem.variables),
        "pairs": len(problem.pairs),
    }
    network = fold_decided(drop_forbidden(build_network(problem)))
    if network.empty:
        incumbent.raise_bound(math.inf)
        return incumbent.solution(statistics)
    try:
        _without_memory(network, incumbent, statistics)
        if not incumbent.closed and incumbent.bound < math.inf:
            _with_memory(network, incumbent, statistics, seed, workers)
    except OutOfTimeError:
        _pass_messages(incumbent, seed, workers)
    return incumbent.solution(statistics)


def _without_memory(network: Network, incumbent: Incumbent, statistics: dict[str, float]) -> None:
    """Solve the problem as if memory were free; often that is the answer."""
    free = Network(
        network.unary,
        network.tables,
        network.labels,
        [()] * len(network.unary),
        np.inf,
        network.arrays,
    )
    bound, choice, elimination = _relaxed(free, incumbent)
    incumbent.offer(choice)
    incumbent.raise_bound(bound)
    statistics["messages"] = elimination.messages_computed
    statistics["largest_message"] = elimination.largest_message


def _relaxed(network: Network, incumbent: Incumbent) -> tuple[float, tuple[int, ...], Elimination]:
    """Eliminate with messages as large as the time allows; smaller ones give a weaker bound.

    Where message passing is fast, it does better than smaller messages: `OutOfTimeError` is raised.
    """
    patience = PATIENCE * incumbent.remaining
    while True:
        limit = incumbent.message_limit
        elimination = Elimination(network.sizes, network.tables, limit)
        if not elimination.exact:
            network = drop_dominated(network, respect_memory=False)
            elimination = Elimination(network.sizes, network.tables, limit)
        elimination.patience = patience if limit > LEAST_MESSAGE else math.inf
        try:
            bound, piece = Dual(network, MemoryRows(network, np.inf), elimination).evaluate(FREE)
            return bound, network.lift(piece.choice), elimination
        except OutOfTimeError:
            if IS_FAST:
                raise
            incumbent.message_limit //= SMALLER


def _with_memory(
    network: Network,
    incumbent: Incumbent,
    statistics: dict[str, float],
    seed: int,
    workers: int,
) -> None:
    """Raise the bound by prices, fix strategies, and leave the rest to CP-SAT."""
    network = drop_dominated(network, respect_memory=True)
    width = FIRST_WIDTH
    while not network.empty and width <= LAST_WIDTH:
        rows = MemoryRows(network, network.limit)
        if rows.hopeless:
            break
        statistics |= {"strategies": sum(network.sizes), "memory_rows": len(rows)}
        elimination = Elimination(network.sizes, network.tables, incumbent.message_limit)
        if not len(rows) and not elimination.exact:
            break  # the bound would be that without memory again
        dual = Dual(network, rows, elimination)
        state = _price(dual, incumbent)
        if incumbent.assignment is None:
            _make_fit(dual, state, incumbent)
        if incumbent.closed:
            return
        _search_fronts(dual, state, incumbent, width)
        if incumbent.closed or incumbent.remaining <= 0:
            return
        smaller = _fix(dual, state, incumbent)
        if sum(smaller.sizes) > SHRINKING * sum(network.sizes):
            width *= WIDENING
        network = smaller
    rows = MemoryRows(network, network.limit)
    if network.empty or rows.hopeless:
        incumbent.raise_bound(math.inf)
    else:
        incumbent.how += ", cp-sat"
        _close_by_integers(network, rows, incumbent, seed, workers)


def _price(dual: Dual, incumbent: Incumbent) -> DualState:
    def on_fit(piece: Piece) -> float:
        better = descend(dual.network, dual.rows, piece.choice)
        incumbent.offer(dual.network.lift(better))
        return incumbent.cost

    incumbent.how = "variable elimination, memory prices"
    state = maximise_bound(dual, on_fit, lambda: incumbent.remaining > 0)
    incumbent.raise_bound(state.bound)
    _blend(dual, state, incumbent)
    return state


def _blend(dual: Dual, state: DualState, incumbent: Incumbent) -> None:
    """Offer what lies between the answers that fit and those that do not."""
    order = along(dual.network)
    values = [piece.constant + float(piece.slope @ state.prices) for piece in state.pieces]
    near = [state.pieces[i] for i in np.argsort(values, kind="stable")]
    fitting = [piece for piece in near if piece.fits][:BLENDED]
    cheap = [piece for piece in near if not piece.fits][:BLENDED]
    for one, other, way in product(fitting, cheap, (order, order[::-1])):
        if incumbent.closed or incumbent.remaining <= 0:
            return
        found = blend(dual.network, dual.rows, way, one.choice, other.choice)
        better = descend(dual.network, dual.rows, found)
        incumbent.offer(dual.network.lift(better))


def _make_fit(dual: Dual, state: DualState, incumbent: Incumbent) -> None:
    """Raise all prices until an assignment fits."""
    prices = state.prices
    if not prices.size:
        return
    if not prices.any():
        prices = np.full(len(prices), abs(state.bound) / max(float(dual.rows.capacity.max()), 1.0))
    for factor in (1.01, 1.1, 2.0, 10.0, 1e3, 1e6):
        _, piece = dual.evaluate(prices * factor)
        if piece.fits:
            incumbent.offer(dual.network.lift(descend(dual.network, dual.rows, piece.choice)))
            return


def _fix(dual: Dual, state: DualState, incumbent: Incumbent) -> Network:
    """Drop the strategies that cannot be part of a better assignment."""
    if incumbent.assignment is None:
        return dual.network
    value, _ = dual.evaluate(state.prices)
    if not dual.elimination.can_complete:
        return dual.network
    marginals = dual.elimination.marginals()
    # `value` is rounded down by more than any marginal may be too high.
    margin = (value - state.bound) + incumbent.cutoff()
    error = abs(value) * 1e-12
    keep = {}
    for index, marginal in enumerate(marginals):
        mask = marginal < margin + error
        if not mask.all():
            keep[index] = mask
    return drop_dominated(restrict(dual.network, keep), respect_memory=True)


def _search_fronts(dual: Dual, state: DualState, incumbent: Incumbent, width: int) -> None:
    """Search with Pareto fronts on the rows with a price, and on those found violated.

    Fronts are short while the cutoff is near the bound, so the search starts with a part of the
    gap and takes more of it while nothing is found there.
    """
    matter = [int(row) for row in np.flatnonzero(state.prices)]
    if not matter or not dual.elimination.can_complete:
        return
    dual.evaluate(state.prices)
    incumbent.how = "variable elimination, memory prices, fronts"
    reach = FIRST_REACH
    while not incumbent.closed and incumbent.remaining > 0 and len(matter) <= MOST_ROWS:
        frontier = Frontier(dual.network, dual.rows, state.prices, matter, dual.elimination)
        cutoff = incumbent.within(reach)
        answer = frontier.search(cutoff, width, lambda: incumbent.remaining > 0)
        incumbent.raise_bound(answer.bound)
        if answer.choice is None:
            if reach >= 1:
                return
            # Something was set aside: no proof with this width, but perhaps something better.
            reach = 1 if answer.bound < cutoff else reach * LONGER_REACH
            continue
        slope = dual.piece(answer.choice).slope
        if not (slope > 0).any():
            better = descend(dual.network, dual.rows, answer.choice)
            incumbent.offer(dual.network.lift(better))
            return
        matter.append(int(slope.argmax()))


def _close_by_integers(
    network: Network, rows: MemoryRows, incumbent: Incumbent, seed: int, workers: int
) -> None:
    if sum(table.size for table in network.tables.values()) > MOST_ENTRIES:
        if IS_FAST:
            _pass_messages(incumbent, seed, workers)
        return
    # Loading CP-SAT takes half a second, which most plans never need.
    integer = importlib.import_module("shardwright.solver.exact.integer")
    model = integer.IntegerModel(network, rows, incumbent.bound)
    hint = None if incumbent.assignment is None else _positions(network, incumbent.assignment)
    answer = model.solve(hint, incumbent.remaining, workers, seed)
    if answer.choice is not None:
        incumbent.offer(network.lift(answer.choice))
    incumbent.raise_bound(answer.lower_bound)


def _pass_messages(incumbent: Incumbent, seed: int, workers: int) -> None:
    """Search what is too wide for elimination and too large for CP-SAT as long as time allows."""
    incumbent.how = "message passing"
    about = incumbent.cost if math.isfinite(incumbent.cost) else incumbent.bound
    limit, gap = max(incumbent.remaining, 0.0), incumbent.allowed_gap
    answer = solve_whole(incumbent.problem, about, limit, seed, workers, gap)
    if answer.assignment is not None:
        incumbent.offer(answer.assignment)
    incumbent.raise_bound(answer.lower_bound)


def _positions(network: Network, assignment: Sequence[int]) -> list[int | None]:
    """Where each chosen strategy stands in the network, ``None`` if it has been dropped."""
    places: list[int | None] = []
    for labels, strategy in zip(network.labels, assignment, strict=True):
        found = np.flatnonzero(labels == strategy)
        places.append(int(found[0]) if found.size else None)
    return places
