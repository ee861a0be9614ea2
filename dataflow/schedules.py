"""Schedules of pipelines: the order in which each device group runs the segments of its stages.

There are ``S`` device groups with ``V`` chunks each, so ``S V`` stages; stage ``s`` is on the group
``s mod S``. A step runs ``M`` micro-batches through all stages, forward and then backward. A
schedule says in which order each group does that. It is a pure function of its name, S, V and M:

- ``gpipe``: all forward passes, then all backward passes; M micro-batches are in flight.
- ``1f1b``: after a warm-up, one forward and one backward pass in turn; at stage s at most S - s
  micro-batches are in flight (Narayanan et al., arXiv 2006.09503).
- ``interleaved``: the same with V > 1 chunks a group, in the order of Megatron-LM; M is a multiple
  of S (Narayanan et al., arXiv 2104.04473).
- ``zero_bubble``: as ``1f1b``, with the backward pass divided in two parts: the gradients of
  activations, which other stages wait for, and those of weights, which no stage waits for. Group g
  does the second part g micro-batches late, which fills the bubble at the end (ZB-H1 of Qi et al.,
  arXiv 2401.10241). At most S micro-batches are in flight on every group, as many as on the first
  group of ``1f1b``, counted until the second part is done.

Knows neither programs nor seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

from shardwright.ir.errors import ExecutionError, OptionError

FORWARD, BACKWARD, WEIGHTS = PARTS = ("forward", "backward", "weights")
_BUBBLE_OF_ZB_H1 = 1 / 3  # of the bubble of `1f1b`, where all three parts are as long
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")

Segment = tuple[int, str]
"""A stage, and its part of a pass over one micro-batch: forward, backward or weights."""


class Action(NamedTuple):
    """One segment of one micro-batch."""

    stage: int
    part: str
    micro_batch: int

    def __str__(self) -> str:
        return f"the {self.part} pass of stage {self.stage} for micro-batch {self.micro_batch}"

    @property
    def segment(self) -> Segment:
        """The stage and the part."""
        return self.stage, self.part


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
    """

    name: str
    groups: int
    chunks: int
    micro_batches: int
    actions: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.groups * self.chunks

    @property
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
    return _made(name, groups, chunks, micro_batches)


def check_options(name: str, groups: int, chunks: int, micro_batches: int) -> None:
    """Check that a schedule exists.

    Raises
    ------
    OptionError
        If there is no such schedule, or it does not exist for these numbers.
    """
    if name not in SCHEDULES:
        raise OptionError(f"unknown schedule `{name}`: expected {', '.join(SCHEDULES)}")
    numbers = {"device groups": groups, "chunks": chunks, "micro-batches": micro_batches}
    for what, number in numbers.items():
        if number < 1:
            raise OptionError(f"a pipeline has {number} {what}, expected at least 1")
    if name != "interleaved" and chunks > 1:
        raise OptionError(
            f"the schedule `{name}` has one chunk for each device group, not {chunks}",
            hint="use the schedule `interleaved`",
        )
    if name == "interleaved" and chunks == 1:
        raise OptionError(
            "the schedule `interleaved` needs at least 2 chunks for each device group, not 1",
            hint="use the schedule `1f1b`",
        )
    if name == "interleaved" and micro_batches % groups:
        raise OptionError(
            f"the schedule `interleaved` needs a multiple of {groups} micro-batches, one for each "
            f"device group, not {micro_batches}",
            hint=f"use {-(-micro_batches // groups) * groups} micro-batches",
        )


@lru_cache(maxsize=256)
def _made(name: str, groups: int, chunks: int, micro_batches: int) -> Schedule:
    if name == "interleaved":
        actions = [_interleaved(g, groups, chunks, micro_batches) for g in range(groups)]
    else:
        order = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward, "zero_bubble": _zero_bubble}
        actions = [order[name](group, groups, micro_batches) for group in range(groups)]
    schedule = Schedule(name, groups, chunks, micro_batches, tuple(map(tuple, actions)))
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
    found = Schedule(schedule.name, schedule.groups, schedule.chunks, schedule.micro_batches, kept)
    check_schedule(found)
    return found


# The orders


def _gpipe(group: int, groups: int, micro_batches: int) -> list[Action]:
    passes = range(micro_batches)
    return [Action(group, part, number) for part in (FORWARD, BACKWARD) for number in passes]


def _one_forward_one_backward(group: int, groups: int, micro_batches: int) -> list[Action]:
    forward = [Action(group, FORWARD, number) for number in range(micro_batches)]
    backward = [Action(group, BACKWARD, number) for number in range(micro_batches)]
    return _in_turn(forward, backward, groups - 1 - group)


def _interleaved(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
    """Return Megatron-LM's order: S micro-batches through each chunk in turn."""
    forward, backward = [], []
    for i in range(micro_batches * chunks):
        cycle, within = divmod(i, groups * chunks)
        chunk, number = within // groups, cycle * groups + within % groups
        forward.append(Action(chunk * groups + group, FORWARD, number))
        backward.append(Action((chunks - 1 - chunk) * groups + group, BACKWARD, number))
    return _in_turn(forward, backward, 2 * (groups - 1 - group) + (chunks - 1) * groups)


def _zero_bubble(group: int, groups: int, micro_batches: int) -> list[Action]:
    """Return ZB-H1: the gradients of weights follow those of activations g micro-batches late."""
    order: list[Action] = []
    for action in _one_forward_one_backward(group, groups, micro_batches):
        order.append(action)
        late = action.micro_batch - group
        if action.part == BACKWARD and late >= 0:
            order.append(Action(group, WEIGHTS, late))
    left = range(max(0, micro_batches - group), micro_batches)
    return [*order, *(Action(group, WEIGHTS, number) for number in left)]


def _in_turn(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """Return a warm-up of forward passes, one forward and one backward in turn, and the rest."""
    warm_up = min(warm_up, len(forward))
    pairs = zip(forward[warm_up:], backward, strict=False)
    steady = list(chain.from_iterable(pairs))
    return [*forward[:warm_up], *steady, *backward[len(forward) - warm_up :]]


# Dependences and deadlocks


def needed_by(action: Action, stages: int) -> Iterator[Action]:
    """Yield the actions that one waits for: the neighbours in the chain of its micro-batch.

    A micro-batch passes the stages forward, then backward; what a stage passes to a later one than
    the next is known in time as well.
    """
    stage, part, number = action
    if part == FORWARD:
        if stage:
            yield Action(stage - 1, FORWARD, number)
        return
    if part == WEIGHTS:
        yield Action(stage, BACKWARD, number)
        return
    yield Action(stage, FORWARD, number)
    if stage + 1 < stages:
        yield Action(stage + 1, BACKWARD, number)


def check_schedule(schedule: Schedule) -> None:
    """Check that every segment runs once for each micro-batch, in its group, without deadlock.

    A segment takes the micro-batches in their order, so that what they accumulate is the same for
    every schedule.

    Raises
    ------
    ExecutionError
        If not; of a deadlock, names the actions that wait for each other.
    """
    _check_complete(schedule)
    _check_ascending(schedule)
    execution_order(schedule)


def _check_complete(schedule: Schedule) -> None:
    wanted = {
        Action(*segment, number)
        for segment in schedule.segments
        for number in range(schedule.micro_batches)
    }
    seen: set[Action] = set()
    for group, order in enumerate(schedule.actions):
        for action in order:
            if action in seen:
                raise _wrong(schedule, f"device group {group} runs {action} again")
            if action not in wanted or action.stage % schedule.groups != group:
                what = f"device group {group} runs {action}, which is not among its segments"
                raise _wrong(schedule, what)
            seen.add(action)
    for action in sorted(wanted - seen):
        raise _wrong(schedule, f"no device group runs {action}")


def _check_ascending(schedule: Schedule) -> None:
    last: dict[Segment, Action] = {}
    for action in chain.from_iterable(schedule.actions):
        before = last.get(action.segment)
        if before is not None and before.micro_batch > action.micro_batch:
            raise _wrong(schedule, f"{action} follows {before}")
        last[action.segment] = action


def execution_order(schedule: Schedule) -> tuple[Action, ...]:
    """Return all actions in an order in which one process can run them.

    Each group in turn runs what it can, as the queues of sends and receives would allow.

    Raises
    ------
    ExecutionError
        If groups wait for each other.
    """
    done: dict[Action, None] = {}
    at = [0] * schedule.groups
    moved = True
    while moved:
        moved = False
        for group, order in enumerate(schedule.actions):
            while at[group] < len(order) and _is_ready(order[at[group]], schedule, done):
                done[order[at[group]]] = None
                at[group] += 1
                moved = True
    heads = [order[i] for order, i in zip(schedule.actions, at, strict=True) if i < len(order)]
    if heads:
        raise _deadlock(schedule, heads, done)
    return tuple(done)


def _is_ready(action: Action, schedule: Schedule, done: Mapping[Action, None]) -> bool:
    return all(needed in done for needed in needed_by(action, schedule.stages))


def _deadlock(
    schedule: Schedule, heads: Sequence[Action], done: Mapping[Action, None]
) -> ExecutionError:
    waits = []
    for action in heads:
        missing = next(n for n in needed_by(action, schedule.stages) if n not in done)
        waits.append(f"device group {action.stage % schedule.groups}: {action} waits for {missing}")
    return _wrong(schedule, f"device groups wait for each other ({'; '.join(waits)})")


def _wrong(schedule: Schedule, what: str) -> ExecutionError:
    return ExecutionError(
        f"the schedule `{schedule.name}` of {schedule.groups} device groups, {schedule.chunks} "
        f"chunks and {schedule.micro_batches} micro-batches cannot run: {what}"
    )


def bubble_share(name: str, chunks: int) -> float:
    """Return the part of a pass of a device group for which each other group adds a wait.

    In a step of M passes of T seconds on each of S groups, a group waits for (S - 1) T times that.
    In the schedule `zero_bubble` the parts for weights, a third of a pass, fill two thirds of it
    (ZB-H1 of Qi et al., arXiv 2401.10241, with equal parts).

    Examples
    --------
    >>> bubble_share("1f1b", 1), bubble_share("interleaved", 4)
    (1.0, 0.25)
    """
    return _BUBBLE_OF_ZB_H1 if name == "zero_bubble" else 1 / chunks


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
        max(count.passes[stage // groups] for count in flights[stage % groups])
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
