"""The assignment problem and its solvers; knows nothing of graphs of operators.

`problem` states the problem, `evaluate` judges an answer, `solve` finds one with a bound.
"""

from shardwright.solver.brute_force import brute_force
from shardwright.solver.dynamic_programming import dynamic_programming
from shardwright.solver.evaluate import Evaluation, evaluate
from shardwright.solver.least_memory import minimize_memory
from shardwright.solver.problem import FORBIDDEN, MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution
from shardwright.solver.solve import solve

__all__ = [
    "FORBIDDEN",
    "Evaluation",
    "MemoryUse",
    "Pair",
    "Problem",
    "Solution",
    "Variable",
    "brute_force",
    "dynamic_programming",
    "evaluate",
    "minimize_memory",
    "solve",
]
