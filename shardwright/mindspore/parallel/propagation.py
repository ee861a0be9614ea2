"""Sharding propagation that leaves devices idle which no strategy uses."""

import numpy as np

from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.search.driver import register_search
from shardwright.search.heuristics.propagation import Floats, ShardingPropagation
from shardwright.search.space.space import Choice


@register_search
class OnlyPropagated(ShardingPropagation):
    """Of strategies that need as little redistribution, takes the one that splits least.

    It is the search of ``sharding_propagation`` with ``fully_use_devices=False``, which splits
    operators as their neighbours are split; the plain one splits them further where that costs no
    redistribution.
    """

    name = "sharding_propagation_alone"
    is_listed = False

    def ties(self, choice: Choice, mesh: Mesh) -> Floats | None:
        """Return among how many ranks each strategy splits its operator."""
        options = choice.options
        if not all(isinstance(option, Strategy) for option in options):
            return None
        return np.array([mesh.extent(_axes(option)) for option in options], float)


def _axes(strategy: object) -> tuple[str, ...]:
    assert isinstance(strategy, Strategy)
    return tuple({axis for axes in strategy.axes.values() for axis in axes})
