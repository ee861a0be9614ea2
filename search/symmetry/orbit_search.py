"""The exact search: first by class of options, then, where need be, option by option.

Axes of one size on one level are alike, so most options differ by a renaming of axes only. One of
each class is searched, with tensors priced between the nearest of two classes: no plan costs less.
If options of the chosen classes fit together (`alignment`), the plan costs just that. If not, the
classes that can be part of a better plan are searched by option (`elements`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.decisions import Decisions
from shardwright.ir.errors import InfeasibleError, NotFoundError
from shardwright.search.driver import Progress, SearchResult, search
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.alignment import align
from shardwright.search.symmetry.orbits import orbit_space
from shardwright.solver.evaluate import evaluate
from shardwright.solver.marginals import options_below
from shardwright.solver.problem import Problem
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_REACHES = (1 / 4, 1.0)  # parts of the gap that are searched by option in turn
_MOST_OPTIONS = 200_000  # that are searched at once
_ROUNDS = 4  # searches by class, the later ones with alignment_penalty


def search_orbits(
    space: SearchSpace,
    planner: RedistributionPlanner,
    memory_limit: float | None = None,
    time_limit: float = 60.0,
    progress: Progress | None = None,
    gap: float = 0.0,
    fixed: frozenset[str] = frozenset(),
) -> tuple[SearchResult, Decisions]:
    """Choose the best plan.

    Parameters
    ----------
    space : SearchSpace
        What there is to choose, by class.
    planner : RedistributionPlanner
        Prices the ways between layouts.
    memory_limit, time_limit, progress, gap
        As for `strategy_search.search`.
    fixed : frozenset of str
        Inputs whose layout is given.

    Returns
    -------
    SearchResult, Decisions
        The result is of the space by class, or of the options searched after it.

    Raises
    ------
    InfeasibleError
        If it is proven that nothing fits the memory limit.
    NotFoundError
        If nothing was found in the time.
    """
    begin = time.perf_counter()

    def remaining() -> float:
        return max(time_limit - (time.perf_counter() - begin), 0.0)

    best, decisions = _aligned(space, planner, fixed, memory_limit, remaining, progress, gap)
    lowest = best.lower_bound
    for reach in () if planner.is_fine else _REACHES:
        if relative_gap(best.cost, lowest) <= max(gap, OPTIMALITY_GAP):
            break
        below = lowest + reach * (best.cost - lowest)
        classes = options_below(space.problem, below - space.constant, remaining())
        if classes is None or sum(map(len, classes)) * len(planner.renamings) > _MOST_OPTIONS:
            break
        elements = orbit_space(space, classes, planner, fixed, remaining())
        if elements is None:
            break
        try:
            found = search(elements, "exact", memory_limit, remaining(), progress, gap)
        except InfeasibleError:  # among these options
            lowest = max(lowest, below)
            continue
        except NotFoundError:
            break
        # What is no image of a class that was kept costs at least `below`.
        lowest = max(lowest, min(found.lower_bound, below))
        if found.cost < best.cost:
            best, decisions = found, elements.decisions(found.assignment)
    met = relative_gap(best.cost, lowest) <= OPTIMALITY_GAP
    how = f"{best.how}, by class of like axes" if len(planner.renamings) > 1 else best.how
    status = "optimal" if met else "feasible"
    bound, seconds = min(lowest, best.cost), time.perf_counter() - begin
    result = replace(best, lower_bound=bound, status=status, seconds=seconds, how=how)
    return result, decisions


def _aligned(
    space: SearchSpace,
    planner: RedistributionPlanner,
    fixed: frozenset[str],
    memory_limit: float | None,
    remaining: Callable[[], float],
    progress: Progress | None,
    gap: float,
) -> tuple[SearchResult, Decisions]:
    """Search by class; where options do not fit together, again with alignment penalties."""
    first = search(space, "exact", memory_limit, remaining(), progress, gap)
    found, best, decisions, dearer = first, None, None, space
    for _ in range(_ROUNDS):
        aligned = align(space, found.assignment, planner, fixed, remaining())
        at_least = found.cost
        if found is not first:  # what it costs without the alignment_penalty that were added
            at_least = float(evaluate(space.problem, found.assignment).cost) + space.constant
        if best is None or at_least + aligned.alignment_penalty < best.cost:
            best = replace(
                found, cost=at_least + aligned.alignment_penalty, lower_bound=first.lower_bound
            )
            decisions = aligned.decisions
        near = relative_gap(best.cost, best.lower_bound) <= max(gap, OPTIMALITY_GAP)
        if near or not aligned.broken or remaining() <= 0:
            break
        dearer = _with_penalties(dearer, aligned.broken, found.assignment)
        found = search(dearer, "exact", memory_limit, remaining(), progress, gap)
    assert best is not None
    assert decisions is not None
    return best, decisions


def _with_penalties(
    space: SearchSpace, broken: Mapping[int, float], assignment: Sequence[int]
) -> SearchSpace:
    """Return a space in which what did not fit costs more."""
    pairs = list(space.problem.pairs)
    for i, penalty in broken.items():
        pair = pairs[i]
        table = pair.table.copy()
        table[assignment[pair.first], assignment[pair.second]] += penalty
        pairs[i] = replace(pair, table=table)
    return replace(space, problem=Problem(space.problem.variables, tuple(pairs)))
