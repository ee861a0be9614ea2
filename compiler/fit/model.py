"""A model whose plans are estimated: the prices of its layers, and the sizes of its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardwright.compiler.evaluation.evaluator import Evaluation, Evaluator
from shardwright.compiler.fit.held import SAMPLES, Held, Kept, SmallModels
from shardwright.compiler.fit.shortened import cells, shortened
from shardwright.compiler.fit.stored import StoredBytes
from shardwright.compiler.outer.degrees import on_tensor_ranks
from shardwright.compiler.stages.layer_prices import (
    layer_seconds,
    passed_bytes,
    repeated_layers,
)
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.compiler.stages.shared import SharedParts
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.software import Software
from shardwright.cost_model.efficiency.unread import PRODUCTS
from shardwright.cost_model.redistribution.planner import move_seconds
from shardwright.cost_model.roofline import node_seconds
from shardwright.dataflow.samples import samples_of
from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.operators.models.precision import MASTER
from shardwright.passes.manager import PassManager
from shardwright.planner.effort import budget_of
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import as_asked, canonical_form
from shardwright.search.named_plan import NamedPlan, divisors

_IN_FLIGHT = 2  # micro-batches, by which it is told what one more of them saves
_FULL = "full"  # the way to recompute whole layers
_FREE = 1e30  # per second: what takes no time
_OfParts = tuple[float, float, float]  # of a layer, of what is before all layers, and after
_SHORT = 4  # layers of the model that is priced: two alike, and both ends
_HALF = 0.5  # of a bandwidth, by which the seconds of its links are told from the others


@dataclass(frozen=True)
class PartSeconds:
    """Seconds of a pass over a micro-batch: of operators, and of the innermost links.

    Parameters
    ----------
    compute, links : float
        Of a micro-batch of one sample.
    more_compute, more_links : float
        Of each further sample: less where an operator of one sample takes its launch time.
    host : float
        In which the host of a training software launches it, whatever its samples.
    """

    compute: float
    links: float
    more_compute: float
    more_links: float
    host: float = 0.0

    def longer_by(self, seconds: float) -> "PartSeconds":
        """Return the part with further seconds of operators for each sample."""
        compute, more = self.compute + seconds, self.more_compute + seconds
        return replace(self, compute=compute, more_compute=more)

    def of(self, samples: int, compute: float, links: float) -> float:
        """Return the seconds of a micro-batch, with factors on operators and on links."""
        more = samples - 1
        of_operators = self.compute + more * self.more_compute
        return compute * of_operators + links * (self.links + more * self.more_links)


@dataclass(eq=False)
class FitModel:
    """A program on a cluster, for plans of any degrees.

    Parameters
    ----------
    graph : Graph
        The whole program; its first output is the loss.
    cluster : Cluster
        The devices.
    options : CompileOptions
        How it is trained: optimizer, types, memory limit.
    software : Software, optional
        The training software that runs programs.
    tells_links : bool
        Whether the seconds of links are told from others.

    Raises
    ------
    OptionError
        If the model has no repeated layers, or experts: the family has no plans of it; or
        parameters that are not float32; or a batch of one sample.
    """

    graph: Graph
    cluster: Cluster
    options: CompileOptions
    software: Software | None = None
    tells_links: bool = False
    _priced: dict[int, Mapping[str, _OfParts]] = field(default_factory=dict)
    _timed: dict[int, dict[str, tuple[PartSeconds, ...]]] = field(default_factory=dict)
    _shared: SharedParts = field(default_factory=SharedParts)
    _launched: dict[int, Mapping[str, _OfParts]] = field(default_factory=dict)
    _stored_parts: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    _held: dict[tuple[NamedPlan, bool], tuple[Held, Kept | None]] = field(default_factory=dict)
    _evaluators: dict[int, Evaluator] = field(default_factory=dict)
    _evaluations: dict[tuple[NamedPlan, int], Evaluation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(node.operator == "dispatch" for node in self.graph.nodes):
            raise OptionError(
                f"`{self.graph.name}` has a mixture of experts, and plans with experts are not "
                "estimated by their layers",
                hint="give the plan to `shardwright estimate`, or search with `compile`",
            )
        other = next(
            (p for p in self.graph.parameters if p.trainable and p.value.type.dtype != MASTER), None
        )
        if other is not None:
            raise OptionError(
                f"the parameter `{other.value.name}` has the type {other.value.type.dtype}, and "
                f"plans are estimated of models whose parameters are {MASTER}",
                hint="leave `dtype` out, and give the type that is computed in as `--precision`",
            )
        if self.samples < _IN_FLIGHT:
            raise OptionError(
                f"`{self.graph.name}` has a batch of 1 sample, and what is saved is estimated by "
                "two micro-batches in flight",
                hint="give a larger batch, or the plan to `shardwright estimate`",
            )
        if not self.layers:
            raise OptionError(
                f"`{self.graph.name}` has no repeated layers (cells with a number, `blocks/0`), by "
                "which plans are estimated",
                hint="give a plan to `shardwright estimate`, or search with `compile`",
            )
        if not self._small.are_smaller:
            raise OptionError(
                f"what follows the layers of `{self.graph.name}` reads several of them, and plans "
                "are estimated by models with fewer layers",
                hint="give a plan to `shardwright estimate`, or search with `compile`",
            )

    @cached_property
    def run_on(self) -> Cluster:
        """The devices as the training software runs programs on them."""
        return self.cluster.run_by(self.software)

    def evaluation(self, plan: NamedPlan, devices: int) -> Evaluation:
        """Return what a plan takes on a number of devices.

        Raises
        ------
        ShardwrightError
            If the model has no such plan.
        """
        if (plan, devices) not in self._evaluations:
            if devices not in self._evaluators:
                where = self.cluster.used_by(devices), devices
                given = Evaluator(self.graph, *where, self.options, self.software)
                self._evaluators[devices] = given
            self._evaluations[plan, devices] = self._evaluators[devices].evaluation(plan)
        return self._evaluations[plan, devices]

    def known(self, plan: NamedPlan, devices: int) -> Evaluation | None:
        """Return what a plan takes, if that has been asked for before."""
        return self._evaluations.get((plan, devices))

    @property
    def samples(self) -> int:
        """Samples of a step."""
        return samples_of(self.graph) or 1

    @property
    def limit_bytes(self) -> float:
        """Memory limit of a rank."""
        return self.options.memory_on(self.cluster)

    @cached_property
    def layers(self) -> int:
        """Number of repeated layers."""
        found = len(repeated_layers(self._pipeline(self.run_on, 1).blocks))
        return found + cells(self.graph) - cells(self._short) if found > 1 else 0

    @cached_property
    def stored(self) -> StoredBytes:
        """Bytes of a trained element."""
        return StoredBytes.of(self.options, self.graph)

    @cached_property
    def elements(self) -> int:
        """Trained elements of the model."""
        return _trained(self.graph)

    @property
    def least_bytes(self) -> float:
        """Bytes of trained elements and optimizer states: all ranks together hold no less."""
        return float(self.elements * (self.stored.master + self.stored.states))

    @cached_property
    def end_elements(self) -> tuple[int, int]:
        """Trained elements that are read before the repeated layers, and after."""
        blocks = self._pipeline(self.run_on, 1).blocks
        layers = repeated_layers(blocks)

        def elements(begin: int, end: int) -> int:
            part = blocks.stretch(begin, end, alone=True).graph if begin < end else None
            return 0 if part is None else _trained(part)

        return elements(0, layers[0]), elements(layers[-1] + 1, len(blocks))

    def rules(self, tensor: int) -> tuple[str, ...]:
        """Return the ways to recompute on some tensor ranks, the least first.

        Empty where the model cannot be divided so.
        """
        return tuple(self._alone(tensor))

    def _alone(self, tensor: int) -> Mapping[str, _OfParts]:
        """Return the seconds of the parts with one sample, by the way to recompute."""
        if tensor not in self._priced:
            try:
                self._priced[tensor] = self._layer_seconds(self.run_on, tensor)
            except ShardwrightError:
                self._priced[tensor] = {}
        return self._priced[tensor]

    def passed_bytes(self, tensor: int) -> float:
        """Return the bytes of a sample that a layer receives of the one before, on a rank."""
        return self._passed_bytes / tensor

    @cached_property
    def _passed_bytes(self) -> float:
        return passed_bytes(self._pipeline(self.run_on, 1))

    def seconds(self, tensor: int, rule: str) -> tuple[PartSeconds, ...]:
        """Return the seconds of a layer, of what is before all of them, and after."""
        if tensor not in self._timed:
            fast = self._seconds(self._alone(tensor), self.run_on, tensor)
            told = tensor > 1 and self.tells_links
            slow = self._seconds(None, _slow(self.run_on), tensor) if told else fast
            for name, own in fast.items():
                parts = list(map(_part_seconds, own, slow.get(name, own), self._host(tensor, name)))
                if self._recomputes_blocks and name == _FULL:
                    parts[0] = parts[0].longer_by(self._unread(tensor))
                self._timed.setdefault(tensor, {})[name] = tuple(parts)
        return self._timed[tensor][rule]

    @property
    def _recomputes_blocks(self) -> bool:
        software = self.run_on.software
        return software is not None and software.recompute == "blocks"

    def _host(self, tensor: int, rule: str) -> tuple[float, ...]:
        """Return the seconds in which the host launches each part.

        What tensor ranks add is counted for two of them, and are the collectives.
        """
        software = self.run_on.software
        if software is None:
            return (0.0,) * 3
        alone = self._launches(1)[rule]
        divided = self._launches(2).get(rule, alone) if tensor > 1 else alone
        added = software.host.value + software.collective.value
        return tuple(
            software.host.value * one + added * max(many - one, 0.0)
            for one, many in zip(alone, divided, strict=True)
        )

    def _unread(self, tensor: int) -> float:
        """Return the seconds of what whole blocks compute again unread, of a layer and a sample.

        That is the last product of a layer, and the collective after it. Software that recomputes
        blocks computes it again too (`cost_model.efficiency.unread`).
        """
        graph = self._layer
        last = next((n for n in reversed(graph.nodes) if n.operator in PRODUCTS), None)
        if last is None:
            return 0.0
        seconds = node_seconds(last, graph, self.run_on) / tensor
        if tensor > 1:
            mesh = NamedPlan(tensor=tensor, data=1).mesh(self.run_on, tensor)
            sent = np.array([float(last.results[0].type.nbytes)])
            moved = move_seconds("reduce_scatter", mesh.names, sent, mesh, _as_exposed(self.run_on))
            seconds += float(moved[0])
        return seconds / self.samples

    def _launches(self, tensor: int) -> Mapping[str, _OfParts]:
        """Return how many operators are launched in each part, by the way to recompute."""
        if tensor not in self._launched:
            try:
                self._launched[tensor] = self._layer_seconds(_counting(self.run_on), tensor)
            except ShardwrightError:  # the model cannot be divided so
                self._launched[tensor] = {}
        return self._launched[tensor]

    def stored_parts(self, plan: NamedPlan) -> tuple[float, float, float]:
        """Return the bytes that are stored of a layer, of what is before all of them, and after.

        They are those on a tensor rank of a plan, without ZeRO.
        """
        if plan.tensor not in self._stored_parts:
            alone = replace(on_tensor_ranks(plan.tensor), micro_batch=1, recompute=plan.recompute)
            layer, ends = self._small.elements(alone)
            first, last = self.end_elements
            each, total = ends / max(first + last, 1), self.stored.total
            self._stored_parts[plan.tensor] = (
                total * layer,
                total * each * first,
                total * each * last,
            )
        return self._stored_parts[plan.tensor]

    def held(self, plan: NamedPlan, samples: int = 1) -> tuple[Held, Kept | None]:
        """Return what a plan holds beside what it stores, and as the training software keeps it.

        Parameters
        ----------
        plan : NamedPlan
            The plan.
        samples : int
            Of a micro-batch, of which is asked.

        Raises
        ------
        ShardwrightError
            If small models of it cannot be built.
        """
        data = divisors(plan.data or 1)[1] if plan.zero > 1 else 1
        small = replace(
            on_tensor_ranks(plan.tensor),
            data=data,
            micro_batch=1,
            recompute=plan.recompute,
            zero=plan.zero if data > 1 else 0,
        )
        key = small, samples > 1
        if key not in self._held:
            self._held[key] = self._small.held(*key), self._small.kept(*key)
        return self._held[key]

    @cached_property
    def _small(self) -> SmallModels:
        return SmallModels(self.graph, self.run_on, self.options)

    @cached_property
    def _layer(self) -> Graph:
        """The first of the repeated layers alone, for the whole batch."""
        blocks = self._pipeline(self.run_on, 1).blocks
        layers = repeated_layers(blocks)
        return blocks.stretch(layers[0], layers[0] + 1, alone=True).graph

    def _seconds(
        self, found: Mapping[str, _OfParts] | None, cluster: Cluster, tensor: int
    ) -> Mapping[str, tuple[tuple[float, float], ...]]:
        """Return the seconds of the parts: of one sample, and of each further one."""
        found = found or self._layer_seconds(cluster, tensor)
        samples = next((n for n in SAMPLES if self.samples % n == 0), 1)
        wide = found if samples == 1 else self._layer_seconds(cluster, tensor, samples)
        parts = {}
        for rule, one in found.items():
            pairs = zip(one, wide.get(rule, one), strict=True)
            more = max(samples - 1, 1)
            parts[rule] = tuple(
                (alone, max((many - alone) / more, 0.0)) if samples > 1 else (alone, alone)
                for alone, many in pairs
            )
        return parts

    def _layer_seconds(
        self, cluster: Cluster, tensor: int, samples: int = 1
    ) -> Mapping[str, _OfParts]:
        return layer_seconds(*self._priced_on(cluster, tensor, samples))

    def _priced_on(
        self, cluster: Cluster, tensor: int, samples: int = 1
    ) -> tuple[PipelinePartitioning, NamedPlan]:
        """Return what the parts are priced of: the program in one stage, and the plan of it."""
        pipeline = self._pipeline(_as_exposed(cluster), tensor, samples)
        return pipeline, on_tensor_ranks(tensor)

    def _pipeline(self, cluster: Cluster, tensor: int, samples: int = 1) -> PipelinePartitioning:
        """Return the program in one stage on tensor ranks, in micro-batches of some samples."""
        mesh = NamedPlan(tensor=tensor, data=1).mesh(cluster, tensor)
        options = replace(self._options, micro_batches=self.samples // samples)
        where = (self._source, cluster, mesh, options, PassManager(), None, budget_of(options), 0)
        return PipelinePartitioning(*where, shared=self._shared)

    @cached_property
    def _options(self) -> CompileOptions:
        return replace(self.options, micro_batches=max(self.samples, 1), recompute="search")

    @cached_property
    def _source(self) -> Graph:
        """The program in canonical form, in micro-batches of one sample."""
        options = self._options
        passes = (*as_asked(options, options.passes), canonical_form(options))
        return PassManager().run_all(passes, self._short)

    @cached_property
    def _short(self) -> Graph:
        """The program with few of its layers, by which all are priced."""
        return shortened(self.graph, _SHORT)


def _trained(graph: Graph) -> int:
    """Return the number of trained elements of a program."""
    return sum(p.value.type.elements for p in graph.parameters if p.trainable)


def _slow(cluster: Cluster) -> Cluster:
    """Return the cluster with half of the bandwidth of the innermost links."""
    inner, *outer = cluster.levels
    slow = inner.model_copy(update={"bandwidth": inner.bandwidth * _HALF})
    return cluster.model_copy(update={"levels": (slow, *outer)})


def _as_exposed(cluster: Cluster) -> Cluster:
    """Return a cluster of which the innermost links take what a software waits for them."""
    if cluster.software is None:
        return cluster
    share = cluster.software.exposed_activations.value
    inner, *outer = cluster.levels
    return cluster.model_copy(update={"levels": (inner.exposed_for(share), *outer)})


def _counting(cluster: Cluster) -> Cluster:
    """Return a cluster on which a program takes as many seconds as it has launches."""
    device = cluster.device.model_copy(
        update={
            "peak_flops": dict.fromkeys(cluster.device.peak_flops, _FREE),
            "memory_bandwidth": _FREE,
            "launch_seconds": 1.0,
            "efficiency": None,
        }
    )
    links = {"bandwidth": _FREE, "latency": 0.0, "efficiency": None}
    levels = tuple(level.model_copy(update=links) for level in cluster.levels)
    return cluster.model_copy(update={"device": device, "levels": levels, "software": None})


def _part_seconds(fast: tuple[float, float], slow: tuple[float, float], host: float) -> PartSeconds:
    """Return the seconds of a part: at half of the bandwidth, links take twice as long."""
    links = [min(max(b - a, 0.0), a) for a, b in zip(fast, slow, strict=True)]
    return PartSeconds(fast[0] - links[0], links[0], fast[1] - links[1], links[1], host)
