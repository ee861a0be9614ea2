"""The methods that minimise cost with a solver."""

from shardwright.search.method import SearchMethod, SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.solving import solve_space
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.orbit_search import search_orbits


class Exact(SearchMethod):
    """The cheapest assignment, with a proof; of orbits first, where the space has them."""

    name = "exact"
    keeps_memory_limit = minimizes_cost = by_orbit = recomputes = minimizes_step = True

    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Search orbits or single options, as the space is built."""
        if space.planner is not None:
            return search_orbits(space, space.planner, options)
        return solve_space(space, options)


class DynamicProgramming(SearchMethod):
    """MindSpore's dynamic programming, which is exact on some graphs only."""

    name = "dynamic_programming"
    keeps_memory_limit = minimizes_cost = True

    def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
        """Eliminate operators and edges as MindSpore does."""
        return solve_space(space, options, "dynamic_programming")
