"""Strategy search: the one entry, and the registry of methods.

A method from outside the package:

    @register_search
    class Replicated(Heuristic):
        name = "replicated"

        def assignment(self, space):
            return complete(space, {node.name: Strategy() for node in space.graph.nodes})
"""

from dataclasses import replace

from shardwright.ir.errors import PassError
from shardwright.ir.registry import Registry, explained
from shardwright.search.exact import DynamicProgramming, Exact
from shardwright.search.heuristics.baselines import DataParallel, FullySharded, TensorParallel
from shardwright.search.heuristics.propagation import ShardingPropagation
from shardwright.search.heuristics.recursive import RecursiveProgramming
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace
from shardwright.solver.solution import OPTIMALITY_GAP, relative_gap

SEARCHES: Registry[type[SearchMethod]] = Registry("search", base=SearchMethod)
"""The methods by name; the names are the values of the option ``search``."""

register_search = SEARCHES.registered
"""Register a search method, a class, under its name; a decorator."""

register_search(Exact)
register_search(DynamicProgramming)
register_search(RecursiveProgramming)
register_search(ShardingPropagation)
register_search(DataParallel)
register_search(TensorParallel)
register_search(FullySharded)


def search(
    space: SearchSpace,
    method: str | SearchMethod = "exact",
    options: SearchOptions | None = None,
) -> SearchResult:
    """Choose an option for every choice of a space.

    Parameters
    ----------
    space : SearchSpace
        The choices, and their costs.
    method : str or SearchMethod
        A name of the registry `SEARCHES`, or the method itself.
    options : SearchOptions, optional
        The limits of the search.

    Raises
    ------
    OptionError
        If no method has that name.
    InfeasibleError
        If it is proven that nothing fits the memory limit.
    NotFoundError
        If nothing was found that does.
    """
    options = options or SearchOptions()
    found = SEARCHES[method]() if isinstance(method, str) else method
    with explained(found, f"the search `{found.name}`", PassError):
        result = found.find(space, options)
    _check(result, found.name)
    return replace(result, seconds=options.budget.spent)


def _check(result: object, method: str) -> None:
    """Refuse an answer that contradicts itself.

    Raises
    ------
    PassError
        If the lower bound exceeds the cost, or the answer is no `SearchResult`.
    """
    if not isinstance(result, SearchResult):
        raise PassError(
            f"the search `{method}` returns {type(result).__name__}, expected a `SearchResult`"
        )
    if not 0 <= result.lower_bound <= result.cost * (1 + OPTIMALITY_GAP):
        raise PassError(
            f"the search `{method}` returns the lower bound {result.lower_bound:g} for a plan of "
            f"cost {result.cost:g}, expected a bound from 0 to the cost",
            hint="return 0.0 where nothing is proven",
        )
    proven = relative_gap(result.cost, result.lower_bound) <= OPTIMALITY_GAP
    if result.status not in ("optimal", "feasible") or (result.status == "optimal") > proven:
        raise PassError(
            f"the search `{method}` returns the status `{result.status}` with the gap "
            f"{relative_gap(result.cost, result.lower_bound):g}, expected `feasible`"
        )
