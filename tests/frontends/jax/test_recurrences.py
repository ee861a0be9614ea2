"""Scans of JAX that are linear recurrences: one operator, with JAX's gradients."""

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
import numpy as np  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402


def arguments(steps: int = 6) -> tuple[Any, Any]:
    """Return parameters and an input ``[sample, step, feature]``."""
    random = np.random.default_rng(0)
    shapes = {"a": (6, 6), "b": (6, 6), "start": (6,)}
    params = {name: jnp.asarray(random.normal(size=shape)) for name, shape in shapes.items()}
    return params, jnp.asarray(random.normal(size=(4, steps, 6)))


def scanned(params: Any, x: Any, reverse: bool) -> Any:
    """Return a loss of the states of a scan over the steps, forward or backward."""
    a, b = (jnp.swapaxes(x @ params[name], 0, 1) for name in "ab")

    def step(state: Any, now: Any) -> Any:
        factor, term = now
        state = jax.nn.sigmoid(factor) * state + term
        return state, jnp.cos(state)

    start = jnp.broadcast_to(params["start"], (len(x), 6))
    last, states = jax.lax.scan(step, start, (a, b), reverse=reverse)
    return (states * states).mean() + (last * last).mean()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_one_operator_with_the_gradients_of_jax(reverse: bool) -> None:
    def forward(params: Any, x: Any) -> Any:
        return scanned(params, x, reverse)

    found = compare.gradients_differ(forward, arguments())
    assert max(found.loss, found.gradient) < 1e-9
    assert max(compare.on_ranks(forward, arguments(), 4)) < 1e-9
    graphs = [import_function(forward, arguments(steps)).graph for steps in (4, 17)]
    assert len(graphs[0]) == len(graphs[1])
    operators = [node.operator for node in graphs[0].nodes]
    assert operators.count("linear_recurrence") == 1
    assert "stack" not in operators
