"""The weights of the resources of a mesh, by which plans of the least overlapped step are found.

Every plan takes at least the weighted sum of its loads, whatever the weights
(`cost_model.weighted_profile`), so the lower bound of a search by weights bounds the overlapped
step of every plan within the memory limit. The weights that raise the bound most are found by
cutting planes: every plan that was met is a linear function of the weights, and the next search is
made where the least of these functions is highest.

Where intervals of the step are bounded one by one (`cost_model.weighted.intervals`), each has
weights of its own. What may run in several of them makes a plan a concave function of the weights.

References
----------
Kelley, "The cutting-plane method for solving convex programs", 1960.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, LINKS, ResourceWeights
from shardwright.cost_model.weighted.loads import Loads
from shardwright.ir.mesh import Mesh
from shardwright.planner.whole.plan import is_near
from shardwright.solver.linear_program import Cut, highest_grouped_weights

Floats = NDArray[np.float64]
_WORTHWHILE = 0.1  # share of the gap that another search must promise to close
_GAPS = 4  # multiple of the allowed gap that another search must promise to close


@dataclass(frozen=True)
class StepWeights:
    """Arrays of weights, a row an interval and a column a resource that the mesh uses.

    Parameters
    ----------
    mesh, cluster : Mesh, Cluster
        Where the plans run.
    intervals : int
        Number of intervals of the step that have weights of their own.
    passes : int
        Number of micro-batches.
    """

    mesh: Mesh
    cluster: Cluster
    intervals: int = 1
    passes: int = 1

    @cached_property
    def used(self) -> list[int]:
        """The resources of the mesh: the compute stream, the levels of its axes, and the host's."""
        levels = {axis.level for axis in self.mesh.axes if axis.size > 1}
        links = range(len(self.cluster.levels), len(self.cluster.links))
        return [0, *(1 + link for link in (*sorted(levels), *links))]

    @property
    def hosts(self) -> int:
        """Number of links to the host."""
        return len(self.cluster.links) - len(self.cluster.levels)

    @property
    def first(self) -> Floats:
        """The weights by which the search begins, whatever the memory limit."""
        return self.equal(LINKS)

    def equal(self, together: float) -> Floats:
        """Return weights of all intervals in which the links have equal shares."""
        links = len(self.used) - 1 - self.hosts
        shares = [together / max(links, 1)] * links
        return np.array([[1.0 - sum(shares), *shares, *[0.0] * self.hosts]] * self.intervals)

    def of_all(self, weights: Floats) -> ResourceWeights:
        """Return the weights of the resources of the mesh, by interval, as those of all."""
        full = np.full((self.intervals, 1 + len(self.cluster.links)), LEAST_WEIGHT)
        full[:, self.used] = np.maximum(weights, LEAST_WEIGHT)
        full /= full.sum(axis=1, keepdims=True)
        first, *later = (
            ResourceWeights(compute, tuple(levels)) for compute, *levels in full.tolist()
        )
        if all(one == first for one in later):
            return first
        return replace(first, later=tuple(later), passes=self.passes)


class _Met(NamedTuple):
    """A plan that was met: what it takes by any weights, its greatest load, its counted bytes."""

    cut: Cut
    load: float
    memory_bytes: float


@dataclass
class CuttingPlanes:
    """The bound of the searches by weights that were made, and the weights of the next one.

    Parameters
    ----------
    weighting : StepWeights
        The weights of where the plans run.
    gap : float
        Relative gap between a step and the bound that is allowed.
    bound : float
        Proven: no plan has a shorter overlapped step, whatever its buckets.
    least : float
        About the shortest step of the plans that fit, from below.
    """

    weighting: StepWeights
    gap: float
    bound: float = 0.0
    least: float = inf
    center: Floats = field(init=False)  # the weights of the best bound
    _plans: list[_Met] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.center = self.weighting.first

    def within(self, memory_limit: float) -> None:
        """Leave out the plans that exceed a limit by the account of the search.

        The links to the host get a weight: where memory is short, it is not free to offload.
        """
        self._plans = [plan for plan in self._plans if plan.memory_bytes <= memory_limit]
        hosts = self.weighting.hosts
        if hosts:
            self.center *= 1 - LINKS
            self.center[:, -hosts:] = LINKS / hosts

    def add(self, loads: Loads, memory_bytes: float) -> None:
        """Add what a plan takes by any weights, and its memory by the account of the search."""
        place = {resource: i for i, resource in enumerate(self.weighting.used)}
        cut = {
            (among, tuple(place[resource] for resource in occupied)): seconds
            for (among, occupied), seconds in loads.seconds.items()
        }
        self._plans.append(_Met(cut, float(loads.total.max()), memory_bytes))

    def rise(self, bound: float, weights: Floats) -> None:
        """Take the bound of a search by some weights, if it is the highest."""
        if bound >= self.bound:
            self.bound = bound
            self.center = self.center if _is_compute(weights) else weights

    def next(self, shortest: float, *, is_short: bool) -> Floats | None:
        """Return the weights by which the bound may rise; None where it is near enough.

        The weights of the highest point of the cuts can be extreme, and the plan that is best by
        them useless: the search is made between them and the weights of the best bound so far. Only
        the compute stream alone is taken as it is, for then the links hardly matter, unless memory
        is short: what takes no time there would be anything that takes memory.

        Parameters
        ----------
        shortest : float
            The shortest step so far.
        is_short : bool
            Whether memory is short.
        """
        if is_near(shortest, self.bound, self.gap):
            return None
        if not self._plans:
            return self.center
        least = self.least if self.least < inf else min(plan.load for plan in self._plans)
        step = max(self.bound, least)
        worthwhile = max(_WORTHWHILE * (step - self.bound), _GAPS * self.gap * self.bound)
        intervals, size = self.weighting.intervals, len(self.weighting.used)
        height, weights = highest_grouped_weights(
            [plan.cut for plan in self._plans], intervals, size
        )
        if min(height, step) - self.bound <= worthwhile:
            return None
        return weights if _is_compute(weights) and not is_short else (weights + self.center) / 2


def _is_compute(weights: Floats) -> bool:
    return bool(weights[:, 0].min() > 1 - LEAST_WEIGHT)
