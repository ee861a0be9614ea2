"""What the choices of a search hold in memory, and when.

Of n operators, operator i runs forward at moment i and backward at its mirror image, 2n - 1 - i;
parameters are updated at the end, 2n. Nothing is counted that an emitted program does not hold:

- persistent tensors (parameters, optimizer states) and tensors saved for backward, over intervals
  in which they are surely there;
- gradients of parameters, until the update. Each moment at which one begins is one more row of the
  problem, so they begin at one of few: none earlier than it is made;
- transient tensors, such as the cotangents of an operator: counted at the moments at which the
  program would hold most if nothing were split, again for few rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.solver.problem import Identity, MemoryUse

_SEGMENTS = 16  # the part of all gradients that is counted too early is at most one of so many
_FULLEST = 16  # moments at which memory in passing is counted
Floats = NDArray[np.float64]


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
    """

    operators: int
    _held: list[_Held] = field(default_factory=list)
    _gradients: list[_Held] = field(default_factory=list)
    _passing: list[_Held] = field(default_factory=list)

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

    def hold_gradient(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count the gradient of a parameter, from a moment at which it is there."""
        self._gradients.append(_Held(variable, usage, start, stop))

    def hold_transient(self, variable: int, usage: Floats, start: int, stop: int) -> None:
        """Count bytes in an interval, where the program is fullest."""
        if start < stop:
            self._passing.append(_Held(variable, usage, start, stop))

    def uses(self, variables: int) -> list[tuple[MemoryUse, ...]]:
        """Return the memory uses of each variable."""
        found: list[list[MemoryUse]] = [[] for _ in range(variables)]
        lasting = [*self._held, *_begun_together(self._gradients)]
        lasting = [held for held in lasting if held.start < held.stop]
        for held in lasting:
            found[held.variable].append(MemoryUse(held.usage, held.start, held.stop))
        for moment in self._fullest(lasting):
            for held in self._passing:
                if held.start <= moment < held.stop:
                    found[held.variable].append(MemoryUse(held.usage, moment, moment + 1))
        usages = {Identity(use.usage): use.usage for uses in found for use in uses}
        used = {key for key, usage in usages.items() if usage.any()}  # equal layers share them
        return [tuple(use for use in uses if Identity(use.usage) in used) for uses in found]

    def _fullest(self, lasting: Sequence[_Held]) -> list[int]:
        """Return the moments at which most would be held if nothing were split."""
        usages = {Identity(held.usage): held.usage for held in (*lasting, *self._passing)}
        most = {key: usage.max() for key, usage in usages.items()}
        change = np.zeros(self.end + 2)
        counted = np.zeros(self.end + 2)
        for held in (*lasting, *self._passing):
            change[held.start] += most[Identity(held.usage)]
            change[held.stop] -= most[Identity(held.usage)]
        for held in self._passing:
            counted[held.start] += 1
            counted[held.stop] -= 1
        fullness = np.where(np.cumsum(counted) > 0, np.cumsum(change), -np.inf)[:-1]
        fullest = np.argsort(-fullness, kind="stable")[:_FULLEST]
        return [int(moment) for moment in fullest if fullness[moment] > 0]


def _begun_together(gradients: Sequence[_Held]) -> list[_Held]:
    """Let gradients begin at few moments, late enough that each is there.

    The bytes that are not counted yet are a small part of all.
    """
    allowed = sum(held.usage.max() for held in gradients) / _SEGMENTS
    start, late, found = -1, np.inf, []
    for held in sorted(gradients, key=lambda held: -held.start):
        size = held.usage.max()
        if (held.start < start and late + size > allowed) or start < 0:
            start, late = held.start, 0.0
        late += size if held.start < start else 0.0
        found.append(_Held(held.variable, held.usage, start, held.stop))
    return found
