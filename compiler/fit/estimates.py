"""About what a plan of Megatron's family takes, to choose which plans are evaluated.

Nothing that is printed of a plan is estimated, but of the many plans of a page that are not
evaluated, and there it is said. With M micro-batches, a busiest device group of p seconds a pass, S
device groups of V chunks, and d seconds in which the parameters of a rank are gathered once,

    step ~ M p + (S - 1) / V (mean of p) + 2 d

and where parameters are gathered in every pass, a pass takes no less than that. The seconds of a
pass, what it saves and what it holds beside that are those of the parts of the model
(`compiler.evaluation.parts`). As a training software runs it, a pass takes no less than the host
needs to launch it, and the shares of communication that the software exposes are added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add

from shardwright.compiler.evaluation.parts import Part, Parts
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.outer.degrees import on_tensor_ranks, seconds_of_schedule
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.memory_as_run import GRADIENT, RESERVE, WORKSPACE
from shardwright.dataflow.placement import even_sizes
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_axes import has_copies, is_of_batch

_GATHERED = 2  # layers whose parameters are gathered at once in a pass
# Gathers and reductions of all parameters over the data ranks, by ZeRO stage: in each pass, once.
_IN_PASSES = {2: (0, 1), 3: (2, 1)}
_ONCE = {0: (0, 2), 1: (1, 1), 2: (1, 0)}
_IN_ALL = 3  # the ZeRO stage that gathers in every pass
_MOST_ACTIONS = 20_000  # of a schedule that is simulated


@dataclass(frozen=True)
class Factors:
    """Factors on the seconds that the figures of a cluster say.

    Parameters
    ----------
    compute : float
        On the seconds of operators.
    links : tuple of float
        On the seconds of communication by each level of the cluster; 1 for levels beyond them.
    exposed : float, optional
        Share of the gathers in every pass for which computation waits; by default that of the
        training software, and none without one.
    """

    compute: float = 1.0
    links: tuple[float, ...] = ()
    exposed: float | None = None

    def of_level(self, level: int) -> float:
        """Return the factor of a level."""
        return self.links[level] if level < len(self.links) else 1.0

    def seconds(self, part: Part) -> float:
        """Return the seconds of a pass of a part on the devices."""
        links = (self.of_level(level) * one for level, one in enumerate(part.links))
        return self.compute * part.compute + sum(links)


AS_SAID = Factors()


@dataclass(frozen=True)
class Estimate:
    """About what a plan takes.

    Parameters
    ----------
    plan : NamedPlan
        The plan, with its data ranks and micro-batch.
    model : FitModel
        The model on its cluster.
    devices : int
        Number of ranks.
    parts : Parts
        What the parts of the model take on its tensor and expert ranks, with its micro-batch.
    factors : Factors
        On what the cluster's figures say.
    """

    plan: NamedPlan
    model: FitModel
    devices: int
    parts: Parts
    factors: Factors = field(default=AS_SAID)

    @staticmethod
    def of(plan: NamedPlan, model: FitModel, devices: int) -> "Estimate | None":
        """Return about what a plan takes; None where the model has no such plan."""
        parts = model.parts(ranks_of(plan), plan.micro_batch or 1)
        return None if parts is None else Estimate(plan, model, devices, parts)

    @cached_property
    def passes(self) -> int:
        """Number of micro-batches."""
        return self.plan.passes(self.model.samples, self.devices)

    @property
    def fits(self) -> bool:
        """Whether it fits the memory limit."""
        return self.memory_bytes <= self.model.limit_bytes

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return even_sizes(self.model.layers, self.plan.pipeline * self.plan.chunks)

    def _layers_of(self, group: int) -> int:
        return sum(self._sizes[group :: self.plan.pipeline])

    # Time

    @cached_property
    def durations(self) -> tuple[float, ...]:
        """Seconds of a pass of every stage over a micro-batch."""
        each = self.parts.layer, self.parts.first, self.parts.last
        device = self._by_stage([self.factors.seconds(part) for part in each])
        host = self._by_stage([part.host for part in each])
        return tuple(map(add, map(max, device, host), self._received))

    @property
    def _received(self) -> list[float]:
        """Seconds of every stage for which it receives in a pass, where software waits for that."""
        last = len(self._sizes) - 1
        if self.model.software is None or not last:
            return [0.0] * (last + 1)
        each = self._transfer_seconds
        return [each * ((stage > 0) + (stage < last)) for stage in range(last + 1)]

    def _by_stage(self, parts: Sequence[float]) -> list[float]:
        """Return the sums of every stage, of what a layer and both ends take."""
        layer, first, last = parts
        seconds = [size * layer for size in self._sizes]
        seconds[0] += first
        seconds[-1] += last
        return seconds

    @cached_property
    def seconds(self) -> float:
        """About how long the step takes, by the formula."""
        return self._with_data(sum(self._passes_and_bubble))

    @property
    def _passes_and_bubble(self) -> tuple[float, float]:
        """Seconds of the passes of the busiest device group, and in which a group waits."""
        groups = self.plan.pipeline
        loads = [sum(self.durations[group::groups]) for group in range(groups)]
        bubble = (groups - 1) / self.plan.chunks * sum(loads) / groups
        return self.passes * max(loads), bubble

    @property
    def seconds_by_part(self) -> Mapping[str, float]:
        """What the formula's step is made of."""
        passes, bubble = self._passes_and_bubble
        return {
            "passes of the busiest devices": passes,
            "pipeline fills and drains": bubble,
            "data ranks, and what is done once": max(self.seconds - passes - bubble, 0.0),
        }

    @cached_property
    def refined_seconds(self) -> float:
        """About how long the step takes, by its simulated schedule."""
        plan = self.plan
        if plan.pipeline == 1 or self.passes * len(self.durations) > _MOST_ACTIONS:
            return self.seconds
        waits = self.model.software is not None  # which then are in the durations
        transfer = 0.0 if waits else self._transfer_seconds
        return self._with_data(seconds_of_schedule(plan, self.passes, self.durations, transfer))

    @cached_property
    def _cluster(self) -> Cluster:
        """The part of the cluster that the devices use."""
        return self.model.run_on.used_by(self.devices)

    @property
    def _transfer_seconds(self) -> float:
        """Seconds in which a micro-batch passes from a stage to the next."""
        cluster = self._cluster
        number = self.plan.stage_level(cluster, self.devices)
        level = cluster.levels[number]
        samples = self.plan.micro_batch or 1
        sent = level.send_seconds(samples * self.model.passed_bytes / self.plan.tensor)
        seconds = cluster.device.launch_seconds + sent * self.factors.of_level(number)
        software = cluster.software
        if software is None:
            return seconds
        exposed = software.exposed_transfers
        return (seconds + software.transfer.value) * (1.0 if exposed is None else exposed.value)

    def _with_data(self, seconds: float) -> float:
        """Add gathers and reductions over the data ranks to seconds without them."""
        once = self._times(_ONCE) * self._gather_seconds
        gathers = self.passes * self._gathers_in_pass * self._gather_seconds
        if self.passes == 1:  # they run concurrently with the pass
            gathers, once = gathers + once, 0.0
        usual, software = 0.0, self.model.software
        if software is not None:
            usual = software.exposed_parameters.value
            once = once * usual + software.step.value
        exposed = usual if self.factors.exposed is None else self.factors.exposed
        return max(seconds + exposed * gathers, gathers) + once

    @property
    def _gathers_in_pass(self) -> float:
        """Gathers and reductions in a pass: those of the ends of a model are not gathered again."""
        times = self._times(_IN_PASSES)
        if self.plan.zero != _IN_ALL:
            return times
        most = max(range(self.plan.pipeline), key=self._elements.__getitem__)
        layers = self.parts.layer.elements * self._layers_of(most)
        return times - 1 + layers / self._elements[most]

    def _times(self, by_stage: Mapping[int, tuple[int, int]]) -> float:
        """Return how many gathers its gathers and reductions take as long as."""
        gathers, reductions = by_stage.get(self.plan.zero, (0, 0))
        stored = self.model.stored
        return gathers + stored.reduced / stored.gathered * reductions

    @cached_property
    def _gather_seconds(self) -> float:
        """Seconds in which the parameters of a rank are gathered, in the type of computation."""
        parts = self.plan.parts(self._cluster, self.devices)
        fullest = max(range(self.plan.pipeline), key=self._elements.__getitem__)
        experts = self._of_experts[fullest]
        of_batch = [one for name in parts if is_of_batch(name) for one in parts[name]]
        of_copies = [one for name in parts if has_copies(name) for one in parts[name]]
        others = self._moved(self._elements[fullest] - experts, of_batch)
        return others + self._moved(experts, of_copies)

    def _moved(self, elements: float, parts: Sequence[tuple[int, int]]) -> float:
        """Return the seconds in which elements of the fullest group are gathered."""
        left, seconds = self.model.stored.gathered * elements, 0.0
        for size, number in parts:
            level = self._cluster.levels[number]
            each = left * (1 - 1 / size) / level.achieved_bandwidth
            seconds += each * self.factors.of_level(number)
            left /= size
        return seconds

    # Memory

    def _of_groups(self, layer: float, first: float, last: float) -> tuple[float, ...]:
        """Return the sums of every group."""
        found = [layer * self._layers_of(group) for group in range(self.plan.pipeline)]
        found[0] += first
        found[-1] += last
        return tuple(found)

    @cached_property
    def _elements(self) -> tuple[float, ...]:
        """Trained elements of a rank of every group, without ZeRO."""
        parts = self.parts
        return self._of_groups(parts.layer.elements, parts.first.elements, parts.last.elements)

    @cached_property
    def _of_experts(self) -> tuple[float, ...]:
        """Those of them that expert ranks divide."""
        parts = self.parts
        of_parts = parts.layer.of_experts, parts.first.of_experts, parts.last.of_experts
        return self._of_groups(*of_parts)

    @cached_property
    def memory_of_groups(self) -> tuple[Mapping[str, float], ...]:
        """About what a rank of every device group takes, by kind."""
        return tuple(map(self._memory_of, range(self.plan.pipeline)))

    @cached_property
    def memory_by_kind(self) -> Mapping[str, float]:
        """About what a rank of the fullest group takes, by kind."""
        return max(self.memory_of_groups, key=lambda kinds: sum(kinds.values()))

    @cached_property
    def memory_bytes(self) -> float:
        """About what a rank of the fullest group takes."""
        return sum(self.memory_by_kind.values())

    def _memory_of(self, group: int) -> Mapping[str, float]:
        """Return what a group takes, with what a training software reserves."""
        stored, plan = self.model.stored, self.plan
        experts, data = self._of_experts[group], plan.data or 1
        own = self._elements[group] - experts, experts
        ranks = data, plan.expert_data
        shares = [n / max(self._elements[group], 1.0) for n in own]
        lasting: dict[str, float] = {}
        for elements, many, share in zip(own, ranks, shares, strict=True):
            at_once = share * self._at_once(group)
            kinds = stored.on_rank(elements, plan.zero, many, self.passes, at_once)
            lasting = {kind: lasting.get(kind, 0.0) + nbytes for kind, nbytes in kinds.items()}
        found = {**lasting, **self._activations_of(group)}
        software = self.model.software
        if software is not None and software.memory is not None:
            if software.memory.gradients == "whole" and self.passes == 1:
                found["gradients"] = max(found["gradients"], GRADIENT * self._elements[group])
            found[WORKSPACE] = self.parts.workspace
            found[RESERVE] = (software.memory.reserved.value - 1) * sum(found.values())
        return found

    def _activations_of(self, group: int) -> dict[str, float]:
        """Return what is saved on a group, and what it holds beside that at its peak."""
        parts, first, last = self.parts, group == 0, group == self.plan.pipeline - 1
        of_pass = self._layers_of(group) * parts.layer.saved
        peaks = [parts.layer.peak]
        if first:  # at the end of a backward pass, which has freed what it had saved
            peaks.append(parts.first.peak - of_pass)
        if last:
            peaks.append(parts.last.peak)
        gathered = self.model.stored.gathered * self._at_once(group)
        held = gathered if self.plan.zero == _IN_ALL else 0.0
        saved = self._in_flight(group) * (of_pass + first * parts.first.saved)
        return {"saved activations": saved, "transient": max(peaks) + held}

    def _at_once(self, group: int) -> float:
        """Return the elements of the parameters that are gathered at once, or reduced."""
        parts, layers = self.parts, min(_GATHERED, self._layers_of(group))
        first, last = group == 0, group == self.plan.pipeline - 1
        ends = first * parts.first.elements, last * parts.last.elements
        return max(layers * parts.layer.elements, *ends)

    def _in_flight(self, group: int) -> float:
        """Micro-batches in flight on a group, whole passes."""
        groups, chunks = self.plan.pipeline, self.plan.chunks
        if self.plan.order == "gpipe":
            return self.passes
        if chunks == 1:
            return min(self.passes, groups - group)
        ahead = (chunks - 1) * groups + 2 * (groups - 1 - group) + 1
        return min(self.passes * chunks, ahead) / chunks


def ranks_of(plan: NamedPlan) -> NamedPlan:
    """Return the plan of the tensor and expert ranks of a plan alone, with what it recomputes."""
    ranks = on_tensor_ranks(plan.tensor, plan.expert, plan.expert_tensor)
    return replace(ranks, sequence_parallel=plan.sequence_parallel, recompute=plan.recompute)
