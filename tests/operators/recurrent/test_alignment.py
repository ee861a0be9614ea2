"""The CTC loss against the sum over all alignments."""

from itertools import groupby, product

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel

CLASSES, STEPS = 3, 5


def run(name: str, *operands: Array, **attributes: int | bool) -> Array:
    types = [TensorType(x.dtype.name, x.shape) for x in operands]
    return whole_kernel(operator_info(name, types, attributes), *operands)[0]


def read(path: tuple[int, ...], blank: int) -> list[int]:
    """Return the labels of a path: runs are one, blanks none."""
    return [label for label, _ in groupby(path) if label != blank]


def enumerated(logs: Array, labels: list[int], blank: int) -> tuple[float, Array]:
    """Return the loss and its gradient by all paths."""
    total, shares = 0.0, np.zeros_like(logs)
    for path in product(range(CLASSES), repeat=len(logs)):
        if read(path, blank) == labels:
            places = np.arange(len(logs)), np.array(path, int)
            likely = np.exp(logs[places].sum())
            total += likely
            shares[places] += likely
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(-np.log(total)), -shares / total


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_losses_and_gradients_are_those_of_all_paths(blank: int, zero_infinity: bool) -> None:
    rng = np.random.default_rng(0)
    known = [label for label in range(CLASSES) if label != blank]
    a, b = known
    wanted = [[a, b, a], [a, a], [b], [], [a, a, a], [], [b, b]]  # the last two have few steps
    steps = np.array([STEPS, STEPS, 3, 4, STEPS, 0, 2])
    counts = np.array([len(one) for one in wanted])
    labels = np.full((len(wanted), 3), -7)
    for row, one in zip(labels, wanted, strict=True):
        row[: len(one)] = one
    logs = rng.normal(size=(STEPS, len(wanted), CLASSES))
    operands, how = (logs, labels, steps, counts), {"blank": blank, "zero_infinity": zero_infinity}
    losses = run("ctc_loss", *operands, **how)
    slope = rng.normal(size=len(wanted))
    gradient = run("ctc_loss_gradient", slope, *operands, **how)
    for n, one in enumerate(wanted):
        loss, right = enumerated(logs[: steps[n], n], one, blank)
        if np.isinf(loss) and zero_infinity:
            loss, right = 0.0, np.zeros_like(right)
        np.testing.assert_allclose(losses[n], loss, rtol=1e-13, atol=1e-13)
        found = gradient[: steps[n], n]
        np.testing.assert_allclose(found, slope[n] * right, rtol=1e-12, atol=1e-14)
        assert not gradient[steps[n] :, n].any()


def test_prefixes_are_sums_over_the_paths_that_reach_a_state() -> None:
    rng = np.random.default_rng(1)
    logs = rng.normal(size=(4, 2, CLASSES))
    labels, steps, counts = np.array([[1, 2], [1, -7]]), np.array([4, 3]), np.array([2, 1])
    found = run("ctc_prefixes", logs, labels, steps, counts, blank=0)
    assert found.shape == (2, 4, 5)
    for n, states in enumerate(((0, 1, 0, 2, 0), (0, 1, 0))):
        for step in range(4):
            expected = np.full(5, -np.inf)
            if step < steps[n]:
                for path in product(range(len(states)), repeat=step + 1):
                    moves = zip((-1, *path), path, strict=False)
                    if all(0 <= b - a <= 1 or (a, b) in ((-1, 1), (1, 3)) for a, b in moves):
                        classes = [states[state] for state in path]
                        likely = logs[np.arange(step + 1), n, classes].sum()
                        expected[path[-1]] = np.logaddexp(expected[path[-1]], likely)
            if step < steps[n]:
                np.testing.assert_allclose(found[n, step], expected, rtol=1e-12)
            else:
                assert np.isinf(found[n, step]).all()
