"""The family of Megatron's plans: its degrees, about how long each plan takes, and what fits.

Its plans have T tensor ranks inside the innermost level of the cluster, with sequence parallelism,
S device groups of V chunks, D data ranks, micro-batches of a few samples, a ZeRO stage, and a way
to recompute. Of a model with experts, E of the data ranks divide them, as many as there are inside
the innermost level, or none. The prices of a layer on T E ranks (`stages.layer_prices`) tell of all
of them. With M micro-batches, a busiest device group of p seconds a pass, and d seconds in which
the parameters of a rank are gathered once over the data ranks,

    step ~ M p + (S - 1) / V (mean of p) + 2 d

and where parameters are gathered in every pass, or there is one pass, a pass takes no less than
that. Without ZeRO each rank updates all that it stores. The estimates of the best plans are
refined: their schedules are simulated. An estimate decides only which plans are built; what their
programs take is simulated as that of any other plan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import gcd

from shardwright.compiler.outer.degrees import Degrees, on_tensor_ranks, seconds_of_schedule
from shardwright.compiler.stages.layer_prices import LayerPrices, layer_prices
from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.placement import even_sizes
from shardwright.dataflow.update_rules import mean_state_bytes
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan, divisors

_SAMPLES = (1, 2, 4, None)  # of a micro-batch on a data rank in a pipeline: a few, or all
_ZERO = (0, 1, 3)
_IN_PASSES = 3  # the ZeRO stage that gathers in every pass
_GATHERED = 2  # layers whose parameters are gathered at once in a pass
_GATHERS = 3  # for each pass: forward, backward, and the reduction of gradients
_UPDATED = 2  # times what is stored: read and written by the optimizer
_ONCE = 2  # for a step: a gather before all passes, and a reduction after them
_HIDDEN = 3 / 4  # of what is gathered in a pass beside the collectives of tensor ranks
_MARGIN = 0.98  # of the memory limit
_MOST_ACTIONS = 70_000  # of a schedule that is simulated
_REFINED = 8  # estimates that are refined


@dataclass(frozen=True)
class NamedSeed:
    """A named plan that is built early.

    Parameters
    ----------
    plan : NamedPlan
        The plan.
    configuration : Configuration
        The one whose plans it is among.
    seconds : float
        About how long its step takes.
    """

    plan: NamedPlan
    configuration: Configuration
    seconds: float


@dataclass(frozen=True)
class StoredShares:
    """What an element of a parameter takes, as shares of all of it.

    Parameters
    ----------
    divided : float
        What ZeRO-1 divides over the data ranks: the element and the states of the optimizer. The
        rest is its gradient, and a copy in a lower type.
    gathered : float
        What is gathered over the data ranks: the element in the type that is computed in.
    """

    divided: float
    gathered: float

    @staticmethod
    def of(options: CompileOptions, graph: Graph) -> "StoredShares":
        """Return the shares by the optimizer and the types; of states the mean of a program."""
        master, lower = (item_bytes(t) for t in (MASTER, PRECISIONS[options.precision].compute))
        divided = master + mean_state_bytes(options.optimizer, graph)
        gradient = lower if options.accumulate_type == "lower" else master
        total = divided + gradient + (lower if lower < master else 0)
        return StoredShares(divided / total, lower / total)


@dataclass(frozen=True)
class NamedFamily:
    """The plans of a program on a number of devices.

    Parameters
    ----------
    cluster : Cluster
        The devices.
    devices, samples : int
        Number of ranks, and samples of a step.
    limit_bytes : float
        Memory of a rank.
    pipeline_of : callable
        Returns the program in one stage on a mesh, in a number of micro-batches.
    configurations : sequence of Configuration
        Those whose plans are asked for.
    shares : StoredShares
        Of what an element of a parameter takes.
    experts : int
        Number of experts that are divided between data ranks; 1 of a model without.
    """

    cluster: Cluster
    devices: int
    samples: int
    limit_bytes: float
    pipeline_of: Callable[[Mesh, int], PipelinePartitioning]
    configurations: Sequence[Configuration]
    shares: StoredShares
    experts: int = 1

    def seeds(self) -> list[NamedSeed]:
        """Return the plans that are likely to fit, those of the least refined estimates first.

        The last one is that of the least memory: it fits, if any does.
        """
        plans = [plan for ranks in self._ranks() for plan in self._on(ranks)]
        fitting = self._fastest([plan for plan in plans if self._fits(plan)])
        # A formula may be too high; of equal ones, few micro-batches take less time.
        found = sorted(fitting, key=lambda seed: (seed.seconds, seed.configuration.micro_batches))
        least = self._smallest(plans)
        known = {seed.plan for seed in found}
        return found if least is None or least.plan in known else [*found, least]

    def _fastest(self, plans: Sequence["_Estimate"]) -> list[NamedSeed]:
        waiting = [(plan.seconds, number, False) for number, plan in enumerate(plans)]
        heapify(waiting)
        found: list[NamedSeed] = []
        while waiting and len(found) < _REFINED:
            seconds, number, is_refined = heappop(waiting)
            one = self._configuration_of(plans[number])
            if one is not None and is_refined:
                found.append(NamedSeed(plans[number].plan, one, seconds))
            elif one is not None:
                heappush(waiting, (plans[number].refined_seconds, number, True))
        return found

    def _smallest(self, plans: Sequence["_Estimate"]) -> NamedSeed | None:
        for plan in sorted(plans, key=lambda plan: (plan.memory_bytes, plan.seconds)):
            if (one := self._configuration_of(plan)) is not None:
                return NamedSeed(plan.plan, one, plan.seconds)
        return None

    def _configuration_of(self, estimate: "_Estimate") -> Configuration | None:
        """Return the configuration whose plans a plan is among; None without one."""
        plan = estimate.plan
        form = plan.pipeline, plan.chunks, plan.order, estimate.passes
        mesh = plan.mesh(self.cluster, self.devices)
        for one in self.configurations:
            own = one.stages, one.chunks, one.schedule or "1f1b", one.micro_batches
            if own == form and one.mesh is not None and is_finer(one.mesh, mesh):
                return one
        return None

    def _ranks(self) -> Iterator[NamedPlan]:
        """Yield the numbers of tensor and expert ranks, as plans of these ranks alone."""
        inner = self.cluster.for_devices(self.devices)[0]
        for tensor in divisors(inner):
            for expert in sorted({1, gcd(inner // tensor, self.experts, self.samples)}):
                yield on_tensor_ranks(tensor, expert)
            if tensor > 1 < self.experts:  # experts whole, and over all ranks of a group
                yield on_tensor_ranks(tensor, gcd(inner, self.experts), 1)

    def _on(self, ranks: NamedPlan) -> Iterator["_Estimate"]:
        """Yield the plans of some ranks, each with the least recomputation that fits, or all."""
        try:
            mesh = ranks.mesh(self.cluster, ranks.ranks_of_stage)
            passes = self.samples // (ranks.data or 1)
            prices = layer_prices(self.pipeline_of(mesh, passes), ranks)
        except ShardwrightError:  # the model cannot be divided so
            return
        most = min((price.layers for price in prices.values()), default=0)
        where = self.cluster, self.devices, self.samples
        degrees = Degrees(*where, _SAMPLES, _ZERO, alone=divisors(self.samples))
        for one in degrees.plans(ranks, most):
            estimates = [self._estimate(one, *priced) for priced in prices.items()]
            yield next(filter(self._fits, estimates), estimates[-1])

    def _fits(self, plan: "_Estimate") -> bool:
        return plan.memory_bytes <= _MARGIN * self.limit_bytes

    def _estimate(self, plan: NamedPlan, recompute: str, prices: LayerPrices) -> "_Estimate":
        plan = replace(plan, recompute=recompute)
        return _Estimate(plan, prices, self.cluster, self.devices, self.samples, self.shares)


@dataclass(frozen=True)
class _Estimate:
    """About what a plan takes.

    Parameters
    ----------
    plan : NamedPlan
        The plan.
    prices : LayerPrices
        Of the layers on its tensor and expert ranks.
    cluster, devices, samples : Cluster, int, int
        Where it runs, and the samples of a step.
    shares : StoredShares
        Of what an element of a parameter takes.
    """

    plan: NamedPlan
    prices: LayerPrices
    cluster: Cluster
    devices: int
    samples: int
    shares: StoredShares

    @cached_property
    def passes(self) -> int:
        """Number of micro-batches."""
        return self.plan.passes(self.samples, self.devices)

    @cached_property
    def durations(self) -> tuple[float, ...]:
        """Seconds of a pass of every stage over a micro-batch."""
        prices = self.prices
        seconds = [size * prices.layer.seconds for size in self._sizes]
        seconds[0] += prices.first.seconds
        seconds[-1] += prices.last.seconds
        return tuple(self._samples * one for one in seconds)

    @property
    def _samples(self) -> int:
        return self.plan.micro_batch or 1

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return even_sizes(self.prices.layers, self.plan.pipeline * self.plan.chunks)

    @cached_property
    def seconds(self) -> float:
        """About how long the step takes, by a formula."""
        plan, groups = self.plan, self.plan.pipeline
        loads = [sum(self.durations[group::groups]) for group in range(groups)]
        share = SCHEDULES[plan.order].bubble(plan.chunks)
        bubble = (groups - 1) * share * sum(loads) / groups
        return self._with_data(self.passes * max(loads) + bubble)

    @cached_property
    def refined_seconds(self) -> float:
        """About how long the step takes, by its simulated schedule."""
        plan = self.plan
        if plan.pipeline == 1 or self.passes * len(self.durations) > _MOST_ACTIONS:
            return self.seconds
        transfer = self._transfer_seconds
        return self._with_data(seconds_of_schedule(plan, self.passes, self.durations, transfer))

    @property
    def _transfer_seconds(self) -> float:
        """Seconds in which a micro-batch passes from a stage to the next."""
        level = self.cluster.levels[self.plan.stage_level(self.cluster, self.devices)]
        return level.send_seconds(self._samples * self.prices.passed_bytes)

    def _with_data(self, seconds: float) -> float:
        """Add gathers and reductions over the data ranks to seconds without them."""
        in_passes = self.plan.zero == _IN_PASSES
        seconds += self._update_seconds
        if not in_passes and self.passes > 1:
            return seconds + _ONCE * self._gather_seconds
        gathers = (self.passes * _GATHERS if in_passes else _ONCE) * self._gather_seconds
        beside = (1 - _HIDDEN) * gathers if self.plan.tensor > 1 else 0.0
        return max(seconds + beside, gathers)

    @property
    def _update_seconds(self) -> float:
        """Seconds of the updates that ZeRO would leave to other data ranks."""
        if self.plan.zero:
            return 0.0
        moved = _UPDATED * (1 - 1 / (self.plan.data or 1)) * self._stored_bytes
        return moved / self.cluster.device.memory_bandwidth

    @cached_property
    def _gather_seconds(self) -> float:
        """Seconds in which the parameters of a rank are gathered, in the type of computation."""
        left, seconds = self.shares.gathered * self._stored_bytes, 0.0
        for size, number in self.plan.parts(self.cluster, self.devices)["data"]:
            seconds += left * (1 - 1 / size) / self.cluster.levels[number].achieved_bandwidth
            left /= size
        return seconds

    @cached_property
    def _layers(self) -> int:
        """Layers of the first device groups, whose memory is fullest."""
        groups = self.plan.pipeline
        return max(sum(self._sizes[group::groups]) for group in range(min(groups, 2)))

    @cached_property
    def _stored_bytes(self) -> float:
        """Bytes of parameters, gradients and optimizer states of a group, without ZeRO."""
        prices = self.prices
        ends = prices.first.stored_bytes
        ends += prices.last.stored_bytes if self.plan.pipeline == 1 else 0.0
        return self._layers * prices.layer.stored_bytes + ends

    @cached_property
    def memory_bytes(self) -> float:
        """About what a rank of the fullest group takes.

        Expert ranks divide the experts, and nothing further: of other parameters that is too much.
        In one pass gradients are divided as soon as they are made.
        """
        plan, prices, data = self.plan, self.prices, self.plan.expert_data
        saved = self._layers * prices.layer.saved_bytes + prices.first.saved_bytes
        kept = self._samples * (self._in_flight * saved + prices.transient_bytes)
        if plan.zero == _IN_PASSES:
            gathered = _GATHERED * self.shares.gathered * prices.layer.stored_bytes
            return kept + self._stored_bytes / data + gathered
        if not plan.zero:
            return kept + self._stored_bytes
        whole = self.shares.gathered if self.passes == 1 else 1 - self.shares.divided
        return kept + (self.shares.divided / data + whole) * self._stored_bytes

    @property
    def _in_flight(self) -> float:
        """Micro-batches in flight on the first group, whole passes.

        Where the backward pass has two parts, gradients are kept too until the second one.
        """
        groups, chunks = self.plan.pipeline, self.plan.chunks
        if chunks == 1:
            backward = len(SCHEDULES[self.plan.order].parts) - 1
            return min(self.passes, groups) * backward
        return min(self.passes * chunks, (chunks - 1) * groups + 2 * groups - 1) / chunks


def is_finer(fine: Mesh, coarse: Mesh) -> bool:
    """Return whether merging neighbouring axes of a mesh on one level gives another mesh.

    Examples
    --------
    >>> from shardwright.ir.mesh import MeshAxis
    >>> fine = Mesh((MeshAxis("x", 4, 1), MeshAxis("y", 2, 0), MeshAxis("z", 4, 0)))
    >>> merged = Mesh((MeshAxis("data", 4, 1), MeshAxis("tensor", 8, 0)))
    >>> is_finer(fine, merged), is_finer(merged, fine)
    (True, False)
    """
    left = [axis for axis in fine.axes if axis.size > 1]
    for axis in (axis for axis in coarse.axes if axis.size > 1):
        size = 1
        while size < axis.size and left and left[0].level == axis.level:
            size *= left.pop(0).size
        if size != axis.size:
            return False
    return not left
