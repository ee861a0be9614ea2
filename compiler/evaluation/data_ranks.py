"""What data ranks gather and reduce of a plan, at least: seconds of every level of the cluster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

from shardwright.compiler.evaluation.factors import Factors
from shardwright.compiler.evaluation.parts import Kind, Part, of_each
from shardwright.compiler.evaluation.stored_bytes import StoredBytes
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.collectives import least_seconds_per_byte
from shardwright.ir.mesh import MeshAxis
from shardwright.ir.rounding import EQUAL
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_axes import has_copies, is_of_batch
from shardwright.search.plan_dimensions import Held

Which = Callable[[Held], bool]
_Levels = list[float]  # of every level of the cluster, and of all collectives in a row
_OUTSIDE_SHARDS = ("data", "data_tensor")  # ranks with copies of what shards divide


@dataclass(frozen=True)
class Shape:
    """A model on a cluster, as far as bounds of its plans ask.

    Parameters
    ----------
    samples : int
        Samples of a step.
    cluster : Cluster
        The devices as the training software runs programs on them.
    stored : StoredBytes
        Bytes of a trained element.
    """

    samples: int
    cluster: Cluster
    stored: StoredBytes


@dataclass(frozen=True)
class ByDataRanks:
    """What data ranks gather and reduce of the layers of every stage.

    Parameters
    ----------
    plan : NamedPlan
        The plan, with its data ranks and micro-batch.
    devices : int
        Number of ranks.
    shape : Shape
        The model on its cluster.
    factors : Factors
        On what the cluster's figures say.
    layers : sequence of Part
        The layers of every stage.
    """

    plan: NamedPlan
    devices: int
    shape: Shape
    factors: Factors
    layers: Sequence[Part]

    @cached_property
    def gathered_in_passes(self) -> list[_Levels]:
        """Seconds in which stages gather in each pass, forward and again backward."""
        return self.gathers(lambda held: held.in_passes)

    @cached_property
    def reduced_in_passes(self) -> list[_Levels]:
        """Seconds in which stages reduce in each backward pass."""
        return self.reductions(lambda held: held.reduced_in_passes)

    def gathers(self, which: Which = lambda held: True) -> list[_Levels]:
        """Return the seconds of levels in which layers of stages are gathered over data ranks."""
        stored = self.shape.stored
        nbytes, kinds = stored.lower or stored.master, ("all_gather",)
        return self._moved(nbytes, lambda held: kinds if held.divided and which(held) else ())

    def reductions(self, which: Which = lambda held: True) -> list[_Levels]:
        """Return the seconds of levels in which gradients of stages are reduced over data ranks."""

        def kinds(held: Held) -> Sequence[str]:
            whole = () if held.divided else ("all_gather",)
            return ("reduce_scatter", *whole) if which(held) else ()

        return self._moved(self.shape.stored.reduced, kinds)

    def _moved(self, nbytes: float, kinds: Callable[[Held], Sequence[str]]) -> list[_Levels]:
        """Return the seconds of every level in which elements of stages are moved.

        Parameters
        ----------
        nbytes : float
            Bytes of an element.
        kinds : callable
            Returns by which collectives it is moved.
        """
        known: dict[Kind, list[float]] = {}

        def of(layers: Part) -> _Levels:
            busy = [0.0] * (len(self._cluster.levels) + 1)
            for kind, count in layers.elements.items():
                if kind not in known:
                    how = kinds(kind.held[self.plan.zero])
                    ranks = self._sharing[kind.of_experts]
                    known[kind] = self._on_levels(nbytes, ranks, how) if how else []
                if each := known[kind]:
                    busy = [one + count * seconds for one, seconds in zip(busy, each, strict=True)]
            return busy

        return of_each(self.layers, of)

    @cached_property
    def _cluster(self) -> Cluster:
        return self.shape.cluster.used_by(self.devices)

    @cached_property
    def _sharing(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Data ranks by levels, innermost first: those of all parameters, and those of experts."""
        parts = self.plan.parts(self._cluster, self.devices)
        if self.plan.shard > 1:  # what a node divides is gathered in it
            parts = {name: parts[name] for name in parts if name not in _OUTSIDE_SHARDS}
        of_batch = [one for name in parts if is_of_batch(name) for one in parts[name]]
        return of_batch, [one for name in parts if has_copies(name) for one in parts[name]]

    def _on_levels(
        self, nbytes: float, parts: Sequence[tuple[int, int]], kinds: Sequence[str]
    ) -> _Levels:
        """Return the seconds of each level in which bytes are moved over some ranks, and of all.

        Ranks gather over one level after the other, the slow links first, which then carry less.
        """
        levels = range(len(self._cluster.levels))
        orders = [*permutations(parts)]
        costs = [self._in_order(order, kinds, self._cluster) for order in orders]
        fastest = min(map(sum, costs))
        chosen = [one for one in costs if sum(one) <= fastest * (1 + EQUAL)]
        least = [min(one[level] for one in chosen) for level in levels]
        axes = [MeshAxis(f"x{i}", size, number) for i, (size, number) in enumerate(parts)]
        at_once = sum(least_seconds_per_byte(kind, axes, self._scaled) for kind in kinds)
        in_turn = (sum(self._in_order(order, kinds, self._scaled)) for order in orders)
        whole = min(at_once, *in_turn)
        factors = map(self.factors.of_level, levels)
        return [
            *(nbytes * one * by for one, by in zip(least, factors, strict=True)),
            nbytes * whole,
        ]

    @staticmethod
    def _in_order(
        order: Sequence[tuple[int, int]], kinds: Sequence[str], cluster: Cluster
    ) -> list[float]:
        """Return the seconds of each level for a byte, gathered over the last parts first."""
        found, share = [0.0] * len(cluster.levels), 1.0
        for size, number in order:
            axes = [MeshAxis("x", size, number)]
            slopes = (least_seconds_per_byte(kind, axes, cluster) for kind in kinds)
            found[number] += share * sum(slopes)
            share /= size
        return found

    @cached_property
    def _scaled(self) -> Cluster:
        """The cluster whose links take the factors that their levels have."""
        levels = range(len(self._cluster.levels))
        return self._cluster.with_links_slower_by([self.factors.of_level(i) for i in levels])


def busiest(stages: Sequence[_Levels]) -> list[float]:
    """Return the seconds of the busiest level of every stage."""
    return [max(levels) for *levels, _ in stages]


def in_a_row(stages: Sequence[_Levels]) -> list[float]:
    """Return the seconds of every stage in which one collective runs after the other."""
    return [whole for *_, whole in stages]
