"""Losses of JAX functions: sums of exponentials are operators, which may run in chunks."""

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
import numpy as np  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402


def arguments() -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    shapes = {"table": (24, 16), "bias": (24,)}
    params = {name: jnp.asarray(random.normal(size=shape)) for name, shape in shapes.items()}
    ids, labels = (jnp.asarray(random.integers(0, 24, (4, 6)), "int32") for _ in range(2))
    return params, ids, labels


def with_bias(params: Any, ids: Any, labels: Any) -> Any:
    """Return the loss of optax, by the logits, and a z-loss."""
    z = jnp.tanh(params["table"][ids]) @ params["table"].T + params["bias"]
    picked = jnp.take_along_axis(z, labels[..., None], -1)[..., 0]
    log_sum = jax.nn.logsumexp(z, -1)
    return (log_sum - picked).mean() + 1e-2 * jnp.square(jax.nn.logsumexp(z, -1)).mean()


def test_a_sum_of_exponentials_is_one_operator() -> None:
    graph = import_function(with_bias, arguments()).graph
    operators = [node.operator for node in graph.nodes]
    assert operators.count("exp_sum_and_pick") == 1
    assert operators.count("exp_sum") == 1
    assert not {"exp", "is_finite", "reduce_max"} & set(operators)


def test_a_row_of_minus_infinity_has_the_sum_that_jax_gives() -> None:
    def log_sums(x: Any) -> Any:
        return jax.nn.logsumexp(x, -1)

    x = jnp.asarray([[-jnp.inf, -jnp.inf], [0.0, -jnp.inf], [jnp.inf, 0.0]])
    imported = import_function(log_sums, (x,))
    with np.errstate(divide="ignore"):
        (found,) = compare.run(
            imported.graph,
            imported.initial,
            compare.arrays_of(imported.graph, (x,)),
            imported.graph.outputs[:1],
        ).values()
    assert found.tolist() == log_sums(x).tolist() == [-np.inf, 0.0, np.inf]


def test_chunks_have_the_gradients_of_jax() -> None:
    options = {"plan": "tensor=2,data=2", "loss_chunks": 5}
    assert max(compare.on_ranks(with_bias, arguments(), 4, **options)) < 1e-12
