"""Mixtures of JAX, by products of groups, become the operators of rows of experts."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")
if not hasattr(jax.lax, "ragged_dot"):
    pytest.skip("a release without products of groups", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402
from compared import difference, run  # noqa: E402

from shardwright.dataflow.cotangents import gradient_name  # noqa: E402
from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.passes.canonicalize import Canonicalize  # noqa: E402
from shardwright.passes.differentiate import Differentiate  # noqa: E402

HIDDEN, INNER, EXPERTS, TOP = 8, 12, 4, 2


def _parameters() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {
        "router": (HIDDEN, EXPERTS),
        "gate_up": (EXPERTS, HIDDEN, 2 * INNER),
        "down": (EXPERTS, INNER, HIDDEN),
        "bias": (EXPERTS, 1, 1, 2 * INNER),
    }
    return {name: jnp.asarray(random.normal(size=shape) * 0.4) for name, shape in shapes.items()}


def _routed(parameters: Any, x: Any) -> tuple[Any, Any]:
    weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ parameters["router"]), TOP)
    return weights / weights.sum(-1, keepdims=True), chosen


def _made(parameters: Any, rows: Any, sizes: Any) -> Any:
    gate, up = jnp.split(jax.lax.ragged_dot(rows, parameters["gate_up"], sizes), 2, -1)
    return jax.lax.ragged_dot(jax.nn.silu(gate) * up, parameters["down"], sizes)


def added(parameters: Any, x: Any) -> Any:
    """Rows are added where their tokens are."""
    weights, chosen = _routed(parameters, x)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    made = _made(parameters, x[order // TOP], sizes) * weights.reshape(-1)[order][:, None]
    return jnp.zeros_like(x).at[order // TOP].add(made)


def inverted(parameters: Any, x: Any) -> Any:
    """Rows go back by the inverse of the order."""
    weights, chosen = _routed(parameters, x)
    order = jnp.argsort(chosen.ravel())
    sizes = jax.nn.one_hot(chosen.ravel(), EXPERTS, dtype=jnp.int32).sum(0)
    made = _made(parameters, jnp.repeat(x, TOP, 0)[order], sizes)
    back = made[jnp.argsort(order)].reshape(-1, TOP, HIDDEN)
    return jnp.einsum("tkd,tk->td", back, weights)


def masked(parameters: Any, x: Any) -> Any:
    """Tokens go to slots of groups by masks, with the scores of all experts as weights."""
    scores = jax.nn.softmax(x.reshape(2, -1, HIDDEN) @ parameters["router"])
    hot = jax.nn.one_hot(jax.lax.top_k(scores, TOP)[1], EXPERTS, dtype=jnp.int32)
    first = hot.swapaxes(1, 2).reshape(2, -1, EXPERTS)  # first choices before second ones
    place = (jnp.cumsum(first, 1) * first - 1).reshape(2, TOP, -1, EXPERTS).max(1)
    sent = jax.nn.one_hot(place, 2, dtype=x.dtype)
    back = jnp.einsum("gte,gtec->gtec", scores, sent)
    rows = jnp.einsum("gtec,gtd->egcd", sent, x.reshape(2, -1, HIDDEN))
    rows = jnp.einsum("egcd,edh->egch", rows, parameters["gate_up"]) + parameters["bias"]
    gate, up = jnp.split(rows, 2, -1)
    made = jnp.einsum("egch,ehd->egcd", jax.nn.silu(gate) * up, parameters["down"])
    return jnp.einsum("gtec,egcd->gtd", back, made).reshape(x.shape)


@pytest.mark.parametrize("mixture", [added, inverted, masked])
def test_products_of_groups_are_rows_of_experts(mixture: Callable[..., Any]) -> None:
    parameters, x = _parameters(), jnp.asarray(np.random.default_rng(1).normal(size=(12, HIDDEN)))

    def loss(parameters: Any, x: Any) -> Any:
        return (mixture(parameters, x) * jnp.linspace(-1, 1, x.size).reshape(x.shape)).sum()

    if mixture is not masked:
        parameters.pop("bias")
    imported = import_function(loss, (parameters, x))
    counts = Counter(node.operator for node in imported.graph.nodes)
    assert [counts[name] for name in ("dispatch", "grouped_matmul", "combine")] == [1, 2, 1]
    assert not {"sort", "gather", "cumsum"} & {*counts}
    assert counts["within_capacity"] == (mixture is masked)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    value, right = jax.value_and_grad(loss)(parameters, x)
    names = {name: gradient_name(name) for name in right}
    (fed,) = imported.graph.inputs
    found = run(
        graph, imported.initial, {fed.name: np.asarray(x)}, [graph.outputs[0], *names.values()]
    )
    assert difference(found[graph.outputs[0]], np.asarray(value)) < 1e-9
    for name, gradient in right.items():
        assert difference(found[names[name]], np.asarray(gradient)) < 1e-9
