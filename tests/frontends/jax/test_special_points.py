"""JAX at ties, zeros, bounds, infinities and NaN: results and gradients are those of JAX."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
from jax import lax, nn  # noqa: E402
from jax.scipy import special  # noqa: E402

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402

Function = Callable[..., Any]
Array = np.ndarray


def weighted(function: Function) -> Function:
    """Return the sum of all results of a function, each element with its weight, and them."""

    def total(params: Any) -> Any:
        results = jax.tree.leaves(function(*params.values()))
        floats = [r for r in results if r.dtype.kind == "f"]
        weights = [np.arange(r.size, dtype=float).reshape(r.shape) for r in floats]
        parts = [(r * (0.7 * w % 1 + 0.5)).sum() for r, w in zip(floats, weights, strict=True)]
        return sum(parts), results

    return total


def agree(function: Function, *arrays: Any) -> None:
    """Check all results of a function, and the gradients by its arrays."""
    total = weighted(function)
    params = {f"p{i}": jnp.asarray(array, float) for i, array in enumerate(arrays)}
    expected = jax.grad(total, has_aux=True)(params)
    imported = import_function(total, (params,), outputs=True)
    names = list(imported.graph.outputs)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    gradients = {name: gradient_name(name) for name in params}
    known = [name for name in gradients.values() if name in graph.values]
    with np.errstate(all="ignore"):
        found = compare.run(imported.graph, imported.initial, {}, names)
        found |= compare.run(graph, imported.initial, {}, known)
    for name, result in zip(names[1:], expected[1], strict=True):
        close(found[name], result, name)
    for name, gradient in expected[0].items():
        close(found.get(gradients[name], np.zeros(gradient.shape)), gradient, name)


def close(found: Array, expected: Any, name: str) -> None:
    assert found.dtype == expected.dtype, name
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-9, atol=1e-12, err_msg=name)


TIES = np.array([[1.0, 2, 2, 0, 2, 2], [3, 3, 3, 3, 3, 3], [-1, 0, 0, -1, -2, 0]])
GAPS = np.array([[1.0, nan, 2, nan, 3, 1], [3, 3, 3, 3, 3, 3], [-1, 0, 0, inf, -inf, 0]])
ALL = np.array([-inf, -1e5, -1000, -50, -6, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 50, 1000, 1e5, inf])
EXTREMA: dict[str, Function] = {
    "running": lambda x: (lax.cummax(x, 1), lax.cummin(x, 0)),
    "running back": lambda x: (lax.cummax(x, 0, reverse=True), lax.cummin(x, 1, reverse=True)),
    "of integers": lambda x: (lax.cummax(jnp.argsort(x), 1), x),
    "along": lambda x: (x.max(1), x.min(0), x.max(), jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "ordered": lambda x: (jnp.sort(x), *lax.top_k(x, 2), jnp.argsort(x)),
    "pairs": lambda x: (jnp.maximum(x, x[:, ::-1]), jnp.minimum(x, x[:1]), jnp.maximum(x, x)),
    "bounds": lambda x: (jnp.clip(x, 0, None), jnp.clip(x, -1, 2), jnp.clip(x, x[::-1])),
    "medians": lambda x: (jnp.median(x, 1), jnp.quantile(x, 0.4, axis=0)),
    "scattered": lambda x: x.at[np.array([0, 0, 1])].max(x[::-1]),
}


@pytest.mark.parametrize("x", [TIES, GAPS], ids=["ties", "gaps"])
@pytest.mark.parametrize("name", EXTREMA)
def test_extrema(name: str, x: Array) -> None:
    agree(EXTREMA[name], x)


POINTS: dict[str, tuple[Any, ...]] = {
    "nearly the least": (lambda x: lax.approx_min_k(x, 2), TIES),
    "nearly the greatest": (lambda x: lax.approx_max_k(x, 2), TIES),
    "running logarithms": (lambda x: lax.cumlogsumexp(x, 1), TIES),
    "cube roots": (jnp.cbrt, [-8.0, 0, 1, 27]),
    "activations": (lambda x: (nn.relu(x), nn.softplus(x), nn.log_sigmoid(x), nn.mish(x)), ALL[1:]),
    "sums of exponentials": (
        jnp.logaddexp,
        [-inf, -inf, 0.0, 3, inf],
        [-inf, 1.0, -inf, 3, 2],
    ),
    "logarithms at zero": (special.xlogy, [0.0, 0, 2, 0], [0.0, 3, 4, inf]),
    "logarithms at minus one": (special.xlog1py, [0.0, 0, 2], [-1.0, 3, 4]),
    "entropy": (special.entr, [0.0, 0.5, 1, 2]),
    "logits": (special.logit, [0.0, 0.25, 0.5, 1]),
    "digamma": (lax.digamma, [-1.5, 0.3, 1, 7.5]),
    "lgamma": (lax.lgamma, [-inf, -2, -1.5, -1, 0.5, 1, 2, inf]),
    "products of zeros": (lambda x: (x.prod(1), x.prod(), jnp.cumprod(x, 1)), TIES),
}


@pytest.mark.parametrize("name", POINTS)
def test_points(name: str) -> None:
    function, *arrays = POINTS[name]
    agree(function, *arrays)


def test_shared_gradients_of_a_plan_of_four_ranks() -> None:
    random = np.random.default_rng(0)
    weight, x = (random.integers(0, 3, (8, 4)).astype(float) for _ in range(2))

    def loss(weight: Any, x: Any) -> Any:
        y = x * weight
        found = lax.cummax(y, 1) + special.xlogy(weight, y + weight)
        return (found**2).sum() + lax.cummin(weight, 0).sum()

    arguments = (jnp.asarray(weight), jnp.asarray(x))
    assert max(compare.on_ranks(loss, arguments, 4)) < 1e-9
    assert max(compare.on_ranks(loss, arguments, 4, mesh="4")) < 1e-9
