"""The step of a schedule: simulated, its critical path, and bounds that hold for all durations.

A segment starts when its group has finished the one before, and all transfers to it have arrived.
A transfer leaves when its segment ends; those from one group to another use one link, one after the
other, in the order in which the segments end. A transfer within a group takes no time.

In step, groups that exchange something wait for each other: all actions are divided into rounds, as
early as their inputs allow, and after a round a group begins the next one when those with which it
exchanged something in it have ended theirs. PyTorch runs pipelines of several chunks so, up to 2.9.

The step is the longest path of a graph that depends on the schedule alone, so the counts of any
path, such as the critical path of one plan, bound the step of every plan of the schedule: each
count times the seconds of the segment, added up.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import NamedTuple

from shardwright.dataflow.orders import SCHEDULES
from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    Segment,
    make_schedule,
)
from shardwright.ir.errors import ExecutionError

Transfer = tuple[Segment, Segment]
"""The segments between which values of one micro-batch pass, from and to."""

Pair = tuple[Segment, ...]
"""A forward segment, and those of a backward pass that run beside it."""

ROUNDS = 4
"""Rounds of a schedule that repeats, of S micro-batches each, by which one of more is bounded.

Its warm-up ends in three, and one more is whole: bounds are those of all rounds, to five digits. Of
half as many none is whole; twice as many take twice as long."""
_FORWARD = 1 / 3  # share of a micro-batch's pass that is its forward half
_SLIGHT = 1e-3  # duration of segments off the path, over that of the slow group's
_LATER = 0.75  # the same of later groups, followed only while a pipeline fills and drains


def segments_of(one: Action, others: Sequence[Action]) -> Pair:
    """Return the segments of the actions of a pair."""
    return one.segment, *(other.segment for other in others)


def pairs_of(schedule: Schedule) -> tuple[Pair, ...]:
    """Return the pairs of segments of a schedule, each once."""
    return tuple(dict.fromkeys(starmap(segments_of, schedule.pairs.items())))


@dataclass(frozen=True)
class Path:
    """A path through the segments and transfers of a schedule.

    Parameters
    ----------
    segments : mapping of (int, str) to int
        How often the path passes each segment.
    transfers : mapping of (segment, segment) to int
        The same for each transfer.
    """

    segments: Mapping[Segment, int]
    transfers: Mapping[Transfer, int]

    def seconds(
        self, durations: Mapping[Segment, float], delays: Mapping[Transfer, float] | None = None
    ) -> float:
        """Return the length of the path, a lower bound of every step with these durations."""
        known = delays or {}
        total = sum(count * durations[segment] for segment, count in self.segments.items())
        return total + sum(n * known.get(pair, 0.0) for pair, n in self.transfers.items())


@dataclass(frozen=True)
class SimulatedSchedule:
    """The step of a schedule.

    Parameters
    ----------
    order : tuple of Action
        All actions, each after those that it waits for.
    starts, ends : tuple of float
        When each of them runs.
    path : Path
        A critical path: it is as long as the step.
    """

    order: tuple[Action, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    path: Path

    @property
    def step_seconds(self) -> float:
        """The end of the last action."""
        return max(self.ends, default=0.0)


def chain_transfers(schedule: Schedule) -> tuple[Transfer, ...]:
    """Return the transfers of a pipeline whose stages pass values to their neighbours alone."""
    later = range(1, schedule.stages)
    forward = [((stage - 1, FORWARD), (stage, FORWARD)) for stage in later]
    if BACKWARD not in schedule.parts:
        return tuple(forward)
    backward = [((stage, BACKWARD), (stage - 1, BACKWARD)) for stage in reversed(later)]
    return (*forward, *backward)


def simulate_schedule(
    schedule: Schedule,
    durations: Mapping[Segment, float],
    delays: Mapping[Transfer, float] | None = None,
    begin: Sequence[float] | None = None,
    beside: Mapping[Pair, float] | None = None,
) -> SimulatedSchedule:
    """Return the step of a schedule for given durations.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    durations : mapping of (int, str) to float
        Seconds of each segment.
    delays : mapping of (segment, segment) to float, optional
        The transfers, with the seconds of each; by default those of a chain of stages, which take
        no time.
    begin : sequence of float, optional
        When each device group begins; by default at 0.
    beside : mapping of (tuple of segment) to float, optional
        Seconds of the pairs of the schedule, whose passes run beside each other; by default they
        run one after the other. The path counts one segment of each, and is shorter than the step
        then.

    Raises
    ------
    ExecutionError
        If a transfer leads to an earlier segment.
    """
    if delays is None:
        delays = dict.fromkeys(chain_transfers(schedule), 0.0)
    simulation = _Simulation(schedule, durations, delays, beside)
    if begin is not None:
        simulation.ready = [(moment, _BEGIN) for moment in begin]
    return simulation.run()


def simulate_in_step(
    schedule: Schedule, durations: Mapping[Segment, float], begin: Sequence[float] | None = None
) -> SimulatedSchedule:
    """Return the step of a schedule whose groups exchange in rounds, for given durations.

    Parameters
    ----------
    schedule : Schedule
        The schedule, of a chain of stages.
    durations : mapping of (int, str) to float
        Seconds of each segment, with what it receives.
    begin : sequence of float, optional
        When each device group begins; by default at 0.
    """
    numbered = _numbered(schedule)
    readers = dict(chain_transfers(schedule))
    count = len(numbered.order)
    starts, ends, causes = [0.0] * count, [0.0] * count, [_BEGIN] * count
    ready = [(moment, _BEGIN) for moment in begin or [0.0] * schedule.groups]
    for actions in _rounds(schedule):
        before = list(ready)
        for number in actions:
            group = numbered.groups[number]
            starts[number], causes[number] = before[group]
            ends[number] = starts[number] + durations[numbered.order[number].segment]
            ready[group] = ends[number], (number, ())
        alone = list(ready)
        for number in actions:
            group, target = numbered.groups[number], readers.get(numbered.order[number].segment)
            if target is not None:
                other = schedule.group_of(target[0])
                ready[group] = max(ready[group], alone[other])
                ready[other] = max(ready[other], alone[group])
    path = _path_to(max(range(count), key=ends.__getitem__, default=-1), numbered, causes)
    return SimulatedSchedule(numbered.order, tuple(starts), tuple(ends), path)


@lru_cache(maxsize=64)
def _rounds(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the actions of each round, by number: each is as early as its inputs allow."""
    unit = simulate_schedule(schedule, dict.fromkeys(schedule.segments, 1.0))
    rounds: dict[int, list[int]] = {}
    for number, start in enumerate(unit.starts):
        rounds.setdefault(round(start), []).append(number)
    return tuple(tuple(rounds[key]) for key in sorted(rounds))


_Cause = tuple[int, tuple[Transfer, ...]]
"""The action, by its number, and the transfers after it, that something waited for."""

_BEGIN: _Cause = (-1, ())

_Moment = tuple[float, _Cause]
"""When something is ready, and what it waited for."""


@dataclass(frozen=True)
class _Numbered:
    """The actions of a schedule, numbered in an order in which they can run."""

    order: tuple[Action, ...]
    segments: tuple[int, ...]  # of each action, by number
    groups: tuple[int, ...]
    micro_batches: tuple[int, ...]
    numbers: Mapping[Segment, Sequence[int]]  # the action of each micro-batch


@lru_cache(maxsize=64)
def _numbered(schedule: Schedule) -> _Numbered:
    order = schedule.order
    groups = schedule.by_stage(range(schedule.groups))
    place = {segment: i for i, segment in enumerate(schedule.segments)}
    numbers = {segment: [-1] * schedule.micro_batches for segment in place}
    for number, action in enumerate(order):
        numbers[action.segment][action.micro_batch] = number
    return _Numbered(
        order,
        tuple(place[action.segment] for action in order),
        tuple(groups[action.stage] for action in order),
        tuple(action.micro_batch for action in order),
        numbers,
    )


class _Leaving(NamedTuple):
    """What leaves a segment for another one."""

    transfer: tuple[Transfer]
    groups: tuple[int, int]
    seconds: float
    readers: Sequence[int]  # the action of each micro-batch, by number


class _Simulation:
    """The state of a simulation: when groups, links and arrivals are ready, and why."""

    def __init__(
        self,
        schedule: Schedule,
        durations: Mapping[Segment, float],
        delays: Mapping[Transfer, float],
        beside: Mapping[Pair, float] | None = None,
    ) -> None:
        self.numbered, self.schedule, self.beside = _numbered(schedule), schedule, beside or {}
        self.durations = [durations[segment] for segment in schedule.segments]
        self.leaving = _leaving(schedule, delays, self.numbered)
        self.causes: list[_Cause] = []
        self.links: dict[tuple[int, int], _Moment] = {}
        self.arrivals: list[_Moment | None] = [None] * len(self.numbered.order)
        self.ready: list[_Moment] = [(0.0, _BEGIN)] * schedule.groups

    def run(self) -> SimulatedSchedule:
        """Return the simulated step."""
        starts, ends, numbered = list[float](), list[float](), self.numbered
        runs = zip(numbered.segments, numbered.groups, numbered.micro_batches, strict=True)
        beside = 0  # actions of a pair whose first is just done: they have its start and its end
        for number, (segment, group, micro_batch) in enumerate(runs):
            if beside:
                beside -= 1
            else:
                begin, seconds = self._begin(number, group), self.durations[segment]
                if self.beside and len(pair := self._pair(number)) > 1:
                    begin = max(begin, self._begin(number + 1, group), key=itemgetter(0))
                    seconds, beside = self.beside[pair], len(pair) - 1
                start, cause = begin
                end = start + seconds
            starts.append(start)
            ends.append(end)
            self.causes.append(cause)
            self.ready[group] = end, (number, ())
            for leaving in self.leaving[segment]:
                self._send(leaving, leaving.readers[micro_batch], number, end)
        last = max(range(len(ends)), key=ends.__getitem__, default=-1)
        path = _path_to(last, numbered, self.causes)
        return SimulatedSchedule(numbered.order, tuple(starts), tuple(ends), path)

    def _begin(self, number: int, group: int) -> _Moment:
        """Return when an action may begin, and what it waits for."""
        ready, arrived = self.ready[group], self.arrivals[number]
        return ready if arrived is None or arrived[0] <= ready[0] else arrived

    def _pair(self, number: int) -> Pair:
        """Return the segments that begin with an action."""
        action = self.numbered.order[number]
        return segments_of(action, self.schedule.pairs.get(action, ()))

    def _send(self, leaving: _Leaving, reader: int, number: int, now: float) -> None:
        """Send what leaves an action at its end to its reader."""
        arrival: _Moment = (now, (number, leaving.transfer))
        if leaving.seconds:
            busy = self.links.get(leaving.groups, arrival)
            sent, (source, before) = busy if busy[0] > now else (now, (number, ()))
            arrival = sent + leaving.seconds, (source, (*before, *leaving.transfer))
            self.links[leaving.groups] = arrival
        known = self.arrivals[reader]
        if known is None or known[0] < arrival[0]:
            self.arrivals[reader] = arrival


def _path_to(number: int, numbered: "_Numbered", causes: Sequence[_Cause]) -> Path:
    """Return the path to an action along what each waited for."""
    segments: Counter[Segment] = Counter()
    transfers: Counter[Transfer] = Counter()
    while number >= 0:
        segments[numbered.order[number].segment] += 1
        number, passed = causes[number]
        transfers.update(passed)
    return Path(dict(segments), dict(transfers))


def _leaving(
    schedule: Schedule, delays: Mapping[Transfer, float], numbered: _Numbered
) -> list[list[_Leaving]]:
    """Return what leaves each segment.

    Raises
    ------
    ExecutionError
        If a transfer leads to an earlier segment.
    """
    place = {segment: i for i, segment in enumerate(schedule.segments)}
    leaving: list[list[_Leaving]] = [[] for _ in place]
    for transfer, seconds in delays.items():
        source, target = transfer
        if not (source in place and target in place and place[source] < place[target]):
            raise ExecutionError(
                f"a transfer leads from the {source[1]} pass of stage {source[0]} to the "
                f"{target[1]} pass of stage {target[0]}, which is not later"
            )
        groups = (schedule.group_of(source[0]), schedule.group_of(target[0]))
        spent = 0.0 if groups[0] == groups[1] else seconds
        one = _Leaving((transfer,), groups, spent, numbered.numbers[target])
        leaving[place[source]].append(one)
    return leaving


# Bounds


def least_seconds(
    schedule: Schedule,
    micro_batches: int,
    durations: Mapping[Segment, float],
    begin: Sequence[float],
    after: Sequence[float],
    beside: Mapping[Pair, float] | None = None,
) -> float:
    """Return a lower bound of the step of a schedule of many micro-batches, by one of few.

    The longest path of few micro-batches is one of more: whichever of its actions are a round
    later, as the rest of it then is, `Order.repeats` says that they are in the same order. Where
    the path comes to a segment again a round later, all rounds that are missing may follow it.

    Parameters
    ----------
    schedule : Schedule
        The schedule of few micro-batches (`shortened`), of a chain of stages.
    micro_batches : int
        How many there are.
    durations : mapping of (int, str) to float
        Seconds of each segment.
    begin, after : sequence of float
        When each device group begins, and what follows its last action.
    beside : mapping of (tuple of segment) to float, optional
        Seconds of the pairs, as for `simulate_schedule`.
    """
    simulation = _Simulation(
        schedule, durations, dict.fromkeys(chain_transfers(schedule), 0.0), beside
    )
    simulation.ready = [(moment, _BEGIN) for moment in begin]
    found, numbered = simulation.run(), simulation.numbered
    last = {group: number for number, group in enumerate(numbered.groups)}
    seconds, number = max((found.ends[n] + after[group], n) for group, n in last.items())
    left_out, longest = (micro_batches - schedule.micro_batches) // schedule.groups, 0.0
    later: dict[Segment, list[int]] = {}  # of segments, their actions on the path behind
    while number >= 0:
        segment, micro_batch = numbered.order[number].segment, numbered.micro_batches[number]
        for other in later.get(segment, ()):
            rounds, rest = divmod(numbered.micro_batches[other] - micro_batch, schedule.groups)
            if rounds and not rest:
                each = found.starts[other] - found.starts[number]
                longest = max(longest, left_out // rounds * each)
        later.setdefault(segment, []).append(number)
        number = simulation.causes[number][0]
    return seconds + longest


def shortened(name: str, groups: int, chunks: int, micro_batches: int) -> Schedule:
    """Return a schedule, with few of its rounds of S micro-batches if all are alike.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`.
    groups, chunks, micro_batches : int
        Device groups S, chunks V of each, and micro-batches M.
    """
    left_out = max(micro_batches // groups - ROUNDS, 0) if SCHEDULES[name].repeats else 0
    return make_schedule(name, groups, chunks, micro_batches - left_out * groups)


def segment_seconds(schedule: Schedule, passes: Sequence[float]) -> dict[Segment, float]:
    """Return about how long the segments take of stages of which only whole passes are known.

    A third is forward: of each product backward computes two, one for each operand's gradient.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    passes : sequence of float
        Seconds of a pass of each stage over one micro-batch.

    Examples
    --------
    >>> from shardwright.dataflow.schedules import make_schedule
    >>> segment_seconds(make_schedule("1f1b", 1, 1, 2), [3.0])
    {(0, 'forward'): 1.0, (0, 'backward'): 2.0}
    """
    rest = (1 - _FORWARD) / max(len(schedule.parts) - 1, 1)
    return {
        (stage, part): (_FORWARD if part == FORWARD else rest) * passes[stage]
        for stage, part in schedule.segments
    }


@lru_cache(maxsize=64)
def bounding_paths(schedule: Schedule) -> tuple[Path, ...]:
    """Return paths of a chain of stages whose greatest length is close to the step.

    For each device group one that follows it alone, and one that follows the later groups while the
    pipeline fills and drains; and that of equal stages. Without duplicates.
    """
    found: dict[object, Path] = {}
    for durations in _profiles(schedule):
        path = simulate_schedule(schedule, durations).path
        found[frozenset(path.segments.items())] = path
    return tuple(found.values())


def _profiles(schedule: Schedule) -> Iterator[dict[Segment, float]]:
    """Yield durations whose critical paths differ."""
    groups = range(schedule.groups)
    yield dict.fromkeys(schedule.segments, 1.0)
    for slow in groups:
        yield _durations(schedule, [1.0 if g == slow else _SLIGHT for g in groups])
        if slow < schedule.groups - 1:
            later = [_SLIGHT if g < slow else 1.0 if g == slow else _LATER for g in groups]
            yield _durations(schedule, later)


def _durations(schedule: Schedule, seconds: Sequence[float]) -> dict[Segment, float]:
    return {(s, part): seconds[schedule.group_of(s)] for s, part in schedule.segments}


def bound_seconds(paths: Iterable[Path], durations: Mapping[Segment, float]) -> float:
    """Return the length of the longest of some paths: a lower bound of the step."""
    return max((path.seconds(durations) for path in paths), default=0.0)
