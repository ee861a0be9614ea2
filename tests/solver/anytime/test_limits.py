"""What holds of the contest's own instances, where they are at hand, and of the clock."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwright.solver import MemoryUse, Pair, Problem, Variable, evaluate, solve
from shardwright.solver.formats.contest import read_contest
from shardwright.solver.work import Budget, Clock, Work
from tests.extent import first

ROOT = Path(__file__).parents[3]
PLACES = [folder / "shared" / "iopddl" for folder in ROOT.parents]
BEST_KNOWN = {"B": 532843, "G": 217039, "P": 651833115436}


def instance(letter):
    for folder in PLACES:
        path = folder / f"asplos-2025-iopddl-{letter}.json.gz"
        if path.exists():
            return read_contest(path)
    pytest.skip(f"the contest instance {letter} is not at hand")


def grid(side, strategies, seed=0):
    """A grid of variables with memory that is tight; too large to be closed in a moment."""
    random = np.random.default_rng(seed)
    variables, pairs = [], []
    for index in range(side * side):
        usage = random.integers(0, 1000, strategies)
        use = MemoryUse(usage, index, index + 3 * side)
        variables.append(
            Variable(f"v{index}", 1000 - usage + random.integers(0, 200, strategies), (use,))
        )
        for back in (1, side):
            if index >= back and (back == side or index % side):
                table = random.integers(0, 500, (strategies, strategies))
                pairs.append(Pair(index - back, index, table))
    return Problem(tuple(variables), tuple(pairs), 3 * side * 300)


@pytest.mark.long
@pytest.mark.parametrize("letter", first(1, ["P", "B", "G"]))
def test_bounds_stay_below_the_best_known_cost(letter):
    problem = instance(letter)
    bounds = []
    solve(
        grid(4, 4), method="anytime", budget=Budget(1, Clock())
    )  # compiles, outside the limit below
    answer = solve(
        problem,
        method="anytime",
        budget=Budget(1, Clock()),
        workers=2,
        progress=lambda _, cost, bound: bounds.append(bound),
    )
    best = BEST_KNOWN[letter]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= best
    assert best <= answer.cost
    assert evaluate(problem, answer.assignment).cost == answer.cost


@pytest.mark.parametrize("work", [Work, Clock])
def test_the_budget_ends_the_search(work):
    problem = grid(20, 12)
    for limit in first(1, (0.1, 0.2)):
        answer = solve(problem, method="anytime", budget=Budget(limit, work()))
        assert answer.status == "feasible"
        assert answer.lower_bound < answer.cost
        assert evaluate(problem, answer.assignment).cost == answer.cost


def test_however_small_the_budget_there_is_an_answer():
    problem = grid(6, 4)
    answer = solve(problem, method="anytime", budget=Budget(0.001))
    assert answer.status in ("feasible", "optimal")
    assert answer.lower_bound <= answer.cost


def test_the_same_answer_twice():
    problem = grid(5, 5)
    one, other = (solve(problem, method="anytime", budget=Budget(60)) for _ in range(2))
    assert one.status == "optimal"
    assert one.assignment == other.assignment


@pytest.mark.long
def test_without_a_compiler_the_answer_is_the_same():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import test_limits\n"
        "from shardwright.solver import Budget, solve\n"
        "answer = solve(test_limits.grid(4, 4), method='anytime', budget=Budget(60))\n"
        "print(answer.status, int(answer.cost))\n"
    )
    here = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = os.environ | {"PYTHONPATH": here}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    expected = solve(grid(4, 4), method="anytime", budget=Budget(60))
    assert found.stdout.split() == [expected.status, str(int(expected.cost))]


def test_the_command_line_starts_without_the_compiler():
    code = "import sys, shardwright.tools.main, shardwright.solver; print('numba' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert found.stdout.strip() == "False"
