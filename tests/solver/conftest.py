"""Random assignment problems that brute force can still solve."""

from collections.abc import Callable

import numpy as np
import pytest

from shardwright.solver import MemoryUse, Pair, Problem, Variable
from shardwright.solver.problem import Array

RandomProblem = Callable[[int], Problem]


class _Draw:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.whole = self.random.random() < 0.4
        self.forbidding = 0.15 * (self.random.random() < 0.4)

    def numbers(self, *shape: int) -> Array:
        forbidden = self.random.random(shape) < self.forbidding
        numbers = self.random.integers(0, 20, shape)
        if self.whole:
            return np.where(forbidden, 10**18, numbers)
        fraction = self.random.random(shape) if self.random.random() < 0.5 else 0.0
        return np.where(forbidden, np.inf, numbers + fraction)

    def use(self, strategies: int) -> MemoryUse:
        start = int(self.random.integers(0, 8))
        usage = self.random.integers(0, 10, strategies)
        if self.random.random() < 0.3:
            usage = self.random.random(strategies) * 10
        return MemoryUse(usage, start, start + int(self.random.integers(0, 5)))

    def variable(self, index: int) -> Variable:
        strategies = int(self.random.integers(1, 5))
        memory = tuple(self.use(strategies) for _ in range(self.random.integers(0, 3)))
        return Variable(f"v{index}", self.numbers(strategies), memory)


def _random_problem(seed: int) -> Problem:
    draw = _Draw(seed)
    count = int(draw.random.integers(1, 7))
    variables = tuple(draw.variable(index) for index in range(count))
    pairs = []
    for _ in range(draw.random.integers(0, 2 * count + 1)):
        first, second = map(int, draw.random.integers(0, count, 2))
        shape = variables[first].cost.size, variables[second].cost.size
        pairs.append(Pair(first, second, draw.numbers(*shape)))
    limit = None if draw.random.random() < 0.2 else float(draw.random.integers(5, 35))
    return Problem(variables, tuple(pairs), limit)


@pytest.fixture
def random_problem() -> RandomProblem:
    """Parallel pairs, self pairs, forbidden entries, empty intervals, lone strategies, limits."""
    return _random_problem


def _repeated_layers(layers: int, strategies: int) -> Problem:
    """A residual chain whose layers share their arrays; activations live past the last layer."""
    random = np.random.default_rng(7)
    names = ("norm", "up", "down", "add")
    cost = {name: random.random(strategies) for name in names}
    usage = {name: 2.0 ** random.integers(3, 10, strategies) for name in names}
    table = {name: random.random((strategies, strategies)) for name in (*names, "residual")}
    variables = [Variable("x", cost["add"])]
    pairs = []
    for layer in range(layers):
        residual = len(variables) - 1
        for step, name in enumerate(names):
            start = 4 * layer + step
            use = MemoryUse(usage[name], start, 8 * layers - start)
            pairs.append(Pair(len(variables) - 1, len(variables), table[name]))
            variables.append(Variable(f"{name}{layer}", cost[name], (use,)))
        pairs.append(Pair(residual, len(variables) - 1, table["residual"]))
    return Problem(tuple(variables), tuple(pairs), None)


@pytest.fixture
def repeated_layers() -> Callable[[int, int], Problem]:
    return _repeated_layers


def _random_whole_problem(seed: int) -> Problem:
    """Integers as in the contest: aliases, parallel pairs, empty intervals, lone strategies."""
    random = np.random.default_rng([seed, 1])
    count = int(random.integers(1, 8))
    sizes = random.integers(1, 5, count)
    variables = []
    for index, size in enumerate(sizes):
        start = int(random.integers(0, 8))
        use = MemoryUse(random.integers(0, 10, size), start, start + int(random.integers(0, 5)))
        cost = random.integers(-5, 20, size)
        cost[random.random(size) < 0.1] = 10**18
        variables.append(Variable(f"v{index}", cost, (use,) * int(random.integers(0, 3))))
    pairs = []
    for _ in range(int(random.integers(0, 2 * count + 1))):
        first, second = (int(end) for end in random.integers(0, count, 2))
        shape = sizes[first], sizes[second]
        table = random.integers(0, 20, shape)
        kind = random.random()
        if kind < 0.35:  # the second is a function of the first
            follows = random.integers(0, shape[1], shape[0])
            table[np.arange(shape[1])[None, :] != follows[:, None]] = 10**18
        elif kind < 0.5:
            table[random.random(shape) < 0.2] = 10**18
        elif kind < 0.6:
            table = random.integers(0, 9, shape[0])[:, None] + random.integers(0, 9, shape[1])
        pairs.append(Pair(first, second, table))
    limit = None if random.random() < 0.1 else int(random.integers(5, 35))
    return Problem(tuple(variables), tuple(pairs), limit)


@pytest.fixture(scope="session")
def random_whole_problem() -> RandomProblem:
    return _random_whole_problem
