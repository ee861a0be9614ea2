"""Strategy search: the one entry, and the registry of methods.

A method from outside the package:

    @register_search
    class Replicated(Heuristic):
        name = "replicated"

        def assignment(self, space):
            return complete(space, {node.name: Strategy() for node in space.graph.nodes})
"""

import time
from dataclasses import replace
from typing import TypeVar

from shardwright.ir.registry import Registry
from shardwright.search.exact import DynamicProgramming, Exact
from shardwright.search.heuristics.baselines import DataParallel, FullySharded, TensorParallel
from shardwright.search.heuristics.propagation import ShardingPropagation
from shardwright.search.heuristics.recursive import RecursiveProgramming
from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.space.space import SearchSpace

SEARCHES: Registry[type[SearchMethod]] = Registry("search")
"""The methods by name; the names are the values of the option ``search``."""

Method = TypeVar("Method", bound=type[SearchMethod])


def register_search(method: Method) -> Method:
    """Register a search method under its name.

    Raises
    ------
    OptionError
        If another method has that name.
    """
    SEARCHES.add(method.name, method)
    return method


register_search(Exact)
register_search(DynamicProgramming)
register_search(RecursiveProgramming)
register_search(ShardingPropagation)
register_search(DataParallel)
register_search(TensorParallel)
register_search(FullySharded)


def search(
    space: SearchSpace, method: str = "exact", options: SearchOptions | None = None
) -> SearchResult:
    """Choose an option for every choice of a space.

    Parameters
    ----------
    space : SearchSpace
        The choices, and their costs.
    method : str
        A name of the registry `SEARCHES`.
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
    begin = time.perf_counter()
    result = SEARCHES[method]().find(space, options or SearchOptions())
    return replace(result, seconds=time.perf_counter() - begin)
