"""The time of a collective over a group of ranks: a set of mesh axes on a cluster.

The time of every algorithm is linear in the bytes (Hockney's model): latency plus bytes times
seconds per byte. For n ranks, links of latency a and b seconds per byte, and bytes as in ``KINDS``:

=============== ==================== ============================== ================================
kind            algorithm            latency                        seconds per byte
=============== ==================== ============================== ================================
all_reduce      ring                 2 (n-1) a                      2 (n-1)/n b
all_reduce      tree                 2 log2(n) a                    2 b
reduce_scatter  ring                 (n-1) a                        (n-1)/n b
reduce_scatter  tree                 as all_reduce, keeping the part of the rank
all_gather                           as reduce_scatter, run backwards
broadcast       ring (a chain)       (n-1) a                        b
broadcast       tree                 log2(n) a                      b
all_to_all      pairwise             (n-1) a                        (n-1)/n b
all_to_all      bruck                log2(n) a                      log2(n)/2 b
permute, send   direct               a                              b
=============== ==================== ============================== ================================

log2 is rounded up; trees are pairs of binary trees that carry half of the bytes each, pipelined.

A group that spans levels can also go hierarchically, from the innermost level outwards: scatter
inside, so that each rank carries 1/n of the bytes across, and gather inside; or, for few bytes,
level by level on all bytes. A ring that spans levels has the speed of its slowest link.
The links of a level attain a share of their bandwidth where the cluster file gives one, and may
send in several ways (``Protocol``), of which every message takes the fastest: few bytes attain less
of the bandwidth; or they have a latency and a bandwidth of each kind of collective that was
measured. Where its messages were measured by their bytes (``MessageTimes``), an algorithm of k
latencies and c bytes in a group of one level takes k messages of c/k bytes. A ring through several
devices of a node, but not all, may attain less of the bandwidth between nodes
(``LinkEfficiency.several``). Every collective takes the skew of its ranks too: log2(n) times that
of a pair, in each level.
``Level.bandwidth`` is the rate of a device while all others send too, so concurrent groups of a
mesh on one level do not slow each other further.

Knows no operator.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
2005. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
2009. Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", 2009.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import product
from math import log2, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster, Level
from shardwright.cost_model.efficiency.figures import MessageTimes
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import MeshAxis

_PAIRWISE = ("permute", "send")  # no rank waits for the last of a group
_RINGS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")  # and trees

KINDS = {
    "all_reduce": "bytes of the buffer on a rank",
    "reduce_scatter": "bytes of the buffer on a rank before the collective: n times its result",
    "all_gather": "bytes of the gathered result, which is n times the buffer on a rank",
    "broadcast": "bytes of the buffer",
    "all_to_all": "bytes of the buffer on a rank, of which 1/n stays there",
    "permute": "bytes of the buffer on a rank",
    "send": "bytes of the buffer",
}
"""The collectives, and the meaning of their bytes."""


class Algorithm(NamedTuple):
    """One algorithm of a collective, with its time as a linear function of the bytes."""

    name: str
    latency_seconds: float
    seconds_per_byte: float


class CollectiveCost(NamedTuple):
    """The time of a collective by its cheapest algorithm."""

    seconds: float
    algorithm: str


class _Stage(NamedTuple):
    """The ranks of a group that the links of one level connect."""

    size: int
    latency: float
    seconds_per_byte: float

    @property
    def depth(self) -> int:
        """Depth of a binary tree over the ranks: log2 rounded up."""
        return (self.size - 1).bit_length()


class _Links(NamedTuple):
    """The ranks of a group that a level connects, in each way that its links send."""

    size: int
    ways: tuple[_Stage, ...]
    skew: float


def collective_seconds(
    kind: str, nbytes: float, axes: Sequence[MeshAxis], cluster: Cluster
) -> CollectiveCost:
    """Return the time and the algorithm of a collective over the group of some mesh axes.

    Parameters
    ----------
    kind : str
        One of ``KINDS``.
    nbytes : float
        Bytes, as in ``KINDS``. No bytes take no time.
    axes : sequence of MeshAxis
        The axes that the group spans, in any order. A group of one rank takes no time.
    cluster : Cluster
        The cluster, with the links of each level.

    Raises
    ------
    ClusterError
        If there is no such collective, or an axis belongs to a level that the cluster lacks.
    """
    size = np.array([float(nbytes)])
    prices = [(name, float(found[0])) for name, found in _prices(kind, size, axes, cluster)]
    if not nbytes:
        return CollectiveCost(0.0, prices[0][0])
    return min(CollectiveCost(seconds, name) for name, seconds in prices)


def collective_seconds_array(
    kind: str, nbytes: NDArray[np.generic], axes: Sequence[MeshAxis], cluster: Cluster
) -> NDArray[np.float64]:
    """Return the times of a collective for many sizes; see `collective_seconds`."""
    sizes = np.asarray(nbytes, dtype=np.float64)
    seconds = np.full(sizes.shape, np.inf)
    for _, found in _prices(kind, sizes, axes, cluster):
        np.minimum(seconds, found, out=seconds)
    return np.where(sizes > 0, seconds, 0.0)


def exchange_seconds_array(
    nbytes: NDArray[np.generic],
    axes: Sequence[MeshAxis],
    cluster: Cluster,
    copies: Callable[[int], float],
) -> NDArray[np.float64]:
    """Return the times of an all-to-all that sends once what several parts of a member need.

    Every member is sent to once, and hands on inside what it received, while it receives more: the
    slowest level decides.

    Parameters
    ----------
    nbytes, axes, cluster
        As of `collective_seconds_array`, for `all_to_all`.
    copies : callable
        Copies for a number of members, each with as many parts, over those for all parts.
    """
    sizes = np.asarray(nbytes, dtype=np.float64)
    stages = _stages("all_to_all", tuple(axes), cluster.levels)
    seconds, wait = np.zeros(sizes.shape), _wait("all_to_all", stages)
    for place, stage in enumerate(stages):
        share = copies(prod(further.size for further in stages[place:]))
        ways = [_pairwise(way) for way in stage.ways]
        times = [a.latency_seconds + share * sizes * a.seconds_per_byte for a in ways]
        seconds = np.maximum(seconds, np.min(times, axis=0))
    return np.where(sizes > 0, seconds + wait, 0.0)


def least_seconds_per_byte(kind: str, axes: Iterable[MeshAxis], cluster: Cluster) -> float:
    """Return seconds per byte that a collective never falls below, whatever its bytes."""
    axes = tuple(axes)
    messages = _messages(kind, axes, cluster.levels)
    if messages is None:
        return collective_model(kind, axes, cluster)[-1].seconds_per_byte
    return _counts(kind, axes)[-1].seconds_per_byte * messages.least_per_byte


def packing_seconds_array(
    kind: str, nbytes: NDArray[np.generic], axes: Sequence[MeshAxis], cluster: Cluster
) -> NDArray[np.float64]:
    """Return the further times of a collective whose parts are split along a later dimension.

    They are those of `CollectiveRate.packing`; without it copies are not counted.
    """
    sizes = np.asarray(nbytes, dtype=np.float64)
    level = _only_level(axes, cluster.levels)
    rate = None if level is None else level.measured(kind)
    if rate is None or rate.packing is None:
        return np.zeros(sizes.shape)
    count, amount = _counts(kind, tuple(axes))[-1][1:]
    return np.where(sizes > 0, count * rate.packing.seconds(sizes * amount / count), 0.0)


def _prices(
    kind: str, sizes: NDArray[np.float64], axes: Iterable[MeshAxis], cluster: Cluster
) -> list[tuple[str, NDArray[np.float64]]]:
    """Return the algorithms of a collective, with the seconds of each for many sizes."""
    axes = tuple(axes)
    messages = _messages(kind, axes, cluster.levels)
    if messages is None:
        algorithms = collective_model(kind, axes, cluster)
        return [(name, latency + sizes * slope) for name, latency, slope in algorithms]
    wait = _wait(kind, _stages(kind, axes, cluster.levels))
    return [
        (name, count * messages.seconds(sizes * (amount / count)) + wait)
        for name, count, amount in _counts(kind, axes)
    ]


def collective_model(
    kind: str, axes: Iterable[MeshAxis], cluster: Cluster
) -> tuple[Algorithm, ...]:
    """Return the Pareto-optimal algorithms, by rising latency and falling seconds per byte."""
    return _model(kind, tuple(axes), cluster.levels)


@lru_cache(maxsize=4096)
def _model(
    kind: str, axes: tuple[MeshAxis, ...], levels: tuple[Level, ...]
) -> tuple[Algorithm, ...]:
    if kind not in KINDS:
        raise ClusterError(f"no collective is called `{kind}`", hint=f"use {', '.join(KINDS)}")
    stages = _stages(kind, axes, levels)
    if not stages:
        return (Algorithm("none", 0.0, 0.0),)
    ways = product(*(stage.ways for stage in stages))
    cheapest = _cheapest(algorithm for way in ways for algorithm in _ALGORITHMS[kind](way))
    wait = _wait(kind, stages)
    if not wait:
        return cheapest
    return tuple(a._replace(latency_seconds=a.latency_seconds + wait) for a in cheapest)


def _wait(kind: str, stages: Iterable[_Links]) -> float:
    """Return the seconds for which the ranks of a group wait for the last."""
    return 0.0 if kind in _PAIRWISE else sum(log2(s.size) * s.skew for s in stages)


@lru_cache(maxsize=4096)
def _counts(kind: str, axes: tuple[MeshAxis, ...]) -> tuple[Algorithm, ...]:
    """Return how many latencies, and which part of the bytes, each algorithm of a group takes.

    The group is in one level, so these are its times where a latency and a byte take a second each.
    """
    unit = _Stage(prod(axis.size for axis in axes), 1.0, 1.0)
    return _cheapest(_ALGORITHMS[kind]((unit,)))


def _messages(
    kind: str, axes: Sequence[MeshAxis], levels: tuple[Level, ...]
) -> MessageTimes | None:
    """Return the measured messages of a group; None where it takes latencies and bandwidths."""
    level = _only_level(axes, levels)
    rate = None if level is None else level.measured(kind)
    return None if rate is None else rate.messages


def _only_level(axes: Iterable[MeshAxis], levels: tuple[Level, ...]) -> Level | None:
    """Return the level that connects a group; None for a group of one rank, or of several."""
    found = {axis.level for axis in axes if axis.size > 1}
    if len(found) != 1 or not 0 <= min(found) < len(levels):
        return None
    return levels[found.pop()]


def is_measured(kind: str, axes: Iterable[MeshAxis], cluster: Cluster) -> bool:
    """Return whether the links of a group have figures of this collective: no launch is added."""
    sizes = {axis.level for axis in axes if axis.size > 1}
    return bool(sizes) and all(cluster.levels[i].measured(kind) is not None for i in sizes)


def _stages(kind: str, axes: tuple[MeshAxis, ...], levels: tuple[Level, ...]) -> tuple[_Links, ...]:
    """Return the stages of a group, one for each level that it spans, innermost first."""
    sizes = [1] * len(levels)
    for axis in axes:
        if not 0 <= axis.level < len(levels):
            what = f"mesh axis `{axis.name}` is of level {axis.level}"
            raise ClusterError(f"{what}, but the cluster has levels 0 to {len(levels) - 1}")
        sizes[axis.level] *= axis.size
    found, inside, devices = [], 1, 1  # ranks and devices of a member of the level
    for size, level in zip(sizes, levels, strict=True):
        several = kind in _RINGS and 1 < inside < devices
        ways = tuple(_Stage(size, *way) for way in level.ways_of(kind, several=several))
        if size > 1:
            found.append(_Links(size, ways, level.skew_seconds))
        inside, devices = inside * size, devices * level.size
    return tuple(found)


def _cheapest(algorithms: Iterable[Algorithm]) -> tuple[Algorithm, ...]:
    """Drop every algorithm that another dominates in latency and bandwidth."""
    kept: list[Algorithm] = []
    for algorithm in sorted(algorithms, key=lambda a: (a.latency_seconds, a.seconds_per_byte)):
        if not kept or algorithm.seconds_per_byte < kept[-1].seconds_per_byte:
            kept.append(algorithm)
    return tuple(kept)


def _then(name: str, *steps: tuple[Algorithm, float]) -> Algorithm:
    """Return a sequence of algorithms, each on a fraction of the bytes."""
    latency = sum(step.latency_seconds for step, _ in steps)
    slope = sum(step.seconds_per_byte * fraction for step, fraction in steps)
    return Algorithm(name, latency, slope)


def _as_one_level(stages: Sequence[_Stage]) -> _Stage:
    """Return a group as if its slowest link connected all its ranks."""
    return _Stage(
        prod(stage.size for stage in stages),
        max(stage.latency for stage in stages),
        max(stage.seconds_per_byte for stage in stages),
    )


def _ring(stages: Sequence[_Stage]) -> Algorithm:
    """Reduce-scatter or all-gather in a ring: every rank sends n-1 parts of n to its neighbour."""
    n, latency, slope = _as_one_level(stages)
    return Algorithm("ring", (n - 1) * latency, (n - 1) / n * slope)


def _tree(stages: Sequence[_Stage], passes: int) -> Algorithm:
    """Send all bytes up or down a tree: a tree of trees if the group spans levels."""
    depth_seconds = sum(stage.depth * stage.latency for stage in stages)
    return Algorithm(
        "tree", passes * depth_seconds, passes * _as_one_level(stages).seconds_per_byte
    )


def _all_reduce(stages: Sequence[_Stage]) -> list[Algorithm]:
    ring = _ring(stages)
    found = [_then("ring", (ring, 1), (ring, 1)), _tree(stages, passes=2)]
    inner, outer = stages[:1], stages[1:]
    for across in _cheapest(_all_reduce(outer)) if outer else ():
        inside = _ring(inner)
        part = 1 / inner[0].size
        found.append(_then("hierarchical", (inside, 1), (across, part), (inside, 1)))
        found.append(_then("hierarchical", (_tree(inner, passes=2), 1), (across, 1)))
    return found


def _reduce_scatter(stages: Sequence[_Stage]) -> list[Algorithm]:
    found = [_ring(stages), _tree(stages, passes=2)]
    inner, outer = stages[:1], stages[1:]
    for across in _cheapest(_reduce_scatter(outer)) if outer else ():
        part = 1 / inner[0].size
        insides = _ring(inner), _tree(inner, passes=2)
        found.extend(_then("hierarchical", (inside, 1), (across, part)) for inside in insides)
    return found


def _broadcast(stages: Sequence[_Stage]) -> list[Algorithm]:
    whole = _as_one_level(stages)
    chain = Algorithm("ring", (whole.size - 1) * whole.latency, whole.seconds_per_byte)
    found = [chain, _tree(stages, passes=1)]
    inner, outer = stages[:1], stages[1:]
    for across in _cheapest(_broadcast(outer)) if outer else ():
        inside = _ring(inner)
        part = 1 / inner[0].size
        found.append(_then("hierarchical", (inside, 1), (across, part), (inside, 1)))
    return found


def _all_to_all(stages: Sequence[_Stage]) -> list[Algorithm]:
    whole = prod(stage.size for stage in stages)
    latency = slope = 0.0
    reached = 1
    for stage in stages:
        peers = reached * (stage.size - 1)
        latency += peers * stage.latency
        slope += peers / whole * stage.seconds_per_byte
        reached *= stage.size
    found = [Algorithm("pairwise", latency, slope)]
    choices = [(_pairwise(stage), _bruck(stage)) for stage in stages]
    for steps in product(*choices):
        name = "hierarchical" if len(steps) > 1 else steps[0].name
        found.append(_then(name, *((step, 1) for step in steps)))
    return found


def _pairwise(stage: _Stage) -> Algorithm:
    """Exchange 1/n of the buffer with one rank after another."""
    n, latency, slope = stage
    return Algorithm("pairwise", (n - 1) * latency, (n - 1) / n * slope)


def _bruck(stage: _Stage) -> Algorithm:
    """Send half of the buffer at each of log2(n) steps, through other ranks."""
    return Algorithm("bruck", stage.depth * stage.latency, stage.depth / 2 * stage.seconds_per_byte)


def _direct(stages: Sequence[_Stage]) -> list[Algorithm]:
    whole = _as_one_level(stages)
    return [Algorithm("direct", whole.latency, whole.seconds_per_byte)]


_ALGORITHMS = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "permute": _direct,
    "send": _direct,
}
