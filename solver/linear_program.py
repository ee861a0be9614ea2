"""Linear programs, solved by GLOP: the highest point below linear functions, and critical paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from shardwright.ir.rounding import OF_SUM
from shardwright.solver.problem import Array

Term = tuple[tuple[int, ...], tuple[int, ...]]
"""Some groups of weights, and members of a group: the least sum of the members' weights."""

Cut = Mapping[Term, float]
"""A sum of terms times coefficients that are not negative."""

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


def highest_weights(cuts: Array) -> tuple[float, Array]:
    """Return the maximum of ``min(cuts w)`` over weights w >= 0 that sum to 1, and its place."""
    rows: list[Cut] = [{((0,), (i,)): float(c) for i, c in enumerate(cut)} for cut in cuts]
    height, weights = highest_grouped_weights(rows, 1, cuts.shape[1])
    return height, weights[0]


def highest_grouped_weights(cuts: Sequence[Cut], groups: int, size: int) -> tuple[float, Array]:
    """Return the maximum over weights of the least of several cuts, and the weights.

    Each cut is a sum of terms times coefficients that are not negative. A term is the least over
    some groups of the sum of some of their weights.

    Parameters
    ----------
    cuts : sequence of mapping of (groups, members) to float
        The coefficients of the terms.
    groups, size : int
        Number of groups of weights, and of weights in each; those of a group sum to 1.

    Returns
    -------
    float, array of shape (groups, size)
    """
    count = groups * size
    mixed = list(dict.fromkeys(term for cut in cuts for term in cut if len(term[0]) > 1))
    program = _HeightProgram(count + len(mixed), 0.0, float(size) if mixed else 1.0)
    values = program.variables
    for begin in range(0, count, size):
        program.solver.Add(sum(values[begin : begin + size]) == 1.0)
    columns = {term: [count + i] for i, term in enumerate(mixed)}
    for term, (at,) in columns.items():
        for own in _columns(term, size):
            program.solver.Add(values[at] <= sum(values[i] for i in own))
    scale = max(max(cut.values(), default=0.0) for cut in cuts) or 1.0
    for cut in cuts:
        slope = np.zeros(len(values))
        for term, coefficient in cut.items():
            slope[columns.get(term) or _columns(term, size)[0]] += coefficient / scale
        program.stay_below(0.0, slope)
    height, found = program.solve()
    weights = np.maximum(found[:count], 0.0).reshape(groups, size)
    if height == -np.inf:
        return height, weights
    return scale * height, weights / weights.sum(axis=1, keepdims=True)


def _columns(term: Term, size: int) -> list[list[int]]:
    """Return the positions of the weights that a term sums, in each of its groups."""
    among, members = term
    return [[group * size + i for i in members] for group in among]


@dataclass(frozen=True)
class Job:
    """Something that begins after some earlier jobs have ended.

    Parameters
    ----------
    after : tuple of int
        The places of these jobs.
    length : mapping of int to float
        How long it takes: a sum of variables times coefficients.
    """

    after: tuple[int, ...]
    length: Mapping[int, float]


def path_mixture(jobs: Sequence[Job], count: int, sums: Sequence[Mapping[int, float]]) -> Array:
    """Return how often a mixture of paths passes each job, for variables by which all end early.

    The last job ends earliest for some variables, and the mixture of critical paths is then about
    as long. It is one of paths whatever GLOP finds, so its length bounds the end for any variables.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs, each after those that it waits for; all others end before the last one.
    count : int
        Number of variables, which are not negative.
    sums : sequence of mapping of int to float
        Sums of variables times coefficients, each of at least the number under -1, or 0.
    """
    solver = pywraplp.Solver.CreateSolver("GLOP")
    most = solver.infinity()
    variables = [solver.NumVar(0.0, most, "") for _ in range(count)]
    for coefficients in sums:
        row = solver.Constraint(coefficients.get(-1, 0.0), most)
        for place, coefficient in coefficients.items():
            if place >= 0:
                row.SetCoefficient(variables[place], coefficient)
    ends = [solver.NumVar(0.0, most, "") for _ in jobs]
    waits = []
    for number, job in enumerate(jobs):
        waits.append([solver.Constraint(0.0, most) for _ in job.after or (0,)])
        for row in waits[-1]:
            row.SetCoefficient(ends[number], 1.0)
            for place, coefficient in job.length.items():
                row.SetCoefficient(variables[place], -coefficient)
        for row, before in zip(waits[-1], job.after, strict=False):
            row.SetCoefficient(ends[before], -1.0)
    solver.Minimize(ends[-1])
    solver.Solve()
    passed = np.zeros(len(jobs))
    passed[-1] = 1.0
    for number in range(len(jobs) - 1, -1, -1):
        shares = np.array([max(row.dual_value(), 0.0) for row in waits[number]])
        shares = (
            shares / shares.sum() if shares.sum() > 0 else np.full(len(shares), 1 / len(shares))
        )
        for before, share in zip(jobs[number].after, shares, strict=False):
            passed[before] += share * passed[number]
    return passed


@dataclass(frozen=True)
class Mixture:
    """A mixture of options of the least sum over intervals of the greatest load.

    Parameters
    ----------
    load : float
        That sum; infinite where no mixture is within the limits.
    taken : list of array of shape (options,)
        How often each option of each group is taken.
    bound : float
        A lower bound of the loads of all mixtures.
    dearer : list of array of shape (options,)
        By how much the bound is higher where a group has that option alone.
    """

    load: float
    taken: list[Array]
    bound: float
    dearer: list[Array]


def least_mixture(
    counts: Sequence[int], loads: Sequence[Array], held: Sequence[Array], limits: Array
) -> Mixture:
    """Return the mixture of options of the least sum over intervals of the greatest load.

    The bound is that of prices: for weights w of the resources that are not negative and sum to 1
    in each interval, and prices p >= 0 of the limits, no mixture has less than the sum over the
    groups of the least ``w . load + p . held`` of an option, times its count, less ``p . limits``.

    Parameters
    ----------
    counts : sequence of int
        How many options of each group are taken.
    loads : sequence of array of shape (options, intervals, resources)
        The load of each option of a group on each resource in each interval.
    held : sequence of array of shape (options, rows)
        What each option of a group takes of some limits.
    limits : array of shape (rows,)
        The limits, which may be infinite.

    Examples
    --------
    Four of two options, of a second and 8 bytes and of two seconds and 2 bytes, within 20 bytes.

    >>> found = least_mixture(
    ...     [4], [np.array([[[1.0]], [[2.0]]])], [np.array([[8.0], [2.0]])], np.array([20.0])
    ... )
    >>> round(found.load, 6), found.taken[0].round(6).tolist()
    (6.0, [2.0, 2.0])
    """
    solver = pywraplp.Solver.CreateSolver("GLOP")
    most = solver.infinity()
    top = max(float(load.max()) for load in loads) * sum(counts) or 1.0
    binds = limits < np.inf
    held, limits = [sizes[:, binds] for sizes in held], limits[binds]
    scale = np.where(limits > 0, limits, 1.0)
    _, intervals, width = loads[0].shape
    loads = [load.reshape(len(load), -1) for load in loads]
    heights = [solver.NumVar(0.0, most, "height") for _ in range(intervals)]
    resources = [solver.Constraint(0.0, most) for _ in range(intervals * width)]
    for number, resource in enumerate(resources):
        resource.SetCoefficient(heights[number // width], 1.0)
    rows = [solver.Constraint(-most, limit / s) for limit, s in zip(limits, scale, strict=True)]
    taken = []
    for count, load, bytes_held in zip(counts, loads, held, strict=True):
        every = solver.Constraint(float(count), float(count))
        taken.append([solver.NumVar(0.0, most, "") for _ in load])
        shares = np.where(load > OF_SUM * top, load / top, 0.0)  # GLOP fails by tiny ones
        for variable, seconds, sizes in zip(taken[-1], shares, bytes_held / scale, strict=True):
            every.SetCoefficient(variable, 1.0)
            for resource, each in zip(resources, seconds, strict=True):
                resource.SetCoefficient(variable, -float(each))
            for row, each in zip(rows, sizes, strict=True):
                row.SetCoefficient(variable, float(each))
    solver.Minimize(sum(heights))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        nothing = [np.zeros(len(load)) for load in loads]
        return Mixture(np.inf, nothing, 0.0, nothing)
    numbers = [np.array([one.solution_value() for one in group]) for group in taken]
    duals = np.array([max(row.dual_value(), 0.0) for row in resources]).reshape(intervals, width)
    each_sum = duals.sum(axis=1, keepdims=True)
    weights = (duals / np.where(each_sum > 0, each_sum, 1.0)).ravel()
    prices = np.array([max(-row.dual_value(), 0.0) for row in rows]) * top / scale
    sums = [load @ weights + sizes @ prices for load, sizes in zip(loads, held, strict=True)]
    pairs = [*zip(counts, sums, strict=True)]
    bound = sum(count * float(each.min()) for count, each in pairs) - float(prices @ limits)
    dearer = [count * (each - each.min()) for count, each in pairs]
    return Mixture(top * sum(h.solution_value() for h in heights), numbers, bound, dearer)
