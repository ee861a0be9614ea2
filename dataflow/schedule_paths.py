"""The step of a schedule: simulated, with its critical path.

A segment starts when its group has finished the one before, and all transfers to it have arrived.
A transfer leaves when its segment ends; those from one group to another use one link, one after the
other, in the order in which the segments end. A transfer within a group takes no time.

In step, groups that exchange something wait for each other: all actions are divided into rounds, as
early as their inputs allow, and after a round a group begins the next one when those with which it
exchanged something in it have ended theirs. PyTorch runs pipelines of several chunks so, up to 2.9.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, starmap
from operator import itemgetter
from typing import NamedTuple

from shardwright.dataflow.schedules import (
    BACKWARD,
    FORWARD,
    Action,
    Schedule,
    Segment,
)
from shardwright.ir.errors import ExecutionError

Transfer = tuple[Segment, Segment]
"""The segments between which values of one micro-batch pass, from and to."""

Pair = tuple[Segment, ...]
"""A forward segment, and those of a backward pass that run beside it."""

_FORWARD = 1 / 3  # share of a micro-batch's pass that is its forward half


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
    starts, ends : sequence of float
        When each of them runs.
    causes : sequence of (int, tuple of Transfer)
        What each waits for: an action, by its number, and the transfers after it.
    """

    order: tuple[Action, ...]
    starts: Sequence[float]
    ends: Sequence[float]
    causes: Sequence[tuple[int, tuple[Transfer, ...]]] = field(repr=False)

    @property
    def step_seconds(self) -> float:
        """The end of the last action."""
        return max(self.ends, default=0.0)

    @property
    def path(self) -> Path:
        """A critical path: it is as long as the step."""
        last = max(range(len(self.ends)), key=self.ends.__getitem__, default=-1)
        passed = [*self.path_to(last)]
        segments = Counter(self.order[number].segment for number in passed)
        transfers = Counter(chain.from_iterable(self.causes[number][1] for number in passed))
        return Path(dict(segments), dict(transfers))

    def path_to(self, number: int) -> Iterator[int]:
        """Yield the actions of a longest path to an action, by number; the last one first."""
        while number >= 0:
            yield number
            number, _ = self.causes[number]


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
    return SimulatedSchedule(numbered.order, starts, ends, causes)


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
        self.links: dict[tuple[int, int], _Moment] = {}
        self.arrivals: list[_Moment | None] = [None] * len(self.numbered.order)
        self.ready: list[_Moment] = [(0.0, _BEGIN)] * schedule.groups

    def run(self) -> SimulatedSchedule:
        """Return the simulated step."""
        starts, ends, causes = list[float](), list[float](), list[_Cause]()
        numbered = self.numbered
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
            causes.append(cause)
            self.ready[group] = end, (number, ())
            for leaving in self.leaving[segment]:
                self._send(leaving, leaving.readers[micro_batch], number, end)
        return SimulatedSchedule(numbered.order, starts, ends, causes)

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
