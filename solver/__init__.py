"""The assignment problem and its solvers; knows nothing of graphs of operators.

`problem` states the problem, `evaluate` judges an answer.
"""

from shardwright.solver.evaluate import Evaluation, evaluate
from shardwright.solver.problem import FORBIDDEN, MemoryUse, Pair, Problem, Variable
from shardwright.solver.solution import Solution

__all__ = [
    "FORBIDDEN",
    "Evaluation",
    "MemoryUse",
    "Pair",
    "Problem",
    "Solution",
    "Variable",
    "evaluate",
]
