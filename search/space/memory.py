"""The memory account: what the choices of a search hold, and when (their liveness).

Of n operators, operator i runs forward at moment i and backward at its mirror image, 2n - 1 - i;
parameters are updated at the end, 2n. Nothing is counted that an emitted program does not hold:

- persistent tensors (parameters, optimizer states) and tensors saved for backward, over intervals
  in which they are surely there;
- gradients of parameters, until the update. Each moment at which one begins is one more row of the
  problem, so they begin at one of few: none earlier than it is made;
- in a pipeline stage, the tensors saved for backward of the other micro-batches in flight, at all
  moments;
- transient tensors, such as the cotangents of an operator: counted near the peak, at the moments at
  which the program would hold most if nothing were split, again for few rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.solver.problem import Identity, MemoryUse, distinct

_SEGMENTS = 16  # the part of all gradients that is counted too early is at most one of so many
_PEAKS = 16  # moments of a program at which transient memory is counted
_PEAKS_OF_STRETCH = 6  # moments of one stretch at which transient memory is counted
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HostMemory:
    """The host memory of a device, and what a search may do with it.

    Parameters
    ----------
    offered : bool
        Whether the search decides which tensors are offloaded, beside those that the user marks.
    host_bytes : float
        Host memory of a device.
    device_bytes : float
        The memory limit of a device.
    """

    offered: bool
    host_bytes: float
    device_bytes: float


@dataclass(eq=False, slots=True)
class _Held:
    """What one variable holds, in ``[start, stop)``."""

    variable: int
    usage: Floats
    start: int
    stop: int


@dataclass
class MemoryAccount:
    """Collects what the variables of a search hold.

    Parameters
    ----------
    operators : int
        How many there are in the program.
    in_flight : int
        Micro-batches whose saved tensors are held at once.
    host : HostMemory, optional
        The host memory, where tensors may be offloaded.
    stretches : sequence of range
        Moments among which some are counted in any case, wherever the peak is.
    """

    operators: int
    in_flight: int = 1
    host: HostMemory | None = None
    stretches: Sequence[range] = ()
    _held: list[_Held] = field(default_factory=list)
    _gradients: list[_Held] = field(default_factory=list)
    _transient: list[_Held] = field(default_factory=list)
    _multiples: dict[int, Floats] = field(default_factory=dict)
    _hosted: list[_Held] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The moment of the update."""
        return 2 * self.operators

    def backward(self, moment: int) -> int:
        """Return when the operator that runs forward at a moment runs backward."""
        return self.end - 1 - moment

    def hold(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count bytes in an interval."""
        if start < stop:
            self._held.append(_Held(variable, usage, start, stop))

    def hold_saved(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count bytes that each micro-batch saves for backward, and those of all in flight."""
        self.hold(variable, usage, start, stop)
        others = self.in_flight - 1
        if others and start < self.operators <= stop:
            self.hold(variable, self._scaled(usage, others), 0, self.end)

    def _scaled(self, usage: Floats, times: int) -> Floats:
        """Return a multiple of a usage; equal layers share it as they share the usage."""
        if id(usage) not in self._multiples:
            self._multiples[Identity(usage)] = times * usage
        return self._multiples[id(usage)]

    def hold_hosted(self, variable: int, usage: Floats) -> None:
        """Count bytes in host memory, of all micro-batches in flight."""
        held = self._scaled(usage, self.in_flight) if self.in_flight > 1 else usage
        self._hosted.append(_Held(variable, held, self.end + 2, self.end + 3))

    def _in_host(self) -> list[_Held]:
        """Return what is held in host memory, as one more moment; nothing where all of it fits.

        All of it is held at once when backward begins. It is counted in such units that the limit
        is that of a device.
        """
        host = self.host
        if host is None or sum(held.usage.max() for held in self._hosted) <= host.host_bytes:
            return []
        scale = host.device_bytes / host.host_bytes
        scaled: dict[int, Floats] = {Identity(h.usage): scale * h.usage for h in self._hosted}
        return [_Held(h.variable, scaled[id(h.usage)], h.start, h.stop) for h in self._hosted]

    def hold_gradient(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count the gradient of a parameter, from a moment at which it is there."""
        self._gradients.append(_Held(variable, usage, start, stop))

    def hold_transient(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count bytes in an interval, at the moments near peak memory."""
        if start < stop:
            self._transient.append(_Held(variable, usage, start, stop))

    def uses(self, variables: int) -> list[tuple[MemoryUse, ...]]:
        """Return the memory uses of each variable."""
        uses: list[list[MemoryUse]] = [[] for _ in range(variables)]
        persistent = [*self._held, *_begun_together(self._gradients)]
        persistent = [held for held in persistent if held.start < held.stop]
        hosted = self._in_host()
        most = _most((*persistent, *hosted, *self._transient))
        for held in (*persistent, *hosted):
            if most[id(held.usage)]:  # else it never takes any
                uses[held.variable].append(MemoryUse(held.usage, held.start, held.stop))
        starts = np.array([held.start for held in self._transient], dtype=np.int64)
        stops = np.array([held.stop for held in self._transient], dtype=np.int64)
        for moment in self._peaks(persistent, most):
            for at in np.flatnonzero((starts <= moment) & (moment < stops)).tolist():
                held = self._transient[at]
                if most[id(held.usage)]:
                    uses[held.variable].append(MemoryUse(held.usage, moment, moment + 1))
        return list(map(tuple, uses))

    def _peaks(self, persistent: Sequence[_Held], most: Mapping[int, float]) -> list[int]:
        """Return the moments at which most would be held if nothing were split."""
        change = [0.0] * (self.end + 2)
        counted = [0] * (self.end + 2)
        for held in (*persistent, *self._transient):
            change[held.start] += most[id(held.usage)]
            change[held.stop] -= most[id(held.usage)]
        for held in self._transient:
            counted[held.start] += 1
            counted[held.stop] -= 1
        held_bytes = np.where(np.cumsum(counted) > 0, np.cumsum(change), -np.inf)[:-1]
        order = np.argsort(-held_bytes, kind="stable").tolist()
        peaks = order[:_PEAKS]
        for stretch in self.stretches:
            own = [moment for moment in order if moment in stretch]
            peaks += own[:_PEAKS_OF_STRETCH]
        return [moment for moment in dict.fromkeys(peaks) if held_bytes[moment] > 0]


def _most(held: Iterable[_Held]) -> dict[int, float]:
    """Return the most bytes of each usage, by its identity; equal layers share them."""
    usages = distinct([one.usage for one in held])
    return {Identity(usage): float(usage.max()) for usage in usages}


def _begun_together(gradients: Sequence[_Held]) -> list[_Held]:
    """Let gradients begin at few moments, late enough that each is there.

    The bytes that are not counted yet are a small part of all.
    """
    most = _most(gradients)
    allowed = sum([most[id(held.usage)] for held in gradients]) / _SEGMENTS
    start, late, begun = -1, np.inf, []
    for held in sorted(gradients, key=lambda held: -held.start):
        size = most[id(held.usage)]
        if (held.start < start and late + size > allowed) or start < 0:
            start, late = held.start, 0.0
        late += size if held.start < start else 0.0
        begun.append(_Held(held.variable, held.usage, start, held.stop))
    return begun
