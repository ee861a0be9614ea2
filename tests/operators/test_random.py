from hashlib import blake2b

import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.operators.models.random import (
    global_index,
    initial_value,
    normal,
    truncated_normal,
    uniform,
)

INITIALIZERS = (
    "zeros",
    "ones",
    "constant(0.5)",
    "uniform(0.1)",
    "normal(0.02)",
    "truncated_normal(0.02)",
    "xavier_uniform",
    "xavier_normal",
    "he_uniform",
    "he_normal(0.5)",
    "he_uniform_out(2)",
    "he_normal_out",
)
MANY = np.arange(200_000, dtype=np.uint64)


def whole(shape):
    return tuple(slice(0, size) for size in shape)


def test_global_index_counts_the_elements_of_the_whole():
    expected = np.arange(24, dtype=np.uint64).reshape(2, 3, 4)
    region = (slice(1, 2), slice(0, 3), slice(2, 4))
    assert np.array_equal(global_index((2, 3, 4), whole((2, 3, 4))), expected)
    assert np.array_equal(global_index((2, 3, 4), region), expected[region])
    assert global_index((), ()).shape == ()


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_a_region_does_not_depend_on_the_split(initializer):
    shape = (6, 4, 2)
    value = initial_value(initializer, "weight", 7, shape, whole(shape), "float32")
    for region in (
        (slice(2, 4), slice(0, 4), slice(1, 2)),
        (slice(0, 3), slice(2, 4), slice(0, 2)),
    ):
        part = initial_value(initializer, "weight", 7, shape, region, "float32")
        assert part.dtype == np.float32
        assert np.array_equal(part, value[region])


def splitmix64(state, count):
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        yield z ^ z >> 31


def test_the_numbers_are_those_of_splitmix64():
    start = int.from_bytes(blake2b(b"1:weight", digest_size=8).digest(), "little")
    expected = [(z >> 11) / 2**53 for z in splitmix64(start, 5)]
    assert uniform(1, "weight", np.arange(5, dtype=np.uint64)).tolist() == expected


def test_uniform_is_flat_and_uncorrelated():
    drawn = uniform(0, "x", MANY)
    counts, _ = np.histogram(drawn, bins=50, range=(0, 1))
    expected = MANY.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 100  # chi-squared of 49 degrees: 1 in 1e5
    for other in (uniform(0, "y", MANY), uniform(1, "x", MANY), np.roll(drawn, 1)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.01


def test_normal_has_the_moments_of_the_normal():
    drawn = normal(3, "x", MANY)
    assert np.isfinite(drawn).all()
    moments = [(drawn**power).mean() for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)


def test_truncated_normal_stays_within_two():
    drawn = truncated_normal(3, "x", MANY)
    assert np.abs(drawn).max() <= 2
    assert drawn.std() == pytest.approx(0.8796, abs=0.01)


def test_gains_follow_the_fans():
    shape = (100, 300)
    region = whole(shape)
    xavier = initial_value("xavier_uniform", "w", 0, shape, region, "float64")
    assert np.abs(xavier).max() == pytest.approx((6 / 400) ** 0.5, rel=1e-3)
    he = initial_value("he_normal", "w", 0, shape, region, "float64")
    assert he.std() == pytest.approx((2 / 300) ** 0.5, rel=0.02)
    convolution = initial_value("he_normal", "w", 0, (64, 16, 5, 5), whole((64, 16, 5, 5)), "f8")
    assert convolution.std() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    outputs = initial_value("he_normal_out", "w", 0, (64, 16, 5, 5), whole((64, 16, 5, 5)), "f8")
    assert outputs.std() == pytest.approx((2 / 1600) ** 0.5, rel=0.02)
    outputs = initial_value("he_uniform_out(2)", "w", 0, shape, region, "float64")
    assert np.abs(outputs).max() == pytest.approx(2 * (6 / 100) ** 0.5, rel=1e-3)


def test_names_and_seeds_give_other_values():
    values = [
        initial_value("normal(1)", name, seed, (8,), (slice(0, 8),), "float64")
        for name, seed in (("a", 0), ("b", 0), ("a", 1))
    ]
    assert len({value.tobytes() for value in values}) == 3


def test_an_unknown_initializer_is_refused_with_the_list():
    with pytest.raises(IRError) as caught:
        initial_value("norml", "w", 0, (2,), (slice(0, 2),), "float32")
    assert str(caught.value) == (
        "no initializer is called `norml`; use one of zeros, ones, constant, uniform, whole, "
        "normal, truncated_normal, xavier_uniform, xavier_normal, he_uniform, he_normal, "
        "he_uniform_out, he_normal_out, with a number where it takes one: `normal(0.02)`"
    )
    with pytest.raises(IRError) as caught:
        initial_value("normal(big)", "w", 0, (2,), (slice(0, 2),), "float32")
    assert (
        str(caught.value) == "the argument of `normal(big)` is not a number; write `normal(0.02)`"
    )
