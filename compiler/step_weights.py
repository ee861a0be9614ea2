"""The weights of the resources of a mesh, by which plans of the least overlapped step are found."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, ResourceWeights
from shardwright.ir.mesh import Mesh

Floats = NDArray[np.float64]
_LINKS = 0.05  # weight of the links together, where the search for weights begins


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
        return self.equal(_LINKS)

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
