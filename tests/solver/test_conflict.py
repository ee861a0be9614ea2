import numpy as np

from shardwright.solver import MemoryUse, Problem, Variable, brute_force
from shardwright.solver.exact.conflict import memory_conflict


def variable(name, usage, start, end, cost=None):
    cost = np.zeros(len(usage), np.int64) if cost is None else np.array(cost)
    return Variable(name, cost, (MemoryUse(np.array(usage), start, end),))


def test_the_fewest_variables_at_the_first_time_are_named():
    variables = (
        variable("a", [3, 4], 0, 4),
        variable("b", [1, 9], 1, 4),
        variable("c", [5, 6], 2, 4),
        variable("d", [9, 9], 7, 8),
    )
    found = memory_conflict(Problem(variables, (), 7))
    assert (found.time, found.variables, found.least, found.limit) == (2, (0, 2), 8, 7)


def test_forbidden_strategies_do_not_help():
    variables = (variable("a", [1, 6], 0, 2, [10**18, 0]),)
    assert memory_conflict(Problem(variables, (), 5)).variables == (0,)


def test_what_may_fit_is_no_conflict():
    assert memory_conflict(Problem((variable("a", [1, 6], 0, 2),), (), 5)) is None
    assert memory_conflict(Problem((variable("a", [1, 6], 0, 2),))) is None


def test_a_conflict_is_a_proof(random_whole_problem):
    conflicts = 0
    for seed in range(3000, 3200):
        problem = random_whole_problem(seed)
        found = memory_conflict(problem)
        if found is not None:
            conflicts += 1
            assert brute_force(problem).assignment is None
            uses = [
                sum(
                    use.usage[problem.variables[index].cost < 1e17].min(initial=99) for use in alive
                )
                for index in found.variables
                if (
                    alive := [
                        use
                        for use in problem.variables[index].memory
                        if use.start <= found.time < use.end
                    ]
                )
            ]
            assert len(uses) == len(found.variables)
            assert sum(uses) > found.limit >= sum(uses) - min(uses)
    assert conflicts > 3
