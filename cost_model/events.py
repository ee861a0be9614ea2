"""The events of a step: when each node runs, and what the step takes in all."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.buffers import MemoryUseReport
from shardwright.cost_model.streams import Placement
from shardwright.ir.graph import Node

_HALVINGS = 12  # most halvings of a window; then it holds less than any layer
_NEAR = 0.01  # relative distance from the memory of the serial step at which no window is tried


@dataclass(frozen=True, slots=True)
class Event:
    """The execution of one node.

    Parameters
    ----------
    node : Node
        The node.
    placement : Placement
        Its queue, and the levels of its links.
    start, seconds : float
        Start and duration.
    nbytes : float
        Bytes of its results on the rank; 0 for views and in-place updates.
    micro_batch : int
        The pass over micro-batches that runs it; 0 outside of their loop.
    computing : float
        Seconds for which it computes; a ring computes while it communicates.
    group : int
        The device group that runs it; 0 without pipeline stages.
    """

    node: Node
    placement: Placement
    start: float
    seconds: float
    nbytes: float
    micro_batch: int = 0
    computing: float = 0.0
    group: int = 0

    @property
    def end(self) -> float:
        """Time at which it ends."""
        return self.start + self.seconds

    @property
    def streams(self) -> tuple[str, ...]:
        """The resources that it occupies."""
        return self.placement.resources


@dataclass(frozen=True, slots=True)
class SegmentEvent:
    """The execution of one segment of a pipeline by a device group.

    Parameters
    ----------
    group : int
        The device group.
    stage : int or None
        The stage; None for work before or after the loop over micro-batches.
    part : str
        ``forward``, ``backward`` or ``weights``; ``before`` or ``after`` the loop.
    micro_batch : int
        The micro-batch; 0 outside of the loop.
    start, seconds : float
        Start and duration.
    computing : float
        Seconds of computation.
    """

    group: int
    stage: int | None
    part: str
    micro_batch: int
    start: float
    seconds: float
    computing: float


@dataclass(frozen=True)
class Record:
    """What happens in a step, and when.

    Parameters
    ----------
    events : tuple of Event
        The nodes, in program order.
    live_bytes : tuple of (float, float)
        Times at which the live bytes change, with the live bytes from then on; of a pipeline, on
        the device group that takes most.
    group_live_bytes : tuple of (tuple of (float, float))
        The live bytes of each device group of a pipeline.
    simulated : tuple of Event
        The events as they were simulated, where further passes over micro-batches repeat: those
        that follow start later than here.
    segments : tuple of SegmentEvent
        The segments of all device groups of a pipeline.
    group_kinds : tuple of array of shape (moments, kinds)
        Of each device group of a pipeline its live bytes, by `buffers.KINDS`, at the moments of
        `group_live_bytes`.
    """

    events: tuple[Event, ...]
    live_bytes: tuple[tuple[float, float], ...]
    group_live_bytes: tuple[tuple[tuple[float, float], ...], ...] = ()
    simulated: tuple[Event, ...] = ()
    segments: tuple[SegmentEvent, ...] = ()
    group_kinds: tuple[NDArray[np.float64], ...] = ()


@dataclass(frozen=True)
class Timeline:
    """One step of a program on one rank; of a pipeline, on a rank of each device group.

    Of a pipeline, the times other than the step are means over its device groups.

    Parameters
    ----------
    step_seconds : float
        Time of the step.
    compute_seconds : float
        Time of computation.
    communication_seconds : float
        Sum of the times of all collectives; of a ring the time in which it does not compute.
    exposed_communication_seconds : float
        Time in which the rank waits for communication without computing.
    peak_bytes : float
        Peak memory. A buffer is live from the start of the node that defines it to the end of its
        last reader, so early communication takes memory early.
    window_bytes : float
        Bytes that gathers ahead may take, and as many the gradients that wait to be reduced.
    make_record : callable
        Makes the record: most timelines are compared by their figures alone.
    bubble_seconds : float
        Time in which a device group waits for other stages.
    group_peak_bytes : tuple of float
        Peak memory of each device group of a pipeline.
    make_memory : callable, optional
        Returns the peak memory by kind of tensor; not of a pipeline.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    peak_bytes: float
    window_bytes: float
    make_record: Callable[[], Record] = field(repr=False, compare=False)
    bubble_seconds: float = 0.0
    group_peak_bytes: tuple[float, ...] = ()
    make_memory: Callable[[], MemoryUseReport] | None = field(
        default=None, repr=False, compare=False
    )

    @cached_property
    def record(self) -> Record:
        """What happens, and when."""
        return self.make_record()

    @property
    def events(self) -> tuple[Event, ...]:
        """The nodes, in program order."""
        return self.record.events


def in_least_window(
    timeline: Timeline,
    with_window: Callable[[float], Timeline | None],
    least_bytes: float,
    tolerance: float,
) -> Timeline:
    """Return the timeline of the least memory whose step is about as short.

    More bytes in the window take more memory and make the step shorter, but for a few anomalies,
    so the halvings of the window are bisected. A shorter step that is met on the way is taken.

    Parameters
    ----------
    timeline : Timeline
        The timeline with the widest window.
    with_window : callable
        Returns the timeline with a narrower window; None where there is none.
    least_bytes : float
        Peak memory of the serial step.
    tolerance : float
        Relative length by which the step may exceed the shortest one.
    """
    windows = [timeline.window_bytes / 2 ** (i + 1) for i in range(_HALVINGS)] + [0.0]
    found = [timeline]
    low, high = 0, len(windows)
    while low < high and found[-1].peak_bytes > least_bytes * (1 + _NEAR):
        middle = (low + high) // 2
        narrower = with_window(windows[middle])
        shortest = min(one.step_seconds for one in found)
        if narrower is not None and narrower.step_seconds <= shortest * (1 + tolerance):
            found.append(narrower)
            low = middle + 1
        else:
            high = middle
    longest = min(one.step_seconds for one in found) * (1 + tolerance)
    near = [one for one in found if one.step_seconds <= longest]
    return min(near, key=lambda one: (one.peak_bytes, one.window_bytes))
