"""All reductions to a fixed point, and the way back.

    cost of an assignment of the problem  =  constant + cost of the reduced one

holds for every assignment that `Presolved.lift` returns, and at least one of them is optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwright.solver.anytime.dominance import undominated
from shardwright.solver.anytime.flat import Flat, Step
from shardwright.solver.anytime.graph import affordable
from shardwright.solver.anytime.reductions import contracted, normalised, restricted, supported
from shardwright.solver.problem import Array

MOST_ROUNDS = 12

WORTHWHILE = 1e-3
"""Another round follows one that dropped at least this part of the strategies."""


@dataclass
class Presolved:
    """A reduced problem and what was done to get there.

    Parameters
    ----------
    flat : Flat
    steps : list of Step
        In the order they were made.
    infeasible : bool
        Whether the forbidden entries leave no assignment at all.
    """

    flat: Flat
    steps: list[Step] = field(default_factory=list)
    infeasible: bool = False

    def lift(self, choice: Array) -> Array:
        """Return the assignment of the problem that a choice in the reduced one means."""
        for step in reversed(self.steps):
            choice = step.undo(choice)
        return choice

    def apply(self, reduced: tuple[Flat, Step]) -> None:
        """Take a reduction."""
        self.flat = normalised(reduced[0])
        self.steps.append(reduced[1])

    def drop(self, gone: Array, what: str) -> bool:
        """Take strategies out; return whether there were any, and each variable has others."""
        if not np.logical_or.reduceat(~gone, self.flat.offset[:-1]).all():
            self.infeasible = True
        if self.infeasible or not gone.any():
            return False
        self.apply(restricted(self.flat, ~gone, what))
        return True


def presolve(flat: Flat, in_time: Callable[[], bool] = lambda: True) -> Presolved:
    """Reduce a problem as far as the time allows."""
    state = Presolved(normalised(flat))
    changed = None
    for _ in range(MOST_ROUNDS):
        before = len(state.steps)
        _settle(state)
        if state.infeasible or not in_time():
            break
        keep = undominated(state.flat, changed if len(state.steps) == before else None)
        old = state.flat
        if not state.drop(~keep, "dominated strategies dropped"):
            break
        changed = _changed(old, keep, state.steps[-1])
        if (~keep).sum() < WORTHWHILE * len(keep):
            break
    if not state.infeasible:
        _settle(state)
    if not state.infeasible:
        _drop_decided(state)
    return state


def _changed(old: Flat, keep: Array, step: Step) -> Array:
    """Return which of the variables after a step have lost a strategy, or the table to one."""
    lost = np.logical_or.reduceat(~keep, old.offset[:-1])
    changed = np.zeros(int(step.source.max(initial=-1)) + 1, bool)
    changed[step.source[lost & (step.source >= 0)]] = True
    for one, other in ((old.first, old.second), (old.second, old.first)):
        near = step.source[one[lost[other]]]
        changed[near[near >= 0]] = True
    return changed


def _settle(state: Presolved) -> None:
    """Drop what is forbidden and merge what is decided, until neither is left."""
    while True:
        while state.drop(~supported(state.flat), "forbidden strategies dropped"):
            pass
        merged = None if state.infeasible else contracted(state.flat)
        if merged is not None:
            state.apply(merged)
        elif not state.drop(~affordable(state.flat), "strategies that never fit dropped"):
            return


def _drop_decided(state: Presolved) -> None:
    """Take the variables with a single strategy out; normalised, they are in no table.

    Pairs of a variable with itself, and parallel ones, go on the way.
    """
    flat = state.flat
    keys = flat.first * len(flat.size) + flat.second
    plain = (flat.first < flat.second).all() and len(np.unique(keys)) == len(keys)
    if (flat.size == 1).any() or not plain:
        keep = np.ones(len(flat.unary), bool)
        state.apply(restricted(flat, keep, "decided variables taken out"))
