"""Presolve of a flat problem: all reductions to a fixed point, and the way back.

    cost of an assignment of the problem  =  constant + cost of the reduced one

holds for every assignment that `Presolved.lift` returns, and at least one of them is optimal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwright.solver.anytime.dominance import undominated
from shardwright.solver.anytime.flat import Flat, Reduction
from shardwright.solver.anytime.graph import affordable
from shardwright.solver.anytime.reductions import contracted, normalised, restricted, supported
from shardwright.solver.problem import Array

WORTHWHILE = 1e-3
"""Another round follows one that dropped at least this share of the strategies."""


@dataclass
class Presolved:
    """A reduced problem, and the reductions that led to it.

    Parameters
    ----------
    flat : Flat
    reductions : list of Reduction
        In order of application.
    infeasible : bool
        Whether the forbidden entries leave no assignment at all.
    """

    flat: Flat
    reductions: list[Reduction] = field(default_factory=list)
    infeasible: bool = False

    def lift(self, choice: Array) -> Array:
        """Return the assignment of the problem for a choice of the reduced one."""
        for reduction in reversed(self.reductions):
            choice = reduction.undo(choice)
        return choice

    def apply(self, reduced: tuple[Flat, Reduction]) -> None:
        """Replace the problem by a reduced one."""
        self.flat = normalised(reduced[0])
        self.reductions.append(reduced[1])

    def drop(self, dropped: Array, name: str) -> bool:
        """Drop strategies; return whether there were any and every variable keeps one."""
        if not np.logical_or.reduceat(~dropped, self.flat.offset[:-1]).all():
            self.infeasible = True
        if self.infeasible or not dropped.any():
            return False
        self.apply(restricted(self.flat, ~dropped, name))
        return True


def presolve(flat: Flat, in_time: Callable[[], bool] = lambda: True) -> Presolved:
    """Reduce a problem as far as the time allows."""
    state = Presolved(normalised(flat))
    changed = None
    while True:
        before = len(state.reductions)
        _settle(state, in_time)
        if state.infeasible or not in_time():
            break
        keep = undominated(state.flat, changed if len(state.reductions) == before else None)
        old = state.flat
        if not state.drop(~keep, "dominated strategies dropped"):
            break
        changed = _changed(old, keep, state.reductions[-1])
        if (~keep).sum() < WORTHWHILE * len(keep):
            break
    if not state.infeasible and in_time():
        _settle(state, in_time)
    if not state.infeasible:
        _drop_decided(state)
    return state


def _changed(old: Flat, keep: Array, reduction: Reduction) -> Array:
    """Mark the variables after a reduction that have lost a strategy, or a neighbour that has."""
    lost = np.logical_or.reduceat(~keep, old.offset[:-1])
    changed = np.zeros(int(reduction.source.max(initial=-1)) + 1, bool)
    changed[reduction.source[lost & (reduction.source >= 0)]] = True
    for one, other in ((old.first, old.second), (old.second, old.first)):
        near = reduction.source[one[lost[other]]]
        changed[near[near >= 0]] = True
    return changed


def _settle(state: Presolved, in_time: Callable[[], bool]) -> None:
    """Drop forbidden strategies and merge decided variables until none is left."""
    while in_time():
        while state.drop(~supported(state.flat), "forbidden strategies dropped"):
            pass
        merged = None if state.infeasible or not in_time() else contracted(state.flat)
        if merged is not None:
            state.apply(merged)
        elif not state.drop(~affordable(state.flat), "strategies that never fit dropped"):
            return


def _drop_decided(state: Presolved) -> None:
    """Remove the variables with a single strategy; normalised, they are in no table.

    This merges parallel pairs, and pairs of a variable with itself.
    """
    flat = state.flat
    keys = flat.first * len(flat.size) + flat.second
    plain = (flat.first < flat.second).all() and len(np.unique(keys)) == len(keys)
    if (flat.size == 1).any() or not plain:
        keep = np.ones(len(flat.unary), bool)
        state.apply(restricted(flat, keep, "decided variables taken out"))
