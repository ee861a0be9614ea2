"""About what a plan of Megatron's family takes: its step and its memory, by formulas.

With M micro-batches, a busiest device group of p seconds a pass, S device groups of V chunks, and d
seconds in which the parameters of a rank are gathered once over the data ranks,

    step ~ M p + (S - 1) / V (mean of p) + 2 d

and where parameters are gathered in every pass, a pass takes no less than that. As a training
software runs it, a pass takes no less than the host needs to launch it, and the shares of
communication that the software exposes are added.

A device group takes what it stores, what is saved for its micro-batches in flight, and what small
built models hold beside that at the peak of a layer or of an end (`compiler.fit.held`); or, where
it is known and more, what the training software keeps of them. The plan takes what its fullest
group does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from operator import add

from shardwright.compiler.fit.held import FIRST, LAST, LAYERS, Held, Kept
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.outer.degrees import seconds_of_schedule
from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.placement import even_sizes
from shardwright.search.named_plan import NamedPlan

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
    sharing : int, optional
        Data ranks over which ZeRO divides, the nearest ones; by default all.
    factors : Factors
        On what the cluster's figures say.
    """

    plan: NamedPlan
    model: FitModel
    devices: int
    sharing: int | None = None
    factors: Factors = field(default=AS_SAID)

    @cached_property
    def passes(self) -> int:
        """Number of micro-batches."""
        return self.plan.passes(self.model.samples, self.devices)

    @property
    def fits(self) -> bool:
        """Whether it fits the memory limit."""
        return self.memory_bytes <= self.model.limit_bytes

    @property
    def _samples(self) -> int:
        return self.plan.micro_batch or 1

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
        rates = self._samples, self.factors.compute, self.factors.of_level(0)
        parts = self.model.seconds(self.plan.tensor, self.plan.recompute)
        device = self._by_stage([part.of(*rates) for part in parts])
        host = self._by_stage([part.host for part in parts])
        return tuple(map(add, map(max, device, host), self._received))

    @property
    def _received(self) -> list[float]:
        """Seconds of every stage for which it receives in a pass, where software waits for that."""
        last = len(self._sizes) - 1
        if self.model.run_on.software is None or not last:
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
        waits = self.model.run_on.software is not None  # which then are in the durations
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
        sent = level.send_seconds(self._samples * self.model.passed_bytes(self.plan.tensor))
        seconds = cluster.device.launch_seconds + sent * self.factors.of_level(number)
        software = cluster.software
        if software is None:
            return seconds
        exposed = software.exposed_transfers
        return (seconds + software.transfer.value) * (1.0 if exposed is None else exposed.value)

    def _with_data(self, seconds: float) -> float:
        """Add gathers and reductions over the data ranks to seconds without them."""
        once = self._times(_ONCE) * self._gather_seconds + self._copies_seconds
        gathers = self.passes * self._gathers_in_pass * self._gather_seconds
        if self.passes == 1:  # they run concurrently with the pass
            gathers, once = gathers + once, 0.0
        usual, software = 0.0, self.model.run_on.software
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
        most = max(range(self.plan.pipeline), key=self._stored.__getitem__)
        layers = self._stored_parts[0] * self._layers_of(most)
        return times - 1 + layers / self._stored[most]

    def _times(self, by_stage: Mapping[int, tuple[int, int]]) -> float:
        """Return how many gathers its gathers and reductions take as long as."""
        gathers, reductions = by_stage.get(self.plan.zero, (0, 0))
        return gathers + self._reduction * reductions

    @property
    def _reduction(self) -> float:
        """How long a reduction of gradients takes, in gathers of as many parameters."""
        return self.model.stored.reduced / self.model.stored.gathered

    @cached_property
    def _data_parts(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The (size, level) of the data ranks over which ZeRO divides, and of the others."""
        inside, outside, left = [], [], self.sharing or self.plan.data or 1
        for size, level in self.plan.parts(self.model.run_on, self.devices)["data"]:
            own = min(size, left)
            left //= own
            inside.append((own, level))
            outside.append((size // own, level))
        return inside, outside

    @cached_property
    def _gather_seconds(self) -> float:
        """Seconds in which the parameters of a rank are gathered, in the type of computation."""
        stored = self.model.stored
        return self._moved(stored.gathered / stored.total, self._data_parts[0])

    @cached_property
    def _copies_seconds(self) -> float:
        """Seconds of reductions between groups that have a copy of what ZeRO divides each."""
        stored, (inside, outside) = self.model.stored, self._data_parts
        share = stored.gathered / stored.total / prod(size for size, _ in inside)
        return 2 * self._reduction * self._moved(share, outside)

    def _moved(self, share: float, parts: list[tuple[int, int]]) -> float:
        """Return the seconds in which a share of what the fullest group stores is gathered."""
        left, seconds = share * max(self._stored), 0.0
        for size, number in parts:
            level = self._cluster.levels[number]
            each = left * (1 - 1 / size) / level.achieved_bandwidth
            seconds += each * self.factors.of_level(number)
            left /= size
        return seconds

    # Memory

    @cached_property
    def _stored(self) -> tuple[float, ...]:
        """Bytes of parameters, gradients and optimizer states of every group, without ZeRO."""
        layer, first, last = self._stored_parts
        found = [layer * self._layers_of(group) for group in range(self.plan.pipeline)]
        found[0] += first
        found[-1] += last
        return tuple(found)

    @cached_property
    def _stored_parts(self) -> tuple[float, float, float]:
        """The same of a layer, of what is before all of them, and after."""
        return self.model.stored_parts(self.plan)

    @cached_property
    def memory_of_groups(self) -> tuple[Mapping[str, float], ...]:
        """About what a rank of every device group takes, by kind."""
        return self._memory_of_groups(self._samples)

    def memory_with(self, samples: int) -> float:
        """Return about what the fullest group takes with other micro-batches, as many in flight."""
        return max(sum(kinds.values()) for kinds in self._memory_of_groups(samples))

    def _memory_of_groups(self, samples: int) -> tuple[Mapping[str, float], ...]:
        return tuple(self._memory_of(group, samples) for group in range(self.plan.pipeline))

    @cached_property
    def memory_by_kind(self) -> Mapping[str, float]:
        """About what a rank of the fullest group takes, by kind."""
        return max(self.memory_of_groups, key=lambda kinds: sum(kinds.values()))

    @cached_property
    def memory_bytes(self) -> float:
        """About what a rank of the fullest group takes."""
        return sum(self.memory_by_kind.values())

    def _memory_of(self, group: int, samples: int) -> Mapping[str, float]:
        """Return what a group takes, or more as the training software keeps its tensors."""
        stored, (held, kept) = self.model.stored, self.held(samples)
        ranks = prod(size for size, _ in self._data_parts[0])
        elements, at_once = (n / stored.total for n in (self._stored[group], self._at_once(group)))
        lasting = stored.on_rank(elements, self.plan.zero, ranks, self.passes, at_once)
        own = {**lasting, **self._activations_of(group, samples, held)}
        if kept is None:
            return own
        if kept.gradient_bytes and self.passes == 1:
            lasting["gradients"] = kept.gradient_bytes * elements
        other = kept.memory({**lasting, **self._activations_of(group, samples, kept)}, samples)
        return max(own, other, key=lambda kinds: sum(kinds.values()))

    def held(self, samples: int) -> tuple[Held, Kept | None]:
        """Return what the plan holds, and as the training software keeps it, of so many samples.

        Of one micro-batch, ZeRO 1 reduces gradients as ZeRO 2 does.
        """
        once = self.plan.zero == 1 and self.passes == 1
        return self.model.held(replace(self.plan, zero=2) if once else self.plan, samples)

    def _activations_of(self, group: int, samples: int, held: Held) -> dict[str, float]:
        """Return what is saved on a group, and what it holds beside that at its peak."""
        of_pass = samples * self._layers_of(group) * held.saved_bytes
        peaks = [held.of(LAYERS, samples)]
        if group == 0:  # at the end of a backward pass, which has freed what it had saved
            peaks.append(held.of(FIRST, samples) - of_pass)
        if group == self.plan.pipeline - 1:
            peaks.append(held.of(LAST, samples))
        return {"saved activations": self._in_flight(group) * of_pass, "transient": max(peaks)}

    def _at_once(self, group: int) -> float:
        """Return what is stored of the parameters that are gathered at once, or reduced."""
        layer, head, tail = self._stored_parts
        first, last = group == 0, group == self.plan.pipeline - 1
        return max(min(_GATHERED, self._layers_of(group)) * layer, first * head, last * tail)

    def _in_flight(self, group: int) -> float:
        """Micro-batches in flight on a group, whole passes."""
        groups, chunks = self.plan.pipeline, self.plan.chunks
        if self.plan.order == "gpipe":
            return self.passes
        if chunks == 1:
            return min(self.passes, groups - group)
        ahead = (chunks - 1) * groups + 2 * (groups - 1 - group) + 1
        return min(self.passes * chunks, ahead) / chunks
