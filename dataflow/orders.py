"""The orders in which the device groups of a pipeline run the segments of their stages.

A class for each, which is registered under the name of the schedule; files from outside add others.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle
from typing import ClassVar, NamedTuple

from shardwright.ir.registry import Registry

FORWARD, BACKWARD, WEIGHTS = PARTS = ("forward", "backward", "weights")
_BUBBLE_OF_ZB_H1 = 1 / 3  # ZB-H1's bubble over that of `1f1b`, where three parts take equal time

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


Step = Action | tuple[Action, ...]
"""What a device group runs at a time: one action, or a pair.

A pair is a forward pass and a backward pass of another micro-batch, with its part for the weights
where the schedule divides it: what one waits for, links carry while the other computes, in software
that runs them beside each other (`Software.pairs`). Other software runs one after the other.
"""


class Order(ABC):
    """The order in which the device groups of a pipeline run their segments; a class has a name.

    Attributes
    ----------
    name : str
        The value of the option ``schedule``.
    has_chunks : bool
        Whether a device group has several stages, its chunks; else it has one.
    in_v : bool
        Whether the stages go to and fro between the device groups (`StageMap`): two chunks.
    in_rounds : bool
        Whether the micro-batches are a multiple of the device groups.
    fewest : int
        How many micro-batches there are for each device group at least, where more than one in all.
    repeats : bool
        Whether S more micro-batches are one more round in the middle: what a group runs before
        something else stays before it, of the same micro-batches and of those a round later. A
        class with actions of its own says so anew.
    parts : tuple of str
        The parts of a pass over a micro-batch.
    searched_chunks : tuple of int
        With how many chunks ``fit`` and ``--stages search`` try it; with none it is not tried.
    """

    name: ClassVar[str]
    has_chunks: ClassVar[bool] = False
    in_v: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False
    repeats: ClassVar[bool] = False
    fewest: ClassVar[int] = 0
    parts: ClassVar[tuple[str, ...]] = (FORWARD, BACKWARD)
    searched_chunks: ClassVar[tuple[int, ...]] = ()

    def __init_subclass__(cls) -> None:
        if "actions" in vars(cls) and "repeats" not in vars(cls):
            cls.repeats = False

    @staticmethod
    @abstractmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> Sequence[Step]:
        """Return the actions of a device group, in order; those of a pair as a tuple.

        Parameters
        ----------
        group : int
            The device group, from 0.
        groups, chunks, micro_batches : int
            Device groups S, chunks V of each, and micro-batches M.
        """

    @classmethod
    def exists(cls, groups: int, micro_batches: int) -> bool:
        """Return whether so many device groups can run so many micro-batches."""
        in_rounds = not cls.in_rounds or micro_batches % groups == 0
        return in_rounds and micro_batches >= cls.fewest * groups

    @classmethod
    def is_tried(cls, groups: int, micro_batches: int) -> bool:
        """Return whether `fit` and searches of stages try it with so many of both."""
        return cls.exists(groups, micro_batches)

    @staticmethod
    def bubble(chunks: int) -> float:
        """Return the part of a pass of a device group for which each other group adds a wait.

        In a step of M passes of T seconds on each of S groups, a group waits for (S - 1) T times
        that. An estimate: what is decided by it is simulated.
        """
        return 1 / chunks


SCHEDULES: Registry[type[Order]] = Registry("schedule", base=Order)
"""The orders by name."""

register_schedule = SCHEDULES.registered
"""Register an order of micro-batches, a class, under its name; a decorator."""


class GPipe(Order):
    """All forward passes, then all backward passes; M micro-batches are in flight.

    It has the bubble of ``1f1b``, and more micro-batches in flight, so it is not tried.
    """

    name = "gpipe"

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
        """Return the passes, part by part."""
        passes = range(micro_batches)
        return [Action(group, part, number) for part in (FORWARD, BACKWARD) for number in passes]


class OneForwardOneBackward(Order):
    """After a warm-up, one forward and one backward pass in turn.

    At stage s at most S - s micro-batches are in flight (Narayanan et al., arXiv 2006.09503).
    """

    name = "1f1b"
    repeats = True
    searched_chunks = (1,)

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
        """Return the passes, of which the warm-up fills the stages behind."""
        forward = [Action(group, FORWARD, number) for number in range(micro_batches)]
        backward = [Action(group, BACKWARD, number) for number in range(micro_batches)]
        return in_turn(forward, backward, groups - 1 - group)


class Interleaved(Order):
    """The same with V > 1 chunks a group, in the order of Megatron-LM; M is a multiple of S.

    S micro-batches pass through each chunk in turn (Narayanan et al., arXiv 2104.04473).
    """

    name = "interleaved"
    has_chunks = in_rounds = repeats = True
    searched_chunks = (2, 3, 4, 6, 8)

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
        """Return the passes of all chunks."""
        passes = _of_chunks(group, groups, chunks, micro_batches)
        return in_turn(*passes, _ahead(group, groups, chunks))


class Pairs(Order):
    """As ``1f1b`` with twice the warm-up and one more, so that passes in turn are of two batches.

    One waits for exchanges of experts while the other computes. Each stage has to be two passes
    ahead of the next one, or pairs would wait for each other: so 2 (S - s) micro-batches are in
    flight, where `DualPipeV` has about half of that.
    """

    name = "1f1b_pairs"
    repeats = True

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Step]:
        """Return the passes of all chunks."""
        passes = _of_chunks(group, groups, chunks, micro_batches)
        return in_pairs(*passes, _ahead(group, groups, chunks) + 1)


class InterleavedPairs(Pairs):
    """The same with V > 1 chunks: ``interleaved`` with one more forward pass ahead.

    Megatron-Core runs ``--overlap-moe-expert-parallel-comm`` so.
    """

    name = "interleaved_pairs"
    has_chunks = in_rounds = True


class ZeroBubble(Order):
    """As ``1f1b``, with the backward pass divided in two parts (ZB-H1 of Qi et al., 2401.10241).

    Other stages wait for the gradients of activations, and none for those of weights. Group g does
    the second part g micro-batches late, which fills the bubble at the end. At most S micro-batches
    are in flight on every group, as many as on the first group of ``1f1b``, counted until the
    second part is done.
    """

    name = "zero_bubble"
    repeats = True
    parts = PARTS
    searched_chunks = (1,)

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
        """Return the passes, the gradients of weights late."""
        order: list[Action] = []
        for action in OneForwardOneBackward.actions(group, groups, chunks, micro_batches):
            order.append(action)
            late = action.micro_batch - group
            if action.part == BACKWARD and late >= 0:
                order.append(Action(group, WEIGHTS, late))
        left = range(max(0, micro_batches - group), micro_batches)
        return [*order, *(Action(group, WEIGHTS, number) for number in left)]

    @staticmethod
    def bubble(chunks: int) -> float:
        """Return the share that is left: parts for weights, a third of a pass, fill the others."""
        return _BUBBLE_OF_ZB_H1


class ZeroBubbleV(Order):
    """Two chunks in a V, and the backward pass in two parts (ZB-V of Qi et al., 2405.15362).

    Of 2 S stages group g has g and 2 S - 1 - g. Of each micro-batch both chunks have run backward
    soon after they ran forward, so that S micro-batches at most are in flight on every group, as
    many as on the first group of ``1f1b``. Where forward, backward and weights take equal time,
    groups wait while the pipeline fills alone. The order is that of PyTorch's
    ``ScheduleZBVZeroBubble``, which needs no durations.
    """

    name = "zero_bubble_v"
    has_chunks = in_v = True
    parts = PARTS
    searched_chunks = (2,)

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Action]:
        """Return the passes, the gradients of weights right behind but for the last ones."""
        down = _Runs(group)
        up = _Runs(2 * groups - 1 - group)
        count, order = max(2 * groups - 1, micro_batches), list[Action]()
        order += (down(FORWARD) for _ in range(2 * (groups - group) - 1))
        for _ in range(group):
            order += up(FORWARD), down(FORWARD)
        for _ in range(groups - group):
            order += up(FORWARD), up(BACKWARD), up(WEIGHTS)
        while up.done[FORWARD] < count:
            order += [down(FORWARD)] if down.done[FORWARD] < count else []
            order += down(BACKWARD), down(WEIGHTS), up(FORWARD), up(BACKWARD), up(WEIGHTS)
        for _ in range(group):
            order += down(BACKWARD), up(BACKWARD)
        for _ in range(groups - group):
            order += down(BACKWARD), down(WEIGHTS)
        for run in (up, down):
            order += (run(WEIGHTS) for _ in range(count - run.done[WEIGHTS]))
        return [action for action in order if action.micro_batch < micro_batches]

    @classmethod
    def is_tried(cls, groups: int, micro_batches: int) -> bool:
        """Return whether M > S: with fewer, groups wait about as long as in ``zero_bubble``."""
        return micro_batches > groups

    @staticmethod
    def bubble(chunks: int) -> float:
        """Return the share of at least 2 S - 1 micro-batches: the forward pass of one chunk."""
        return _BUBBLE_OF_ZB_H1 / chunks


class DualPipeV(Order):
    """Pairs in a V: DeepSeek's DualPipe (arXiv 2412.19437) cut in half, with no parameters twice.

    Forward passes down the V run beside backward passes that come up the other arm, and the other
    way round, so that neighbours meet pairs from both ends: 2 S + 1 chunks of half a stage are in
    flight. Before all groups have pairs, and after, the gradients of weights are parts of their
    own, which fill the bubble. The order is that of PyTorch's ``ScheduleDualPipeV``; where a pass
    there goes back in one piece, both parts follow each other here.
    """

    name = "dualpipe_v"
    has_chunks = in_v = True
    fewest = 2
    parts = PARTS

    @staticmethod
    def actions(group: int, groups: int, chunks: int, micro_batches: int) -> list[Step]:
        """Return the passes, the gradients of weights put off at the end."""
        down, up = _Runs(group), _Runs(2 * groups - 1 - group)
        behind, order = groups - 1 - group, list[Step]()
        order += (down(FORWARD) for _ in range(2 * behind))
        for _ in range(group + 1):
            order += down(FORWARD), up(FORWARD)
        for _ in range(behind):
            order += *up.back(), up(FORWARD)
        for number in range(micro_batches - 2 * groups + group + 1):
            of_both = down(FORWARD), *up.back()
            is_first = not number and not behind  # the first pass back, for which others wait
            order += of_both if is_first else [of_both]
            order.append((up(FORWARD), *down.back()))
        for _ in range(behind):
            order += *up.back(), (up(FORWARD), *down.back())
        for _, run in zip(range(group + 1), cycle((up, down)), strict=False):
            order += run.back()
        late = [(up, down)[number % 2] for number in range(group + 1, 2 * (group + 1))]
        order += (run(BACKWARD) for run in late)
        late += [down] * behind
        for run in late[:behind]:
            order += run(WEIGHTS), down(BACKWARD)
        order += (run(WEIGHTS) for run in late[behind:])
        return order

    @staticmethod
    def bubble(chunks: int) -> float:
        """Return the share of `ZeroBubbleV`: a pass back sends before its gradients of weights."""
        return ZeroBubbleV.bubble(chunks)


@dataclass
class _Runs:
    """The actions of a stage, each part for one micro-batch after the other."""

    stage: int
    done: Counter[str] = field(default_factory=Counter)

    def __call__(self, part: str) -> Action:
        self.done[part] += 1
        return Action(self.stage, part, self.done[part] - 1)

    def back(self) -> tuple[Action, Action]:
        """Return a whole backward pass, in its two parts."""
        return self(BACKWARD), self(WEIGHTS)


for _order in (
    GPipe,
    OneForwardOneBackward,
    Interleaved,
    ZeroBubble,
    ZeroBubbleV,
    Pairs,
    InterleavedPairs,
    DualPipeV,
):
    SCHEDULES.add(_order.name, _order)


def _ahead(group: int, groups: int, chunks: int) -> int:
    """Return the forward passes of a group before its first backward pass, of chunks in turn."""
    return 2 * (groups - 1 - group) + (chunks - 1) * groups


def _of_chunks(
    group: int, groups: int, chunks: int, micro_batches: int
) -> tuple[list[Action], list[Action]]:
    """Return the forward and the backward passes of a group, so many micro-batches by chunk."""
    forward, backward = [], []
    for i in range(micro_batches * chunks):
        cycle, within = divmod(i, groups * chunks)
        chunk, number = within // groups, cycle * groups + within % groups
        forward.append(Action(chunk * groups + group, FORWARD, number))
        backward.append(Action((chunks - 1 - chunk) * groups + group, BACKWARD, number))
    return forward, backward


def in_turn(forward: list[Action], backward: list[Action], warm_up: int) -> list[Action]:
    """Return a warm-up of forward passes, one forward and one backward in turn, and the rest."""
    return list(chain.from_iterable(map(actions_of, in_pairs(forward, backward, warm_up))))


def in_pairs(forward: list[Action], backward: list[Action], warm_up: int) -> list[Step]:
    """Return the same, where those in turn are pairs."""
    warm_up = min(warm_up, len(forward))
    pairs = zip(forward[warm_up:], backward, strict=False)
    return [*forward[:warm_up], *pairs, *backward[len(forward) - warm_up :]]


def actions_of(step: Step) -> tuple[Action, ...]:
    """Return the actions of a step."""
    return (step,) if isinstance(step, Action) else step
