"""The intervals of a step that are bounded one by one, and the weights of resources in each.

Nodes that run in line (that compute, or communicate blocking) run in program order, so the moments
at which some of them end divide every schedule of a program, whatever overlaps. Each interval takes
at least the load of each resource by what must run in it, so at least the sum of these loads by
weights that are not negative and sum to 1, and the step at least the sum over the intervals. What
may run in several intervals counts with the least of their weights: whatever part of it runs in
which of them, its seconds count no more than they take there.

- **One interval**: the step.
- **Two**, of a step without micro-batches, divided at t, when the last node of the forward pass
  ends that runs in line. Nodes of the forward pass that run in line have ended at t, and so have
  the gathers that one of them waits for (`kinds.can_divide` says where each has such a node). Nodes
  of the backward pass that run in line have not started before t, nor has what waits for one of
  them: reductions of gradients, since every gradient is made of that of the loss, and updates. A
  parameter that is gathered again for the backward pass may be gathered early, in either interval,
  and copies to and from host memory may run in either.
- **Three**, of a step in M micro-batches, divided when the last node in line ends of the forward
  pass of the first micro-batch, and of the last one. The first forward pass is in the first
  interval, the last backward pass in the last, all others between them. What is gathered once,
  before the loop, is in the first: the first forward pass waits for it. What is reduced once is in
  the last, with the updates: it waits for the last backward pass. What a pass gathers, it gathers
  before its forward pass ends: in the first interval or the second, and the first pass in the
  first. What a pass reduces, it reduces after its backward pass has begun: in the second or the
  last, and the last pass in the last. What is gathered again may be in any interval in which its
  backward pass has not ended. So may what is copied to host memory, and back.
- **Four**, of a pipeline, whose segments each end before the next one begins on a device group:
  before the loop, forward segments, backward segments, after the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
When = Literal["before", "forward", "backward", "after", "either", "once", "offload"]
"""When a node runs: once before the loop over micro-batches, in the forward or the backward pass of
each, or once after the loop; ``either`` in each, in its forward pass or its backward pass or
earlier; ``once`` before the loop or after it; ``offload`` in each, after its forward pass has begun
and before its backward pass ends. Without a loop, all of a step is one pass."""

Part = tuple[float, tuple[int, ...]]
"""A share of the seconds of a node, and the intervals in which they may pass."""

LEAST_WEIGHT = 1e-10
"""The least weight of a resource: where one is free, paths would go round in circles."""

LINKS = 0.05
"""Weight of the links together, of all resources, by which first plans and boundaries are found.

On 64 H100 the best counts of Llama 3 70B take 0.2 % more seconds by half of it, those of Mixtral
8x7B 0.7 % more by twice as much: there are other layouts between layers. The links to the host have
the same weight at first, where memory is short."""


class Kind(NamedTuple):
    """What the weight of a node depends on, beside its resources.

    Parameters
    ----------
    deferrable : bool
        Whether it gathers a parameter, reduces the gradient of one, or is local work on these:
        whether it may run before its place in line, or after it.
    when : str
        When it runs.
    """

    deferrable: bool = False
    when: When = "forward"

    def of_parameters(self) -> "Kind":
        """Return the kind for parameters, and for their gradients."""
        return Kind(True, self.when)

    def of_gradients(self) -> "Kind":
        """Return the kind for the gradient of what this one is for."""
        later: dict[When, When] = {"forward": "backward", "before": "after", "either": "backward"}
        return Kind(self.deferrable, later.get(self.when, self.when))

    def second(self) -> "Kind":
        """Return the kind for what is redistributed again; a parameter may be in either pass."""
        if self.when in ("before", "after", "once"):
            return Kind(self.deferrable, "once")
        return Kind(self.deferrable, "either" if self.deferrable else "backward")

    def outside(self, of_parameters: bool) -> "Kind":
        """Return the kind for what runs once, outside of the loop.

        Only what is made of parameters alone is known to run before the loop, and what depends on
        its gradient after it.
        """
        outside: dict[When, When] = {"forward": "before", "backward": "after", "either": "once"}
        when = outside.get(self.when, self.when) if of_parameters else "once"
        return Kind(self.deferrable, when)


KINDS = tuple(
    Kind(deferrable, when)
    for deferrable in (False, True)
    for when in ("before", "forward", "backward", "after", "either", "once")
) + (Kind(True, "offload"),)


def parts_of(kind: Kind, intervals: int, passes: float = 1) -> tuple[Part, ...]:
    """Return the intervals in which the seconds of a node may pass, by their shares.

    Parameters
    ----------
    kind : Kind
        The kind of the node.
    intervals : int
        Number of intervals of a step.
    passes : float
        Number of micro-batches.
    """
    if intervals == 1:
        return ((1.0, (0,)),)
    if intervals == 2:
        return ((1.0, _OF_TWO[kind.when]),)
    if intervals == 4:
        return ((1.0, _OF_SEGMENTS[kind.when]),)
    if kind.when in _OF_THREE:
        return ((1.0, _OF_THREE[kind.when]),)
    first, others = _OF_PASSES[kind]
    return ((1 / passes, first), (1 - 1 / passes, others))


_OF_TWO: dict[When, tuple[int, ...]] = {
    "before": (0,),
    "forward": (0,),
    "backward": (1,),
    "after": (1,),
    "either": (0, 1),
    "once": (0, 1),
    "offload": (0, 1),
}
_OF_SEGMENTS: dict[When, tuple[int, ...]] = {
    "before": (0,),
    "forward": (1,),
    "backward": (2,),
    "after": (3,),
    "either": (2,),
    "once": (0, 3),
    "offload": (1,),
}
_OF_THREE: dict[When, tuple[int, ...]] = {"before": (0,), "after": (2,), "once": (0, 1, 2)}
# Of what runs in every pass: of the pass at the end of the loop (the first forward pass, the last
# backward pass), then of every other pass.
_OF_PASSES: dict[Kind, tuple[tuple[int, ...], tuple[int, ...]]] = {
    Kind(False, "forward"): ((0,), (1,)),
    Kind(True, "forward"): ((0,), (0, 1)),
    Kind(False, "backward"): ((2,), (1,)),
    Kind(True, "backward"): ((2,), (1, 2)),
    Kind(False, "either"): ((0, 1, 2), (0, 1)),
    Kind(True, "either"): ((0, 1, 2), (0, 1)),
    Kind(True, "offload"): ((0, 1, 2), (0, 1)),
}


@dataclass(frozen=True)
class ResourceWeights:
    """The weights of the resources of a rank; in every interval they are positive and sum to 1.

    Parameters
    ----------
    compute : float
        Weight of the compute stream.
    levels : tuple of float
        Weights of the links (`Cluster.links`): those of the levels of the cluster, innermost first,
        then those to and from the host, where it has one.
    later : tuple of ResourceWeights
        The weights in the intervals after the first; none where the step is one interval.
    passes : float
        Number of micro-batches of a step that is divided in three intervals.
    """

    compute: float
    levels: tuple[float, ...]
    later: "tuple[ResourceWeights, ...]" = ()
    passes: float = 1

    @property
    def literal(self) -> tuple[object, ...]:
        """The numbers: of computation, then of each level; of several intervals a tuple of each.

        Before those of several intervals of a loop, the number of micro-batches.
        """
        if not self.later:
            return (self.compute, *self.levels)
        passes = () if self.passes == 1 else (self.passes,)
        return (*passes, *self.intervals)

    @cached_property
    def intervals(self) -> tuple[tuple[float, ...], ...]:
        """The weights in each interval, of computation and of each level."""
        return tuple((one.compute, *one.levels) for one in (self, *self.later))

    def of(self, levels: set[int], kind: Kind) -> float:
        """Return the weight of a second of a node that occupies the links of some levels."""
        weights = [_weight(interval, levels, kind.deferrable) for interval in self.intervals]
        parts = parts_of(kind, len(weights), self.passes)
        return sum(share * min(weights[i] for i in among) for share, among in parts)

    def in_step(self, kind: Kind, times: float, of_parameters: bool) -> Kind:
        """Return the kind for what runs so often in a step: once, outside of the loop if any."""
        has_loop = len(self.later) > 1
        return kind.outside(of_parameters) if has_loop and times == 1 else kind

    def canonical(self, kind: Kind) -> Kind:
        """Return the first kind with the same weights, whatever the resources."""
        if kind not in self._canonical:
            self._canonical[kind] = self._find_canonical(kind)
        return self._canonical[kind]

    @cached_property
    def _canonical(self) -> dict[Kind, Kind]:
        return {}

    def _find_canonical(self, kind: Kind) -> Kind:
        count = len(self.intervals)
        parts = parts_of(kind, count, self.passes)
        equal = (k for k in _PREFERRED if k.deferrable == kind.deferrable)
        return next(k for k in equal if parts_of(k, count, self.passes) == parts)


_PREFERRED = sorted(KINDS, key=lambda kind: kind.when not in ("forward", "backward", "either"))


def _weight(interval: Sequence[float], levels: set[int], deferrable: bool) -> float:
    compute, *links = interval
    if not levels:
        return compute
    occupied = sum(links[level] for level in levels)
    return occupied if deferrable else compute + occupied


def weights_of_literal(literal: Sequence[Any]) -> ResourceWeights | None:
    """Return the weights whose numbers a literal has; None for an empty one."""
    if not literal:
        return None
    if not any(isinstance(part, Sequence) for part in literal):
        return ResourceWeights(literal[0], tuple(literal[1:]))
    has_passes = not isinstance(literal[0], Sequence)
    passes = literal[0] if has_passes else 1
    first, *later = (
        ResourceWeights(part[0], tuple(part[1:])) for part in literal[1 if has_passes else 0 :]
    )
    return ResourceWeights(first.compute, first.levels, tuple(later), passes)
