"""Between an assignment that fits and one that does not, path relinking finds a better one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwright.solver import MemoryUse, Pair, Problem, Variable
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.path_relinking import breadth_first, relink
from shardwright.solver.memory_rows import MemoryRows
from shardwright.solver.network import build_network

LayerMaker = Callable[[int, int], Problem]


def test_the_order_goes_along_a_chain():
    variables = tuple(Variable(name, np.zeros(2)) for name in "abc")
    left, right = Pair(0, 1, np.zeros((2, 2))), Pair(0, 2, np.ones((2, 2)))
    order = breadth_first(build_network(Problem(variables, (left, right))))
    assert order in ([1, 0, 2], [2, 0, 1])
    assert breadth_first(build_network(Problem(variables[:2]))) == [0, 1]  # apart from each other


def test_what_is_found_fits_and_is_no_dearer(repeated_layers: LayerMaker):
    problem = repeated_layers(12, 4)
    random = np.random.default_rng(0)
    sizes = problem.sizes
    better = 0
    for _ in range(40):
        one, other = (tuple(int(random.integers(size)) for size in sizes) for _ in range(2))
        fitting, cheap = sorted((one, other), key=lambda a: evaluate(problem, a).peak_usage)
        limit = evaluate(problem, fitting).peak_usage
        limited = replace(problem, memory_limit=limit)
        network = build_network(limited)
        found = relink(network, MemoryRows(network, limit), breadth_first(network), fitting, cheap)
        before, after = evaluate(limited, fitting), evaluate(limited, found)
        assert after.feasible
        assert after.cost <= before.cost
        assert all(c in (a, b) for c, a, b in zip(found, one, other, strict=True))
        better += after.cost < before.cost
    assert better > 10


def test_neighbours_that_must_change_together_do():
    """Pairs of equal variables: while one of a pair has changed, the assignment is forbidden."""
    count, limit = 8, 5.0
    use = MemoryUse(np.array([0.0, 1.0]), 0, 1)
    variables = tuple(Variable(str(i), np.array([1.0, 0.0]), (use,)) for i in range(count))
    equal = np.array([[0.0, np.inf], [np.inf, 0.0]])
    chained = [Pair(i, i + 1, np.zeros((2, 2)) if i % 2 else equal) for i in range(count - 1)]
    problem = Problem(variables, tuple(chained), limit)
    network = build_network(problem)
    rows = MemoryRows(network, limit)
    found = relink(network, rows, breadth_first(network), [0] * count, [1] * count)
    assert evaluate(problem, found).feasible
    assert sum(found) == 4
