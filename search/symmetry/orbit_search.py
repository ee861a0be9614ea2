"""The exact search over orbits of options.

Mesh axes of one size on one level are interchangeable: permuting them maps a plan to one of equal
cost. The problem has one option for each orbit of options, and prices a tensor between the nearest
elements of two orbits, so its optimum is a lower bound on every plan. If elements of the chosen
orbits fit together (`alignment`), the bound is met. If not, the search is repeated with alignment
penalties, and then among all elements of the orbits that can be part of a better plan (`orbits`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.ir.errors import InfeasibleError, NotFoundError
from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.solving import solve_space
from shardwright.search.space.interning import Interner
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.alignment import align
from shardwright.search.symmetry.orbits import orbit_space
from shardwright.solver.evaluate import evaluate
from shardwright.solver.marginals import options_below
from shardwright.solver.problem import Problem
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

_REACHES = (1 / 4, 1.0)  # parts of the gap in which orbits are searched by element, in turn
_MOST_ELEMENTS = 200_000  # most elements of one search
_ROUNDS = 4  # searches of orbits, the later ones with alignment penalties


def search_orbits(
    space: SearchSpace, planner: RedistributionPlanner, options: SearchOptions
) -> SearchResult:
    """Return the best plan, with a bound on every plan.

    Parameters
    ----------
    space : SearchSpace
        A space whose options are orbits.
    planner : RedistributionPlanner
        Prices redistributions between layouts and between orbits.
    options : SearchOptions
        The limits of the search.

    Raises
    ------
    InfeasibleError
        If it is proven that nothing fits the memory limit.
    NotFoundError
        If nothing was found within the budget.
    """
    best = _search_with_penalties(space, options)
    lowest, unlimited, timed = best.lower_bound, best.unlimited, best.timed
    for reach in () if planner.is_fine else _REACHES:
        if _is_near(best.cost, lowest, options):
            break
        below = lowest + reach * (best.cost - lowest)
        elements = _elements_below(space, planner, below, options)
        if elements is None:
            break
        try:
            found = solve_space(elements, options)
        except InfeasibleError:  # among these elements
            lowest, unlimited = max(lowest, below), False
            continue
        except NotFoundError:
            break
        unlimited, timed = unlimited and found.unlimited, timed or found.timed
        # Every plan with an element of another orbit costs at least `below`.
        lowest = max(lowest, min(found.lower_bound, below))
        best = min(best, found, key=lambda result: result.cost)
    met = relative_gap(best.cost, lowest) <= OPTIMALITY_GAP
    symmetric = len(planner.axis_permutations) > 1
    return replace(
        best,
        lower_bound=min(lowest, best.cost),
        status="optimal" if met else "feasible",
        how=f"{best.how}, by orbits of equal mesh axes" if symmetric else best.how,
        unlimited=unlimited,
        timed=timed,
    )


def _is_near(cost: float, bound: float, options: SearchOptions) -> bool:
    return relative_gap(cost, bound) <= max(options.gap, OPTIMALITY_GAP)


def _elements_below(
    space: SearchSpace,
    planner: RedistributionPlanner,
    below: float,
    options: SearchOptions,
) -> SearchSpace | None:
    """Return the space of all elements of the orbits in plans that cost less than `below`.

    None where there are too many, or the budget is spent.
    """
    orbits = options_below(space.problem, below - space.constant, options.budget)
    if orbits is None:
        return None
    if sum(map(len, orbits)) * len(planner.axis_permutations) > _MOST_ELEMENTS:
        return None
    return orbit_space(space, orbits, planner, options.budget)


def _search_with_penalties(space: SearchSpace, options: SearchOptions) -> SearchResult:
    """Search orbits; where elements do not fit together, again with alignment penalties."""
    first = solve_space(space, options)
    found, best, penalized, unlimited, timed = first, None, space, True, False
    interner = Interner()
    for _ in range(_ROUNDS):
        unlimited, timed = unlimited and found.unlimited, timed or found.timed
        alignment = align(space, found.assignment, interner, options.budget)
        cost = found.cost
        if found is not first:  # without the penalties of the rounds before
            cost = float(evaluate(space.problem, found.assignment).cost) + space.constant
        cost += alignment.alignment_penalty
        if best is None or cost < best.cost:
            decisions, bound = alignment.decisions, first.lower_bound
            best = replace(found, decisions=decisions, cost=cost, lower_bound=bound)
        is_near = _is_near(best.cost, best.lower_bound, options)
        if is_near or not alignment.penalties or options.budget.is_spent:
            break
        penalized = _with_penalties(penalized, alignment.penalties, found.assignment)
        found = solve_space(penalized, options)
    assert best is not None
    return replace(best, unlimited=unlimited, timed=timed)


def _with_penalties(
    space: SearchSpace, penalties: Mapping[int, float], assignment: Sequence[int]
) -> SearchSpace:
    """Return the space with alignment penalties on the pairs of orbits that were chosen."""
    pairs = list(space.problem.pairs)
    for i, penalty in penalties.items():
        pair = pairs[i]
        table = pair.table.copy()
        table[assignment[pair.first], assignment[pair.second]] += penalty
        pairs[i] = replace(pair, table=table)
    return replace(space, problem=Problem(space.problem.variables, tuple(pairs)))
