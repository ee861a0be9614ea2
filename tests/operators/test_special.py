"""Special functions, against their definitions."""

import math

import numpy as np
import pytest

from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, operator_info, whole_kernel


def run(name: str, *arrays: Array, **attributes: float) -> Array:
    kinds = [TensorType(x.dtype.name, x.shape) for x in arrays]
    return whole_kernel(operator_info(name, kinds, attributes), *arrays)[0]


X = np.concatenate([np.linspace(-6, 6, 101), [0.0, 9.0, 20.0, -20.0]])


def test_erfc_to_its_last_digits() -> None:
    expected = [math.erfc(x) for x in X]
    np.testing.assert_allclose(run("erfc", X), expected, rtol=1e-13)


@pytest.mark.parametrize("order", [0, 1])
def test_bessel_functions_are_their_power_series(order: int) -> None:
    """I_n(x) is the sum of (x/2)^(2k+n) / (k! (k+n)!), here in logarithms."""
    x = np.concatenate([X, [29.9, 30.1, 80.0]])
    size = np.maximum(np.abs(x), 1e-300)[:, None]
    k = np.arange(400)
    logs = (2 * k + order) * np.log(size / 2) - size
    logs = logs - np.array([math.lgamma(i + 1) + math.lgamma(i + order + 1) for i in k])
    expected = np.exp(logs).sum(axis=1) * (np.sign(x) if order else 1)
    np.testing.assert_allclose(run(f"bessel_i{order}e", x), expected, rtol=1e-11, atol=1e-15)


def test_the_first_bessel_function_has_all_digits_near_zero() -> None:
    near = np.geomspace(1e-12, 1e-3, 10)
    expected = near / 2 * (1 + near**2 / 8)
    np.testing.assert_allclose(run("bessel_i1", near), expected, rtol=1e-14)
    np.testing.assert_allclose(run("bessel_i1", -near), -expected, rtol=1e-14)


def test_bessel_functions_far_out_do_not_overflow() -> None:
    far = np.array([1e3, 1e6])
    np.testing.assert_allclose(run("bessel_i0e", far), 1 / np.sqrt(2 * np.pi * far), rtol=2e-4)


def test_a_quotient_by_zero_is_zero() -> None:
    a, b = np.array([1.0, 2.0, 0.0]), np.array([0.0, 4.0, 0.0])
    np.testing.assert_array_equal(run("div_no_nan", a, b), [0, 0.5, 0])


def test_the_slope_of_bessel_i1e_at_zero() -> None:
    one, zero = np.ones(1), np.zeros(1)
    np.testing.assert_array_equal(run("bessel_i1e_gradient", one, zero), [0.5])


@pytest.mark.parametrize("name", ["hard_sigmoid", "hard_swish"])
def test_hard_functions_meet_their_limits(name: str) -> None:
    found = run(name, np.array([-9.0, 9.0]))
    np.testing.assert_array_equal(found, [0, 1] if name == "hard_sigmoid" else [0, 9])


def test_erfinv_to_its_last_digits() -> None:
    y = np.concatenate([np.linspace(-4, 4, 81), [1e-12, 5.0]])
    x = np.array([math.erf(v) for v in y])
    np.testing.assert_allclose(run("erfinv", x[np.abs(y) < 3]), y[np.abs(y) < 3], rtol=1e-11)
    np.testing.assert_allclose(run("erf", run("erfinv", x)), x, rtol=1e-14)
    np.testing.assert_array_equal(run("erfinv", np.array([-1.0, 1.0])), [-np.inf, np.inf])
    assert np.isnan(run("erfinv", np.array([1.5]))).all()


def test_the_scaled_tail_of_the_normal_distribution() -> None:
    x = np.array([-30.0, -5, -0.4, 0, 0.3, 0.46875, 2, 9, 1e3, 1e9])
    # Abramowitz and Stegun, 7.1.2: the asymptotic series has all digits far away.
    expected = [math.exp(v * v) * math.erfc(v) if v < 9 else None for v in x[2:]]
    found = run("erfcx", x)
    np.testing.assert_allclose(found[2:7], expected[:5], rtol=1e-13)
    far = x[7:]
    series = 1 / (far * math.sqrt(math.pi)) * (1 - 0.5 / far**2 + 0.75 / far**4 - 1.875 / far**6)
    np.testing.assert_allclose(found[7:], series, rtol=3e-7)
    assert np.isposinf(found[0])
    tail = run("log_ndtr", np.array([-40.0, -1.0, 0, 1, 40, -np.inf]))
    half = [-804.608442013754, math.log(0.15865525393145707), -math.log(2)]
    np.testing.assert_allclose(tail[:3], half, rtol=1e-14)
    np.testing.assert_allclose(tail[3:5], [math.log(0.8413447460685429), 0], rtol=1e-14)
    assert np.isneginf(tail[5])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["erfc", "erfcx", "log_ndtr", "lgamma", "polygamma"])
def test_short_numbers_lose_no_digits(name: str, dtype: str) -> None:
    x = np.linspace(-4.9, 9.3, 60).astype(dtype)
    x = x if name != "erfcx" else x[x > -3]  # exp(11) is too large for float16
    found, expected = run(name, x), run(name, x.astype(np.float64))
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=2 * float(np.finfo(dtype).eps), atol=1e-4
    )


def test_quantiles_of_the_normal_distribution() -> None:
    p = np.array([1e-300, 1e-20, 1e-5, 0.02, 0.3, 0.5, 0.7, 0.999, 1 - 1e-12])
    y = run("ndtri", p)
    np.testing.assert_allclose(np.exp(run("log_ndtr", y)), p, rtol=2e-13)
    np.testing.assert_allclose(
        y[[3, 5, 7]], [-2.053748910631823, 0, 3.090232306167813], rtol=1e-13, atol=1e-15
    )
    np.testing.assert_array_equal(
        run("ndtri", np.array([0.0, 1.0, -0.1, 1.1])), [-np.inf, np.inf, np.nan, np.nan]
    )


def test_incomplete_gamma_integrals() -> None:
    """For whole numbers the share above is a sum of Poisson's probabilities."""
    x = np.array([0.01, 0.5, 1, 3, 7, 20, 90])
    for a in (1, 2, 5, 30):
        terms = [math.exp(-v) * sum(v**k / math.factorial(k) for k in range(a)) for v in x]
        above = run("incomplete_gamma", np.full_like(x, a), x, upper=True)
        np.testing.assert_allclose(above, terms, rtol=1e-12)
        below = run("incomplete_gamma", np.full_like(x, a), x)
        np.testing.assert_allclose(below + above, 1, rtol=1e-14)
    halves = run("incomplete_gamma", np.full_like(x, 0.5), x)
    np.testing.assert_allclose(halves, [math.erf(math.sqrt(v)) for v in x], rtol=1e-13)
    a = np.array([0.0, 0, 2, 2, 2, np.inf, -1, np.nan, np.inf, 1e5])
    x = np.array([1.0, 0, 0, np.inf, -1, 3, 1, 1, np.inf, 1e5])
    none = np.nan
    found = run("incomplete_gamma", a, x)
    np.testing.assert_allclose(found[:9], [1, none, 0, 1, none, 0, none, none, none])
    half = 0.5 + 1 / (3 * math.sqrt(2e5 * math.pi))  # Temme, 1979, up to a^-1.5
    np.testing.assert_allclose(found[9], half, rtol=1e-9)


def test_lgamma_and_its_slope() -> None:
    x = np.concatenate([np.linspace(0.01, 30, 97), [1.0, 2.0, 171.0, 1e5, 1e60, -0.5, -3.7]])
    expected = [math.lgamma(v) for v in x]
    np.testing.assert_allclose(run("lgamma", x), expected, rtol=1e-12, atol=1e-13)
    x, step = x[x < 1000], 1e-6
    around = [(math.lgamma(v + step) - math.lgamma(v - step)) / (2 * step) for v in x]
    slope = run("lgamma_gradient", np.ones_like(x), x)
    np.testing.assert_allclose(slope, around, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_derivatives_of_lgamma_are_sums_of_powers(order: int) -> None:
    """Order n is n! times the sum of (x + k)^-(n+1), with the integral for what is behind."""
    x, k, many = np.array([0.05, 0.7, 1, 3.3, 12.5, -0.4, -2.3]), np.arange(20000.0), 20000.5
    total = ((x[:, None] + k) ** -(order + 1)).sum(1) + (x + many - 1) ** -order / order
    sign = 1 if order % 2 else -1
    found = run("polygamma", x, order=order)
    np.testing.assert_allclose(found, sign * math.factorial(order) * total, rtol=1e-12)
    slope = run("polygamma_gradient", np.ones_like(x), x, order=order)
    np.testing.assert_allclose(slope, run("polygamma", x, order=order + 1), rtol=1e-15)


def test_the_digamma_function() -> None:
    found = run("polygamma", np.array([1, 2, 0.5, 100.0, 0.0, -0.0, -3.0]))
    euler = 0.57721566490153286
    expected = [-euler, 1 - euler, -euler - 2 * math.log(2), 4.600161852738087, -np.inf, np.inf]
    np.testing.assert_allclose(found, [*expected, np.nan], rtol=1e-14)


def test_bits_that_are_set() -> None:
    x = np.array([0, 1, 255, 256, -1, -2], "int32")
    np.testing.assert_array_equal(run("population_count", x), [0, 1, 8, 1, 32, 31])


def test_unscaled_bessel_functions() -> None:
    for order in (0, 1):
        scaled = run(f"bessel_i{order}e", X)
        np.testing.assert_allclose(run(f"bessel_i{order}", X), scaled * np.exp(np.abs(X)))
    np.testing.assert_array_equal(run("bessel_i1_gradient", np.ones(1), np.zeros(1)), [0.5])
