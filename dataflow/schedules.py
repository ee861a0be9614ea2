"""Schedules of pipelines: the order in which each device group runs the segments of its stages.

There are ``S`` device groups with ``V`` chunks each, so ``S V`` stages; the `StageMap` of a
schedule says which group has which. A step runs ``M`` micro-batches through all stages, forward and
then backward. A schedule says in which order each group does that. It is a pure function of its
name, S, V and M: an `Order` of `orders`, which is registered under the name.

Knows neither programs nor seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

from shardwright.dataflow.orders import BACKWARD as BACKWARD
from shardwright.dataflow.orders import FORWARD as FORWARD
from shardwright.dataflow.orders import PARTS as PARTS
from shardwright.dataflow.orders import SCHEDULES, Order, actions_of
from shardwright.dataflow.orders import WEIGHTS as WEIGHTS
from shardwright.dataflow.orders import Action as Action
from shardwright.dataflow.orders import Segment as Segment
from shardwright.ir.errors import ExecutionError, OptionError
from shardwright.ir.mesh import StageMap
from shardwright.ir.registry import explained

_V = TypeVar("_V")


@dataclass(frozen=True, eq=False)  # compared by identity: hashing all actions is slow
class Schedule:
    """The actions of every device group, in order.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`.
    groups, chunks, micro_batches : int
        Device groups S, chunks V of each, and micro-batches M.
    actions : tuple of (tuple of Action)
        The actions of each device group.
    in_v : bool
        Whether the stages go to and fro between the groups; see `StageMap`.
    pairs : mapping of Action to (tuple of Action)
        What may run beside a forward pass: the actions behind it, of a backward pass of another
        micro-batch.
    """

    name: str
    groups: int
    chunks: int
    micro_batches: int
    actions: tuple[tuple[Action, ...], ...]
    in_v: bool = False
    pairs: Mapping[Action, tuple[Action, ...]] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.groups * self.chunks

    @cached_property
    def stage_map(self) -> StageMap:
        """Which device group runs which stages."""
        return StageMap(self.groups, self.in_v)

    def group_of(self, stage: int) -> int:
        """Return the device group of a stage."""
        return self.stage_map.group(stage)

    def stages_on(self, group: int) -> tuple[int, ...]:
        """Return the stages of a device group."""
        return self._stages_of[group]

    @cached_property
    def _stages_of(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.stage_map.stages(group, self.stages) for group in range(self.groups))

    def by_stage(self, values: Sequence[_V]) -> list[_V]:
        """Return for each stage the value of its device group."""
        return [values[self.group_of(stage)] for stage in range(self.stages)]

    def by_group(self, values: Sequence[float]) -> list[float]:
        """Return for each device group the sum of the values of its stages."""
        return [sum([values[stage] for stage in stages]) for stages in self._stages_of]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of a pass over a micro-batch."""
        found = {action.part for action in chain.from_iterable(self.actions)}
        return tuple(part for part in PARTS if part in found)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of one micro-batch, in program order."""
        stages = range(self.stages)
        found: list[Segment] = [(stage, FORWARD) for stage in stages]
        later = [part for part in self.parts if part != FORWARD]
        return (*found, *((stage, part) for stage in reversed(stages) for part in later))

    @cached_property
    def order(self) -> tuple[Action, ...]:
        """All actions in an order in which one process can run them.

        Each group in turn runs what it can, as the queues of sends and receives would allow, and
        both of a pair when both can run.

        Raises
        ------
        ExecutionError
            If groups wait for each other.
        """
        return tuple(_execution_order(self))


def make_schedule(name: str, groups: int, chunks: int, micro_batches: int) -> Schedule:
    """Return a schedule, checked: it runs every segment once, without deadlock.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`.
    groups, chunks, micro_batches : int
        Device groups S, chunks V of each, and micro-batches M.

    Raises
    ------
    OptionError
        If there is no such schedule, or it does not exist for these numbers.
    """
    check_options(name, groups, chunks, micro_batches)
    return _made(SCHEDULES[name], name, groups, chunks, micro_batches)


def check_options(name: str, groups: int, chunks: int, micro_batches: int | None = None) -> None:
    """Check that a schedule exists, for some number of micro-batches unless it is given.

    Raises
    ------
    OptionError
        If there is no such schedule, or it does not exist for these numbers.
    """
    if name not in SCHEDULES:
        raise OptionError(f"unknown schedule `{name}`: expected {', '.join(SCHEDULES)}")
    numbers = {"device groups": groups, "chunks": chunks, "micro-batches": micro_batches}
    for what, number in numbers.items():
        if number is not None and number < 1:
            raise OptionError(f"a pipeline has {number} {what}, expected at least 1")
    order = SCHEDULES[name]
    if not order.has_chunks and chunks > 1:
        raise OptionError(
            f"the schedule `{name}` has one chunk for each device group, not {chunks}",
            hint="use the schedule `interleaved`",
        )
    if order.has_chunks and chunks == 1:
        raise OptionError(
            f"the schedule `{name}` needs at least 2 chunks for each device group, not 1",
            hint="use the schedule `1f1b`",
        )
    if order.in_v and chunks != 2:
        raise OptionError(
            f"the schedule `{name}` has 2 chunks for each device group, the ends of a V, "
            f"not {chunks}",
            hint="use 2 chunks",
        )
    if micro_batches is None or order.exists(groups, micro_batches):
        return
    if micro_batches < order.fewest * groups:
        raise OptionError(
            f"the schedule `{name}` needs at least {order.fewest * groups} micro-batches, "
            f"{order.fewest} for each device group, not {micro_batches}",
            hint=f"use {order.fewest * groups} micro-batches or more",
        )
    raise OptionError(
        f"the schedule `{name}` needs a multiple of {groups} micro-batches, one for each "
        f"device group, not {micro_batches}",
        hint=f"use {-(-micro_batches // groups) * groups} micro-batches",
    )


@lru_cache(maxsize=256)
def _made(order: type[Order], name: str, groups: int, chunks: int, micro_batches: int) -> Schedule:
    with explained(order(), f"the schedule `{name}`", OptionError):
        made = [order.actions(group, groups, chunks, micro_batches) for group in range(groups)]
        steps = [[*map(actions_of, own)] for own in made]
    actions = tuple(tuple(chain.from_iterable(own)) for own in steps)
    pairs = {step[0]: step[1:] for step in chain.from_iterable(steps) if len(step) > 1}
    schedule = Schedule(name, groups, chunks, micro_batches, actions, order.in_v, pairs)
    check_schedule(schedule)
    return schedule


def one_at_a_time(groups: int, chunks: int, micro_batches: int) -> Schedule:
    """Return the order of a program without a schedule: one micro-batch after the other."""
    stages = range(groups * chunks)
    found: list[list[Action]] = [[] for _ in range(groups)]
    for number in range(micro_batches):
        for part, order in ((FORWARD, stages), (BACKWARD, reversed(stages))):
            for stage in order:
                found[stage % groups].append(Action(stage, part, number))
    actions = tuple(map(tuple, found))
    schedule = Schedule("one_at_a_time", groups, chunks, micro_batches, actions)
    check_schedule(schedule)
    return schedule


def forward_only(schedule: Schedule) -> Schedule:
    """Return the schedule of a program without a backward pass."""
    kept = tuple(tuple(a for a in order if a.part == FORWARD) for order in schedule.actions)
    found = replace(schedule, actions=kept, pairs={})
    check_schedule(found)
    return found


# Dependences and deadlocks


def needed_by(segment: Segment, stages: int) -> Iterator[Segment]:
    """Yield the segments that one waits for: the neighbours in the chain of its micro-batch.

    A micro-batch passes the stages forward, then backward; what a stage passes to a later one than
    the next is known in time as well.
    """
    stage, part = segment
    if part == FORWARD:
        if stage:
            yield stage - 1, FORWARD
        return
    if part == WEIGHTS:
        yield stage, BACKWARD
        return
    yield stage, FORWARD
    if stage + 1 < stages:
        yield stage + 1, BACKWARD


def check_schedule(schedule: Schedule) -> None:
    """Check that every segment runs once for each micro-batch, in its group, without deadlock.

    Pairs are of a forward and a backward pass. A segment takes the micro-batches in their order, so
    that what they accumulate is the same for every schedule.

    Raises
    ------
    ExecutionError
        If not; of a deadlock, names the actions that wait for each other.
    """
    _check_complete(schedule)
    _check_ascending(schedule)
    _check_pairs(schedule)
    len(schedule.order)  # of a deadlock there is none, which raises its error


def _check_complete(schedule: Schedule) -> None:
    runs = {segment: bytearray(schedule.micro_batches) for segment in schedule.segments}
    on = schedule.by_stage(range(schedule.groups))
    for group, order in enumerate(schedule.actions):
        own = {segment: run for segment, run in runs.items() if on[segment[0]] == group}
        for action in order:
            stage, part, number = action
            run = own.get((stage, part))
            if run is None or not 0 <= number < schedule.micro_batches:
                what = f"device group {group} runs {action}, which is not among its segments"
                raise _wrong(schedule, what)
            if run[number]:
                raise _wrong(schedule, f"device group {group} runs {action} again")
            run[number] = True
    for segment, run in sorted(runs.items()):
        if not all(run):
            action = Action(*segment, run.index(False))
            raise _wrong(schedule, f"no device group runs {action}")


def _check_ascending(schedule: Schedule) -> None:
    for order in schedule.actions:
        last = dict[Segment, int]()
        for action in order:
            stage, part, number = action
            before = last.get((stage, part), number)
            if before > number:
                follows = Action(stage, part, before)
                raise _wrong(schedule, f"{action} follows {follows}")
            last[stage, part] = number


def _check_pairs(schedule: Schedule) -> None:
    for one, (other, *weights) in schedule.pairs.items():
        late = other._replace(part=WEIGHTS)
        if (one.part, other.part) != (FORWARD, BACKWARD) or weights not in ([], [late]):
            what = " and ".join(map(str, (other, *weights)))
            raise _wrong(schedule, f"a pair is a forward and a backward pass, not {one} and {what}")


def _execution_order(schedule: Schedule) -> Iterator[Action]:
    """Yield the actions in the order of `Schedule.order`.

    A segment takes the micro-batches in their order, so how many it has ended says which.
    """
    waits = {segment: tuple(needed_by(segment, schedule.stages)) for segment in schedule.segments}
    ended = dict.fromkeys(schedule.segments, 0)

    def missing(action: Action) -> Iterator[Action]:
        """Yield what an action still waits for, of a pair what both passes do."""
        for stage, part, number in (action, *schedule.pairs.get(action, ())[:1]):
            for segment in waits[stage, part]:
                if ended[segment] <= number:
                    yield Action(*segment, number)

    at, moved = [0] * schedule.groups, True
    while moved:
        moved = False
        for group, own in enumerate(schedule.actions):
            while at[group] < len(own) and next(missing(own[at[group]]), None) is None:
                first = at[group]
                at[group] += 1 + len(schedule.pairs.get(own[first], ()))
                for action in own[first : at[group]]:
                    ended[action.segment] += 1
                    yield action
                moved = True
    heads = [own[i] for own, i in zip(schedule.actions, at, strict=True) if i < len(own)]
    if heads:
        raise _deadlock(schedule, {action: next(missing(action)) for action in heads})


def _deadlock(schedule: Schedule, waits: Mapping[Action, Action]) -> ExecutionError:
    told = (
        f"device group {schedule.group_of(action.stage)}: {action} waits for {missing}"
        for action, missing in waits.items()
    )
    return _wrong(schedule, f"device groups wait for each other ({'; '.join(told)})")


def _wrong(schedule: Schedule, what: str) -> ExecutionError:
    return ExecutionError(
        f"the schedule `{schedule.name}` of {schedule.groups} device groups, {schedule.chunks} "
        f"chunks and {schedule.micro_batches} micro-batches cannot run: {what}"
    )


# Micro-batches in flight


class InFlight(NamedTuple):
    """Micro-batches of which a device group saves tensors at one time, by chunk.

    Parameters
    ----------
    passes : tuple of int
        Micro-batches between the start of the forward and the end of the backward pass.
    weights : tuple of int
        Micro-batches between the end of the backward pass and the end of its part for the weights;
        what only the former needs is freed.
    """

    passes: tuple[int, ...]
    weights: tuple[int, ...]


@lru_cache(maxsize=256)
def in_flight(schedule: Schedule) -> tuple[tuple[InFlight, ...], ...]:
    """Return for each device group the counts of micro-batches in flight that no other exceeds.

    The counts follow from the order alone, whatever the actions take.
    """
    return tuple(_in_flight(order, schedule) for order in schedule.actions)


def most_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Return the most micro-batches that each stage has in flight.

    Examples
    --------
    >>> most_in_flight(make_schedule("1f1b", 4, 1, 8))
    (4, 3, 2, 1)
    """
    flights, groups = in_flight(schedule), schedule.groups
    return tuple(
        max(count.passes[stage // groups] for count in flights[schedule.group_of(stage)])
        for stage in range(schedule.stages)
    )


def _in_flight(order: Sequence[Action], schedule: Schedule) -> tuple[InFlight, ...]:
    passes, weights = [0] * schedule.chunks, [0] * schedule.chunks
    divided, reaches_back = WEIGHTS in schedule.parts, BACKWARD in schedule.parts
    found: dict[InFlight, None] = {}
    for stage, part, _ in order:
        chunk = stage // schedule.groups
        passes[chunk] += part == FORWARD
        found[InFlight(tuple(passes), tuple(weights))] = None
        ends = part == BACKWARD or (part == FORWARD and not reaches_back)
        passes[chunk] -= ends
        weights[chunk] += (part == BACKWARD and divided) - (part == WEIGHTS)
    return tuple(c for c in found if not any(_exceeds(other, c) for other in found if other != c))


def _exceeds(one: InFlight, other: InFlight) -> bool:
    pairs = zip(chain(*one), chain(*other), strict=True)
    return all(a >= b for a, b in pairs)
