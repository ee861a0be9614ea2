"""Messages of elimination: compiled loops and numpy give the same bits."""

import numpy as np
import pytest

from shardwright.solver import least_sums as module
from shardwright.solver.least_sums import RUN, least_sums
from shardwright.solver.problem import Array


def tables(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Array]:
    """Return tables of the first axis and some others, transposed ones and forbidden entries."""
    found = []
    for _ in range(rng.integers(1, 5)):
        axes = [length if rng.random() < 0.6 else 1 for length in shape[1:]]
        table = rng.normal(size=(*axes[::-1], shape[0])).T
        found.append(np.where(rng.random(table.shape) < 0.1, np.inf, table))
    return [*found, rng.normal(size=(shape[0], *shape[1:-1], 1)), np.zeros((1,) * len(shape))]


@pytest.mark.skipif(not module.COMPILED, reason="needs numba")
def test_the_bits_do_not_depend_on_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        lengths = rng.integers(1, [9, *[5] * rng.integers(0, 3)])
        where = rng.integers(0, len(lengths) + 1)
        shape = (int(rng.integers(1, 9)), *map(int, np.insert(lengths, where, RUN + 3)))
        parts = tables(rng, shape)
        monkeypatch.setattr(module, "LARGE", 0)
        compiled = least_sums(parts, shape)
        monkeypatch.setattr(module, "LARGE", np.inf)
        by_numpy = least_sums(parts, shape)
        assert compiled.shape == by_numpy.shape == shape[1:]
        assert compiled.tobytes() == by_numpy.tobytes()


def test_a_sum_in_parts_is_the_sum_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    shape = (7, 3, 4)
    parts = tables(rng, shape)
    whole = sum(sorted(parts, key=lambda part: part.size), start=np.zeros(shape)).min(axis=0)
    monkeypatch.setattr(module, "CHUNK", 20)
    np.testing.assert_array_equal(least_sums(parts, shape), whole)
