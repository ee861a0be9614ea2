"""Complex numbers and Fourier transforms in JAX: results and gradients are JAX's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
from jax import lax  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

Function = Callable[..., Any]


def _loss(function: Function) -> Function:
    def loss(params: Any, x: Any) -> Any:
        results = jax.tree.leaves(function(params["w"] * x, params))
        parts = [p for r in results for p in ((r.real, r.imag) if r.dtype.kind == "c" else (r,))]
        steps = [jnp.arange(p.size).reshape(p.shape) for p in parts]
        return sum((p * (0.5 + 0.7 * s % 1)).sum() for p, s in zip(parts, steps, strict=True))

    return loss


def _arguments() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    params = {"w": (4, 6, 7), "real": (6, 4), "imaginary": (6, 4)}
    made = {name: jnp.asarray(random.standard_normal(shape)) for name, shape in params.items()}
    return made, jnp.asarray(1 + 0.1 * random.random((4, 6, 7)))


def _transforms(a: Any, _: Any) -> Any:
    fft = jnp.fft
    yield from (fft.fft(a), fft.ifft(a, n=9, axis=1), fft.rfft(a, norm="ortho"), fft.fft2(a))
    yield from (fft.irfft(fft.rfft(a) * (1 + 2j), 8), fft.irfft2(fft.rfft2(a), (5, 6)))
    yield from (fft.fftshift(fft.fftn(a, axes=(0, 2))), fft.hfft(a + 1j), fft.rfft(a[0, 0], 12))


def _spectral(a: Any, params: Any) -> Any:
    """A Fourier neural operator: low frequencies times trained weights."""
    weight = lax.complex(params["real"], params["imaginary"])
    low = jnp.einsum("bif,if->bf", jnp.fft.rfft(a), weight)
    whole = jnp.zeros((4, 6), complex).at[:, :4].set(low)
    return jnp.fft.irfft(whole, 10)


def _functions(a: Any, _: Any) -> Any:
    z = a[0] + 1j * jnp.sin(a[1])
    yield from (jnp.exp(z), jnp.log(z), jnp.sqrt(z), z**3, z**-2, z ** (0.3 + 1j), jnp.sin(z))
    yield from (
        jnp.cos(z),
        jnp.tanh(z),
        jnp.sinh(z),
        jnp.cosh(z),
        z / (z + 3),
        1 / z,
        jnp.square(z),
    )
    yield from (jnp.abs(z), jnp.angle(z), z.conj() * z, jnp.where(a[0] > 0, z, 2j), z == z)
    yield from (z.T @ z, z @ a[2].T, jnp.stack([z, -z]), z.cumsum(0), z.mean(1), jnp.isfinite(z))
    yield from (z[:, ::2], jnp.pad(z, 1), z[jnp.array([0, 0, 3])], z.reshape(7, 6), jnp.tril(z))


def _recurrence(a: Any, params: Any) -> Any:
    """Linear recurrences of complex numbers, in a scan and by a tree, and branches on data."""
    rate = jnp.exp(lax.complex(-jnp.abs(params["real"][:, 0]), params["imaginary"][:, 0]))
    steps = jnp.moveaxis(a, 2, 0) + 0j

    def step(state: Any, x: Any) -> Any:
        state = rate * state + x
        return state, state.real

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    rates = jnp.broadcast_to(rate, steps.shape)
    last, states = lax.scan(step, steps[0], steps)
    either = lax.cond(a.sum() > 0, lambda z: z * 1j, lambda z: z + 1, last)
    return states, lax.associative_scan(joined, (rates, steps))[1], either


CASES: dict[str, Function] = {
    "transforms": lambda a, p: list(_transforms(a, p)),
    "spectral": _spectral,
    "functions": lambda a, p: [r * 1.0 for r in _functions(a, p)],
    "recurrence": _recurrence,
}


# JAX 0.7 warns of its own gradient of a real factor of a complex product.
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_jax(name: str) -> None:
    found = compare.gradients_differ(_loss(CASES[name]), _arguments())
    assert max(found.loss, found.gradient) < 1e-11
    assert not found.missing


@pytest.mark.parametrize("name", ["spectral", "recurrence"])
def test_a_plan_splits_complex_numbers(name: str) -> None:
    assert max(compare.on_ranks(_loss(CASES[name]), _arguments(), 4)) < 1e-11


def test_the_absolute_value_has_no_slope_at_zero() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.abs(params["w"] * x + 0j).sum()

    arguments = ({"w": jnp.array([0.0, -2, 3])}, jnp.ones(3))
    found = compare.gradients_differ(loss, arguments)
    assert max(found.loss, found.gradient) == 0


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_numbers_whose_squares_are_too_large_or_small(size: float) -> None:
    def loss(params: Any, x: Any) -> Any:
        z = size * lax.complex(params["w"], x)
        return (jnp.abs(z) / size + jnp.log(z).real + jnp.abs(jnp.sqrt(z)) / size**0.5).sum()

    found = compare.gradients_differ(loss, ({"w": jnp.array([0.5, -2])}, jnp.ones(2)))
    assert max(found.loss, found.gradient) < 1e-11


def test_powers_of_zero() -> None:
    def loss(params: Any, x: Any) -> Any:
        z = params["w"] * x + 0j
        return sum((z**y).real.sum() for y in (2.0, 0.0, 1.5 + 0j))

    found = compare.gradients_differ(loss, ({"w": jnp.array([0.0, -2, 3])}, jnp.ones(3)))
    assert found.loss < 1e-14


@pytest.mark.parametrize(
    ("function", "params", "what"),
    [
        (jnp.abs, jnp.ones(3, jnp.complex64), "the element type complex"),
        (jnp.fft.fft, jnp.ones(3), "result 0 is complex, expected real numbers"),
        (lambda z: (z + 1j).prod().real, jnp.ones(3), "the primitive `reduce_prod` of complex"),
    ],
)
def test_what_is_refused_of_complex_numbers(function: Function, params: Any, what: str) -> None:
    with pytest.raises(ModelError, match=f"^{what}"):
        import_function(lambda p, x: function(p * x), (params, jnp.ones(3)))
