"""What named plans take at least: what decides which plans are evaluated, and when none is left.

With M micro-batches, a device group g that runs p seconds of each in line, and u seconds in which
a micro-batch passes the stages before its first one, forward and backward,

    step >= M p + u          for every group

since the first micro-batch is as late, and what follows the last one as long. Where gradients of
weights are put off, those that follow the last micro-batch run beside u. The schedule, simulated
with what its segments take at least, says more of uneven stages. Links serve one collective at a
time: a pass takes no less than they gather and reduce in it, what is gathered before all passes
delays the first, and what is reduced after them follows the last. A rank holds what it stores
between steps, what it accumulates, what the micro-batches in flight have saved, and what the
backward pass of a part makes besides. Seconds and bytes of a pass are those of the parts of the
model (`parts`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import add, mul, sub

from shardwright.compiler.evaluation.data_ranks import ByDataRanks, Shape, busiest, in_a_row
from shardwright.compiler.evaluation.factors import AS_SAID, Factors
from shardwright.compiler.evaluation.in_flight import backward_passes, put_off_last
from shardwright.compiler.evaluation.parts import HeldByGroup, Kind, Part, Parts, Stage, of_each
from shardwright.compiler.evaluation.times import Times
from shardwright.cost_model.streams import Sent, transfer_seconds
from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedule_paths import (
    Pair,
    pairs_of,
    simulate_in_step,
)
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Schedule,
    Segment,
    make_schedule,
)
from shardwright.ir.mesh import Mesh
from shardwright.planner.bounds.schedule_bounds import ROUNDS, least_seconds, shortened
from shardwright.search.named_plan import NamedPlan

_Passes = tuple[list[float], ...]  # of every stage, forward and backward
_MOST_ACTIONS = 20_000
"""Actions of a schedule that is simulated in whole for a bound, which takes 0.1 s of a core then.

With half of it pipelines of more actions are bounded by what each group runs alone, by up to 3 %
less (DeepSeek-V3 in 8 uneven stages); with twice as many, bounds take as long as evaluations."""


@dataclass(frozen=True)
class Bound:
    """What a plan takes at least.

    Parameters
    ----------
    plan : NamedPlan
        The plan, with its data ranks and micro-batch.
    devices : int
        Number of ranks.
    shape : Shape
        The model on its cluster.
    parts : Parts
        What the parts of the model take on its tensor and expert ranks, with its micro-batch.
    factors : Factors
        On what the cluster's figures say.
    is_rough : bool
        Whether the parts are a share of those of a larger micro-batch, which take no less.
    is_simulated : bool
        Whether the schedule is simulated: the bound is higher, and takes longer.
    """

    plan: NamedPlan
    devices: int
    shape: Shape
    parts: Parts
    factors: Factors = field(default=AS_SAID)
    is_rough: bool = False
    is_simulated: bool = False

    @cached_property
    def passes(self) -> int:
        """Number of micro-batches."""
        return self.plan.passes(self.shape.samples, self.devices)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return self.parts.in_stages(self.plan.pipeline * self.plan.chunks)

    @cached_property
    def _schedule(self) -> Schedule:
        """The schedule of as many micro-batches as are in flight at once, or more."""
        few = min(self.passes, ROUNDS * self.plan.pipeline)
        return make_schedule(self.plan.order, self.plan.pipeline, self.plan.chunks, few)

    def _by_group(self, of: Callable[[Part], float]) -> list[float]:
        """Return what the parts of the stages of each device group have together."""
        return self._schedule.by_group(of_each([stage.whole for stage in self._stages], of))

    # Time

    @cached_property
    def seconds(self) -> float:
        """What the step takes at least."""
        if self.shape.cluster.software is not None:
            by_host = self._of_loads(self._host, self._put_off(self.factors.launching))
            if self._has_pairs:  # what one pass waits for may be beside the other
                loads = (*self._of_resources, *self._of_one_direction)
                in_line = max(self._of_loads(load, self._late) for load in loads)
            else:
                in_line = self._of_loads(self._as_run, self._late, waits=self._exposed)
            found = max(by_host, in_line)  # the host launches on while a device waits
        elif self.plan.pipeline == 1 or self.passes == 1:
            return self._of_one_stage
        else:
            found = self._of_loads(self._segments, self._late, self._once)
        return max(found, self._of_schedule) if self.is_simulated else found

    @property
    def compute_seconds(self) -> float:
        """Seconds in which the busiest device group runs operators, at least."""
        return self.passes * max(self._computing)

    @property
    def link_seconds(self) -> float:
        """Seconds for which that group waits for links in its passes, at least."""
        busiest = self._computing.index(max(self._computing))
        loads = map(add, *map(self._schedule.by_group, self._in_line))
        return self.passes * list(loads)[busiest] - self.compute_seconds

    @cached_property
    def _computing(self) -> list[float]:
        def computing(part: Part) -> float:
            times = part.forward.then(part.backward).then(self._late_of(part))
            return self.factors.computing(times)

        return self._by_group(computing)

    @cached_property
    def _in_line(self) -> _Passes:
        """What stages run in line."""
        return self._of_passes(self.factors.seconds)

    @property
    def _as_run(self) -> _Passes:
        """What stages run in line, after they have received what they wait for."""
        return tuple([*map(add, *pair)] for pair in zip(self._in_line, self._received, strict=True))

    @cached_property
    def _received(self) -> _Passes:
        """Seconds for which stages of a software receive before they run, forward and backward."""
        software, plan, factors = self.shape.cluster.software, self.plan, self.factors
        if software is None or plan.pipeline == 1:
            return [0.0] * len(self._stages), [0.0] * len(self._stages)
        level = plan.stage_level(self.shape.cluster, self.devices)
        slower = [one / factors.compute for one in map(factors.of_level, self._levels)]
        cluster = self.shape.cluster.with_links_slower_by(slower)
        ranks = plan.tensor if software.transfers == "scattered" else 1
        group_of = self._schedule.group_of

        @cache
        def sending(nbytes: float) -> float:
            sent = Sent(nbytes / ranks, ())
            return factors.compute * transfer_seconds(sent, level, Mesh(()), cluster)

        def seconds(stage: int, of: int, nbytes: float) -> float:
            return sending(nbytes) if nbytes and group_of(stage) != group_of(of) else 0.0

        received = enumerate(stage.whole.received for stage in self._stages)
        both = [(seconds(i, i - 1, one), seconds(i, i + 1, two)) for i, (one, two) in received]
        return [forward for forward, _ in both], [backward for _, backward in both]

    @property
    def _has_pairs(self) -> bool:
        """Whether passes of the schedule run beside each other."""
        software = self.shape.cluster.software
        return software is not None and software.pairs == "beside" and bool(self._schedule.pairs)

    @property
    def _of_resources(self) -> Iterator[_Passes]:
        """What stages compute, and what each level carries for them in each pass.

        Passes beside each other begin once both have received what they wait for.
        """
        received = self._received

        def after(forward: Iterable[float], backward: Iterable[float]) -> _Passes:
            return [*map(add, received[0], forward)], [*map(add, received[1], backward)]

        yield after(*self._of_passes(self.factors.computing))
        moved = self._by_data_ranks
        for level in self._levels:
            forward, backward = self._of_passes(self._on_level(level))
            again = [one[level] for one in moved.gathered_in_passes]
            behind = [one[level] for one in moved.reduced_in_passes]
            yield after(
                map(add, forward, again), map(sum, zip(backward, again, behind, strict=True))
            )

    @property
    def _of_one_direction(self) -> Iterator[_Passes]:
        """What stages run forward, and backward: of two passes beside each other one is either."""
        (forward, backward), (first, second) = self._with_exposed, self._received
        yield forward, second
        yield first, backward

    @property
    def _levels(self) -> range:
        return range(len(self.shape.cluster.levels))

    def _on_level(self, level: int) -> Callable[[Times], float]:
        return lambda times: self.factors.on_level(times, level)

    @property
    def _host(self) -> _Passes:
        """Seconds in which the host launches what stages run."""
        return self._of_passes(self.factors.launching)

    def _of_passes(self, seconds: Callable[[Times], float]) -> _Passes:
        def both(part: Part) -> tuple[float, float]:
            backward = seconds(part.backward) + seconds(self._late_of(part))
            return seconds(part.forward), backward

        found = of_each([stage.whole for stage in self._stages], both)
        return [forward for forward, _ in found], [backward for _, backward in found]

    def _put_off(self, seconds: Callable[[Times], float]) -> list[float]:
        """Return what stages run of a micro-batch that no other group waits for."""
        whole = [stage.whole for stage in self._stages]
        return of_each(whole, lambda part: seconds(self._late_of(part)))

    def _late_of(self, part: Part) -> Times:
        """Return what a part runs in each pass that no earlier part waits for.

        A rank whose gradients are reduced once adds whole ones to those of the passes before.
        """
        adds = self.passes > 1 and not any(
            kind.held[self.plan.zero].reduced_in_passes for kind in part.elements
        )
        return part.weights.then(part.added) if adds else part.weights

    @property
    def _segments(self) -> _Passes:
        """Seconds of the passes of stages: links gather and reduce beside what runs in line."""
        forward, backward = zip(self._in_line, self._moved_in_passes, strict=True)
        return list(map(max, *forward)), list(map(max, *backward))

    @cached_property
    def _moved_in_passes(self) -> _Passes:
        """Seconds in which stages gather and reduce in each pass, forward and backward."""
        moved = self._by_data_ranks
        again, reductions = map(self._moved, (moved.gathered_in_passes, moved.reduced_in_passes))
        return again, list(map(add, again, reductions))

    def _moved(self, stages: Sequence[list[float]]) -> list[float]:
        """Return the seconds in which data ranks move what stages have: a software in a row."""
        return (busiest if self.shape.cluster.software is None else in_a_row)(stages)

    @cached_property
    def _by_data_ranks(self) -> ByDataRanks:
        """What data ranks gather and reduce of the layers of stages."""
        layers = [stage.layers for stage in self._stages]
        return ByDataRanks(self.plan, self.devices, self.shape, self.factors, layers)

    @property
    def _with_exposed(self) -> _Passes:
        """What stages run in line, with the waits for what data ranks move in the pass."""
        share = self._exposed_share
        forward, backward = (
            [one + share * two for one, two in zip(own, beside, strict=True)]
            for own, beside in zip(self._as_run, self._moved_in_passes, strict=True)
        )
        return forward, backward

    @property
    def _once(self) -> list[tuple[float, float]]:
        """Seconds in which groups gather before all passes, and reduce after them."""
        moved = self._by_data_ranks
        before = self._moved(moved.gathers(lambda held: not held.in_passes))
        after = self._moved(moved.reductions(lambda held: not held.reduced_in_passes))
        sums = map(self._schedule.by_group, (before, after))
        return list(zip(*sums, strict=True))

    @property
    def _of_schedule(self) -> float:
        """The step of the schedule whose segments take what they take at least; 0 without stages.

        The order of its actions is given: where segments take longer, none begins earlier.
        """
        plan, software = self.plan, self.shape.cluster.software
        if plan.pipeline == 1 or self.passes == 1:
            return 0.0
        named = plan.order, plan.pipeline, plan.chunks, self.passes
        share = self._exposed_share
        before, after = ([share * one for one in each] for each in zip(*self._once, strict=True))
        is_short = 2 * plan.pipeline * plan.chunks * self.passes <= _MOST_ACTIONS
        if not (is_short or SCHEDULES[plan.order].repeats):
            return 0.0
        if software is not None and software.stages == "in_step" and is_short:
            schedule = make_schedule(*named)
            found = simulate_in_step(schedule, self._durations(schedule), begin=before)
            return max(
                end + after[schedule.group_of(action.stage)]
                for action, end in zip(found.order, found.ends, strict=True)
            )
        schedule = shortened(*named)
        durations = self._durations(schedule)
        both = self._beside(schedule, durations) if self._has_pairs else None
        return least_seconds(schedule, self.passes, durations, before, after, both)

    def _beside(self, schedule: Schedule, durations: Mapping[Segment, float]) -> dict[Pair, float]:
        """Return what pairs of segments take at least: the longer pass, and what both compute."""
        found, loads = dict[Pair, float](), [*self._of_resources]
        for pair in pairs_of(schedule):
            (stage, _), *others = pair
            other = others[0][0]
            own, behind = durations[pair[0]], sum(durations[segment] for segment in others)
            received = self._received[1][other] if (other, BACKWARD) in others else 0.0
            each = [own + received, behind + self._received[0][stage]]
            if len(pair) == len(schedule.parts):  # of whole passes
                each += (forward[stage] + backward[other] for forward, backward in loads)
                if (told := self._told_beside(stage, other)) is not None:
                    each.append(min(own + behind, self._received[0][stage] + received + told))
            found[pair] = max(each)
        return found

    def _told_beside(self, stage: int, other: int) -> float | None:
        """Return what tasks tell of a pair of whole passes in which data ranks move nothing."""
        one, two = self._stages[stage].whole, self._stages[other].whole
        kinds = (kind.held[self.plan.zero] for kind in {**one.elements, **two.elements})
        moves = any(held.in_passes or held.reduced_in_passes for held in kinds)
        if moves or WEIGHTS in self._schedule.parts or self.factors != AS_SAID:
            return None
        return self.parts.beside(one, two)

    def _durations(self, schedule: Schedule) -> dict[Segment, float]:
        """Return what the segments of a schedule take at least.

        Where gradients of weights are segments of their own, what links gather and reduce may be
        beside either.
        """
        forward, backward = self._as_run
        if WEIGHTS in schedule.parts:
            late = [self.factors.seconds(self._late_of(stage.whole)) for stage in self._stages]
            parts = {FORWARD: forward, BACKWARD: list(map(sub, backward, late)), WEIGHTS: late}
        elif self.shape.cluster.software is None:
            forward, backward = self._segments
            parts = {FORWARD: forward, BACKWARD: backward}
        else:
            parts = dict(zip((FORWARD, BACKWARD), self._with_exposed, strict=True))
        return {(stage, part): parts[part][stage] for stage, part in schedule.segments}

    @property
    def _exposed_share(self) -> float:
        """Share of what data ranks move for which a group waits; without software all it has."""
        software, share = self.shape.cluster.software, self.factors.exposed
        if software is None:
            return 1.0
        return software.exposed_parameters.value if share is None else share

    @property
    def _of_one_stage(self) -> float:
        """The bound where all links are beside all passes: the last pass reduces what it makes."""
        found = self._of_loads(self._in_line, self._late)
        all_moved = self._by_data_ranks.gathers(), self._by_data_ranks.reductions()
        each = *self._in_line, *map(busiest, all_moved), *self._moved_in_passes
        for forward, backward, gathers, reductions, again, behind in zip(
            *map(self._schedule.by_group, each), strict=True
        ):
            first, last = max(forward, gathers), max(backward, reductions)
            inner = (self.passes - 1) * (forward + backward)
            found = max(found, first + inner + last, self.passes * (again + behind))
        return found

    @property
    def _exposed(self) -> list[float]:
        """Seconds for which groups of a training software wait for what data ranks move."""
        in_passes = map(add, *map(self._schedule.by_group, self._moved_in_passes))
        pairs = zip(self._once, in_passes, strict=True)
        return [self._exposed_share * (sum(once) + self.passes * one) for once, one in pairs]

    @property
    def _late(self) -> list[float]:
        return self._put_off(self.factors.seconds)

    def _of_loads(
        self,
        passes: _Passes,
        late: Sequence[float],
        once: Sequence[tuple[float, float]] | None = None,
        waits: Sequence[float] | None = None,
    ) -> float:
        """Return the bound by what groups run, forward and backward, and once before and after.

        Each group waits beside that, in its own line.
        """
        (forward, backward), groups, found = passes, self.plan.pipeline, 0.0
        put_off = put_off_last(self._schedule)
        waited = waits or [0.0] * groups
        reached, left = 0.0, 0.0  # when a group begins at least, and what follows its last pass
        for group in range(groups):
            before, after = once[group] if once else (0.0, 0.0)
            load = sum(
                forward[stage] + backward[stage] for stage in self._schedule.stages_on(group)
            )
            reached = max(reached, before)
            own = reached + self.passes * load
            follows = own - sum(late[stage] for stage in put_off[group]) + left
            found = max(found, own + after + waited[group], follows + min(waited))
            reached += forward[group]
            awaited = backward[group] - (late[group] if put_off[-1] else 0.0)
            left = max(left, after) + awaited
        return found

    # Memory

    @cached_property
    def memory_by_kind(self) -> Mapping[str, float]:
        """What a rank of the fullest group takes at least, by kind."""
        groups, saved = self.parts.on_groups(self._schedule), self._saved
        if self.passes == 1:
            each = map(self._memory_of, groups, saved)
            return max(each, key=lambda kinds: sum(kinds.values()))
        stored = of_each(groups, lambda held: self._memory_of(held, 0.0))
        all_of_it = [sum(kinds.values()) + more for kinds, more in zip(stored, saved, strict=True)]
        fullest = all_of_it.index(max(all_of_it))
        return {**stored[fullest], "activations": saved[fullest]}

    @cached_property
    def memory_bytes(self) -> float:
        """What a rank of the fullest group takes at least."""
        return sum(self.memory_by_kind.values())

    def _memory_of(self, held: HeldByGroup, saved: float) -> dict[str, float]:
        """Return what a group takes at least, by kind, with what it has saved at once."""
        stored, plan = self.shape.stored, self.plan
        kept = lower = again = gradients = 0.0
        for kind, count in held.elements.items():
            if kind.is_stored_elsewhere:
                given = count if len(self._stages) > 1 and self.passes > 1 else 0.0
                lower, gradients = lower + given, gradients + given
                continue
            how, share = kind.held[plan.zero], count / self._copies(kind)
            kept += share if how.divided else count
            lower += share if how.in_passes else count
            again += count if kind.is_read_again and not how.in_passes else 0.0
            gradients += share if how.reduced_in_passes else count
        if self.passes == 1:  # no loop: copies are freed once no pass reads them
            copies = stored.lower * again  # no gradient has been made, and all that are read wait
            at_turn = held.saved + copies > saved
            lower, saved = (again, held.saved) if at_turn else (0.0, saved)
        frozen = held.frozen / (plan.data or 1) if plan.zero_stage.in_passes else held.frozen
        found = {
            "parameters": stored.master * kept + stored.lower * lower + frozen,
            "optimizer states": stored.states * kept,
        }
        if self.passes > 1:
            found["gradients"] = stored.gradient * gradients
        return {**found, "activations": saved}

    def _copies(self, kind: Kind) -> int:
        """Return the ranks that share the batch and have the same elements without ZeRO."""
        return self.plan.expert_data if kind.of_experts else self.plan.data or 1

    @property
    def _saved(self) -> Sequence[float]:
        """What groups have saved and made where a backward pass has most, at least.

        How data ranks hold parameters matters as far as they gather them in it.
        """
        dense, experts = (self.plan.data or 1) > 1, self.plan.expert_data > 1
        gathered = dense + 2 * experts if self.plan.zero_stage.in_passes else 0
        known, key = self.parts.saved, (self._schedule, gathered)
        if key not in known:
            groups = range(self.plan.pipeline)
            known[key] = [self._saved_on(group, gathered) for group in groups]
        return known[key]

    def _saved_on(self, group: int, gathered: int) -> float:
        parts = [self._stages[stage].whole for stage in self._schedule.stages_on(group)]
        saved = [part.saved for part in parts]
        late = [part.late for part in parts]
        peaks = [part.peak[gathered] for part in parts]
        if WEIGHTS in self._schedule.parts:  # gradients of weights run within the pass, or later
            peaks = [min(part.peak[gathered], part.early[gathered]) for part in parts]
        if self.passes == 1:  # no loop: in the order of the program no gradient is put off
            late = [0.0] * len(parts)
        return max(
            sum(map(mul, flight.passes, saved))
            + sum(map(mul, flight.weights, late))
            + max(peaks[chunk] - saved[chunk], 0.0)
            for chunk, flight in backward_passes(self._schedule)[group]
        )
