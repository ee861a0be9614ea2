"""Bounds of configurations before any search: their computation, evenly divided, and launches.

With C seconds of one device for a whole step, no plan on N devices takes less than C / N: no slice
is less than 1/N of its tensor, and the roofline is no less than its part of compute and of memory
time. In a pipeline a device group has N / S devices, and the busiest takes no less than the mean.

Launches are not divided. Let the least launches of one pass over all operators take L seconds. Of
every plan of one device, C seconds with at least L of launches, a part y of the work takes at least

    y C + (1 - y) L

which is linear in C and holds for the least one, too. A micro-batch has y = 1 / M, and each device
of a group y = S / (M N). So M passes launch M L, what is done once launches once, and all that is
said below of a pass p_s holds with launches in it.

The bubble adds to it where each group has one stage whose micro-batch is a forward and a backward
segment. Let a pass of stage s over a micro-batch take p_s, and M be the number of micro-batches.
Stage s begins after the first micro-batch has passed the stages before it, computes M passes, and
the gradient of the last micro-batch passes the stages before it again. So for every s and M > 1
(one micro-batch is no loop, and stages that need nothing of each other need not wait)

    step >= p_0 + ... + p_(s-1) + M p_s.

Its weighted mean with weights proportional to (1 - 1/M)^(S-1-s) has equal coefficients, so

    step >= (p_0 + ... + p_(S-1)) / (1 - (1 - 1/M)^S),

and the sum of the p_s is at least the S / (M N) of one pass of one device over the whole batch.

Where gradients of weights are segments of their own, they may come last, and the gradient of the
last micro-batch hides nothing. Stage s still begins after the first micro-batch has passed the
stages before it forward, in f_0 + ... + f_(s-1). Cuts are between blocks, so with phi the least
forward share of a pass of any block, by what one device computes, for every s

    step >= phi (p_0 + ... + p_(s-1)) + M p_s

of the computation p_s, and the same mean, with weights proportional to (1 - phi/M)^(S-1-s), gives

    step >= phi (p_0 + ... + p_(S-1)) / (1 - (1 - phi/M)^S).

Of more stages than there are between blocks, the same holds with the pieces between all places in
which so many stages may be cut (`FinePieces`).

Where group g runs several stages, g, g + S, ..., its first segment is that of the first micro-batch
forward in stage g, and its last that of the last one backward there. So it takes M times the
passes t_g of all of its stages, besides those of the stages before g, which have g blocks at
least. With q_g the seconds of the first g blocks, the mean over the groups is, for M > 1,

    step >= (M (t_0 + ... + t_(S-1)) + q_0 + ... + q_(S-1)) / S.

Where gradients of weights may come last, only phi q_g are before the passes of group g. In a V the
first stage of group g is stage g as well.

Of few micro-batches and chunks, mixtures of paths through the schedule say more (`chunk_floors`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from shardwright.cost_model.weighted.intervals import LEAST_WEIGHT, ResourceWeights
from shardwright.dataflow.schedules import BACKWARD, FORWARD, WEIGHTS
from shardwright.planner.bounds.chunk_floors import Halves
from shardwright.planner.choice.configuration import Configuration

_HALVES = FORWARD, BACKWARD
_DEAR = 10.0  # segments of a schedule, times how far above the least computation others bound it


def has_two_parts(configuration: Configuration) -> bool:
    """Return whether a micro-batch is a forward and a backward segment in each stage."""
    return WEIGHTS not in configuration.order.parts


def first_of_groups(blocks: Sequence[float], stages: int) -> float:
    """Return the sum over S device groups of the seconds of as many blocks as there are before it.

    Examples
    --------
    >>> first_of_groups((1.0, 2.0, 3.0, 4.0), 3)
    4.0
    """
    return sum(accumulate(blocks[: stages - 1]))


def half_weights(levels: int, half: str) -> ResourceWeights:
    """Return the weights by which segments of a half alone count, on a device without links."""
    none = ResourceWeights(LEAST_WEIGHT, ((1 - LEAST_WEIGHT) / levels,) * levels)
    all_of_it = ResourceWeights(1 - levels * LEAST_WEIGHT, (LEAST_WEIGHT,) * levels)
    return replace(none, later=(*(all_of_it if half == one else none for one in _HALVES), none))


def halves_of(
    blocks: Sequence[float], forward: Sequence[float], backward: Sequence[float]
) -> Halves:
    """Return what one device computes of both halves of a pass of all blocks.

    The shares are those of the blocks that take longest in all. Of a block of a smaller share, only
    as much is counted as has such a share.

    Parameters
    ----------
    blocks, forward, backward : sequence of float
        The seconds of each block, and of its halves.

    Examples
    --------
    >>> halves_of((3.0, 3.0, 3.0), (1.0, 1.0, 0.5), (2.0, 2.0, 2.0)).seconds
    7.5
    """
    rows = list(zip(blocks, forward, backward, strict=True))
    most = max(rows, key=lambda row: (rows.count(row) * row[0], row), default=(0.0, 0.0))
    whole, *parts = most
    if min(parts) <= 0:
        return Halves()
    shares = [part / whole for part in parts]
    scale = min(1.0, 1 / sum(shares))
    one, two = (share * scale for share in shares)
    return Halves(sum(min(row[0], row[1] / one, row[2] / two) for row in rows), one, two)


def least_share(
    forward: Sequence[float],
    passes: Sequence[float],
    forward_launches: Sequence[float] = (),
    launches: Sequence[float] = (),
) -> float:
    """Return the least share of its forward pass in that of any block, however it is divided.

    Parameters
    ----------
    forward, passes : sequence of float
        The seconds of each block on one device, and of its forward half first.
    forward_launches, launches : sequence of float
        The part of them that are launches; the rest is divided.

    Examples
    --------
    >>> least_share((1.0, 2.0), (2.0, 5.0))
    0.4
    >>> least_share((1.0, 2.0), (2.0, 5.0), (0.5, 0.3), (1.0, 1.0))
    0.3
    """
    of_launches = list(zip(forward_launches, launches, strict=True)) or [(0.0, 0.0)] * len(passes)
    rows = zip(forward, passes, of_launches, strict=True)
    divided = [(one - first, whole - each) for one, whole, (first, each) in rows]
    shares = (max(one, 0.0) / whole for one, whole in (*divided, *of_launches) if whole > 0)
    return min(shares, default=0.0)


def _divided(seconds: float, launches: float, share: float) -> float:
    """Return at least what a share of some work takes, whose launches are not divided."""
    return launches + share * (seconds - launches)


@dataclass(frozen=True)
class Launches:
    """The seconds of the least launches of a device.

    Parameters
    ----------
    once : float
        Of what is done once in a step.
    blocks : tuple of float
        Of a pass of each block.
    """

    once: float = 0.0
    blocks: tuple[float, ...] = ()

    @cached_property
    def of_pass(self) -> float:
        """Those of a pass of all blocks."""
        return sum(self.blocks)

    def of_step(self, passes: int) -> float:
        """Return those of a step in so many passes."""
        return self.once + passes * self.of_pass


@dataclass(frozen=True)
class FinePieces:
    """What one device computes of the pieces between the places at which a program may be cut.

    Parameters
    ----------
    pass_seconds : float
        Of all pieces, of what runs for each micro-batch, for the whole batch at once.
    forward_share : float
        The least share of its forward pass in that of any piece.
    launches : float
        The seconds of launches in a pass, where the share is of what is divided and of launches.
    """

    pass_seconds: float
    forward_share: float
    launches: float = 0.0


@dataclass(frozen=True)
class ComputationFloor:
    """What one device computes, without communication, with all launches.

    Parameters
    ----------
    devices : int
        Number of devices.
    step_seconds : float
        Of all of a step, on one device.
    staged_seconds : float
        Of all of a step, in a program with stages.
    pass_seconds : float
        Of what runs for each micro-batch in a program with stages, for the whole batch at once.
    forward_share : float
        The least share of its forward pass in that of any block; 0 where it is not known.
    most_stages : int
        Number of stages up to which cuts are between these blocks.
    blocks : tuple of float
        The same as `pass_seconds`, of each block in turn.
    finer : mapping of int to FinePieces
        Of greater numbers of stages: the pieces between the places at which they may be cut.
    halves : Halves
        What it computes of both halves of a pass of all blocks.
    launches : Launches
        The part of all that is not divided.
    """

    devices: int
    step_seconds: float
    staged_seconds: float = 0.0
    pass_seconds: float = 0.0
    forward_share: float = 0.0
    most_stages: int = 0
    blocks: tuple[float, ...] = ()
    finer: Mapping[int, FinePieces] = field(default_factory=dict)
    halves: Halves = field(default_factory=Halves)
    launches: Launches = field(default_factory=Launches)

    def of(self, configuration: Configuration) -> float:
        """Return a lower bound on the step of every plan of a configuration.

        Examples
        --------
        Two micro-batches pass 4 stages one after the other; with many, the bubble vanishes. Of one,
        stages that need nothing of each other need not wait.

        >>> floor = ComputationFloor(8, 8.0, 8.0, 8.0)
        >>> [round(floor.of(Configuration(None, count, 4)), 3) for count in (1, 2, 64)]
        [1.0, 2.133, 1.024]
        """
        stages, count = configuration.stages, configuration.micro_batches
        once, launched = self.launches.of_step(1), self.launches.of_step(count) / stages
        if stages == 1:
            return launched + (self.step_seconds - once) / self.devices
        even = launched + (self.staged_seconds - once) / self.devices
        if count == 1:
            return even
        if configuration.chunks > 1 and configuration.parts <= self.most_stages:
            return max(even, self._of_chunks(configuration))
        pieces = self._pieces(configuration)
        first = pieces.forward_share
        if not first:
            return even
        share = stages / (count * self.devices)
        passes = _divided(pieces.pass_seconds, pieces.launches, share)
        return max(even, first * passes / (1 - (1 - first / count) ** stages))

    def _of_chunks(self, configuration: Configuration) -> float:
        """Return a bound where each group has several stages, cut between the blocks."""
        stages, count = configuration.stages, configuration.micro_batches
        each = self.devices // stages
        share = 1 / (each * count)
        launches = self.launches.blocks or (0.0,) * len(self.blocks)
        blocks = [_divided(*pair, share) for pair in zip(self.blocks, launches, strict=True)]
        passes = _divided(self.pass_seconds, self.launches.of_pass, share)
        first = 1.0 if has_two_parts(configuration) else self.forward_share
        least = (count * passes + first * first_of_groups(blocks, stages)) / stages
        above = least * self.devices / self.step_seconds - 1 if self.step_seconds else 0.0
        if above * 2 * configuration.parts * count > _DEAR:
            return least
        return max(least, self.halves.step(configuration, each, passes))

    def _pieces(self, configuration: Configuration) -> FinePieces:
        """Return for which share of a pass the first micro-batch keeps later stages waiting."""
        launches = self.launches.of_pass
        if configuration.chunks > 1:
            return FinePieces(self.pass_seconds, 0.0)
        if has_two_parts(configuration):
            return FinePieces(self.pass_seconds, 1.0, launches)
        if configuration.stages <= self.most_stages:
            return FinePieces(self.pass_seconds, self.forward_share, launches)
        return self.finer.get(configuration.stages, FinePieces(self.pass_seconds, 0.0))
