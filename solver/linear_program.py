"""Master problems of cutting planes, solved by GLOP: the highest point below linear functions."""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from shardwright.solver.problem import Array

PRICE_RANGE = 1e4
"""Largest price, in units of the cost of the dearest assignment for all that a row can exceed."""


class _HeightProgram:
    """Maximise a height that stays below linear functions of bounded variables."""

    def __init__(self, count: int, lowest: float, largest: float) -> None:
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.height = self.solver.NumVar(lowest, self.solver.infinity(), "height")
        self.variables = [self.solver.NumVar(0.0, largest, f"x{i}") for i in range(count)]

    def stay_below(self, constant: float, slope: Array) -> None:
        """Constrain the height to ``constant + slope . variables``."""
        constraint = self.solver.Constraint(-self.solver.infinity(), float(constant))
        constraint.SetCoefficient(self.height, 1.0)
        for variable, coefficient in zip(self.variables, slope, strict=True):
            constraint.SetCoefficient(variable, -float(coefficient))

    def solve(self) -> tuple[float, Array]:
        """Return the height and the variables; ``-inf`` and zeros where GLOP finds no optimum."""
        self.solver.Maximize(self.height)
        if self.solver.Solve() != pywraplp.Solver.OPTIMAL:
            return -np.inf, np.zeros(len(self.variables))
        values = np.array([variable.solution_value() for variable in self.variables])
        return self.solver.Objective().Value(), values


def highest_prices(constants: Array, slopes: Array) -> tuple[float, Array]:
    """Return the maximum over p >= 0 of ``min(constants + slopes p)``, and its place.

    Everything is scaled to one.
    """
    top = max(float(np.abs(constants).max()), 1e-300)
    scale = np.abs(slopes).max(axis=0)
    scale[scale == 0] = 1.0
    program = _HeightProgram(slopes.shape[1], -np.inf, PRICE_RANGE)
    for constant, slope in zip(constants / top, slopes / scale, strict=True):
        program.stay_below(constant, slope)
    height, prices = program.solve()
    return top * height, prices * top / scale


def highest_weights(cuts: Array, groups: int = 1) -> tuple[float, Array]:
    """Return the maximum of ``min(cuts w)`` over weights w >= 0, and its place.

    The weights are in groups of equal size, one after the other; those of each sum to 1.
    """
    scale = float(cuts.max()) or 1.0
    program = _HeightProgram(cuts.shape[1], 0.0, 1.0)
    size = cuts.shape[1] // groups
    for begin in range(0, cuts.shape[1], size):
        program.solver.Add(sum(program.variables[begin : begin + size]) == 1.0)
    for cut in cuts / scale:
        program.stay_below(0.0, cut)
    height, weights = program.solve()
    if height == -np.inf:
        return height, weights
    parts = np.maximum(weights, 0.0).reshape(groups, size)
    return scale * height, (parts / parts.sum(axis=1, keepdims=True)).ravel()
