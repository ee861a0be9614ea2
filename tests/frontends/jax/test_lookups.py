"""Lookups and writes at positions that are data, many out of range: what JAX gives at each mode."""

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
import numpy as np  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402

X = np.random.default_rng(0).normal(size=(8, 6))
OUTSIDE = np.array([0, 9, -1, -12, 7, 20, -8, 8])
FUNCTIONS: dict[str, Any] = {
    "by default": lambda x, i: (x[i], x[:, i], x[i, i], x[i[1]], x[i[3], 1:3], x[i[:, None], i]),
    "the nearest": lambda x, i: (x.at[i].get(mode="clip"), jnp.take(x, i, 1, mode="clip")),
    "around": lambda x, i: jnp.take(x, i, 0, mode="wrap"),
    "a value": lambda x, i: (
        x.at[i].get(mode="fill", fill_value=0.5),
        x.at[:, i].get(mode="fill", fill_value=2.0),
        x.at[i, i].get(mode="fill", fill_value=-1.0),
        x.at[i].get(mode="fill", fill_value=0.0),
        jnp.take_along_axis(x, i[:, None], 1, mode="fill", fill_value=3.0),
    ),
    "no number": lambda x, i: tuple(
        jnp.where(jnp.isnan(found), 0.25, found)
        for found in (
            jnp.take(x, i, 0),
            jnp.take(x, i, 1),
            jnp.take(x, i[3], 0),
            jnp.take_along_axis(x, i[:, None], 1),
            jnp.take_along_axis(x, jnp.stack([i, -i, i], 1), 1),
        )
    ),
    "of integers": lambda x, i: x * jnp.take(jnp.argsort(x[:, 0]), i).clip(-1, 1)[:, None],
    "unsigned": lambda x, i: (
        x[jnp.abs(i).astype(jnp.uint8)],
        x[:, :1][(x[:, 0] > 0).astype(jnp.uint8), jnp.abs(i).astype(jnp.uint8)],
    ),
    "mapped": lambda x, i: (
        jax.vmap(lambda row, j: row[j])(x, i),
        jax.vmap(lambda j: x[j])(i),
        jax.vmap(lambda row: jnp.nan_to_num(jnp.take(row, i)))(x),
    ),
    "writes": lambda x, i: (
        x.at[i].add(2 * x),
        x.at[i].add(x**2, mode="clip"),
        x.at[i[1]].set(x[0]),
        x.at[i[3]].set(x[0], mode="clip"),
        x.at[i].max(x[::-1]),
        x.at[i].min(x[::-1]),
        x.at[i, i].add(x[0, 0], mode="drop"),
        x.at[i[2:4], 1].set(x[:2, 0]),
    ),
    "runs": lambda x, i: (
        jax.lax.dynamic_slice(x, (i[1], i[3]), (3, 2)),
        jax.lax.dynamic_slice_in_dim(x, i[3], 2),
        jax.lax.dynamic_update_slice_in_dim(x, x[:3] ** 2, i[5], 0),
        jax.lax.dynamic_index_in_dim(x, i[3], 1),
        x.at[i[1] + jnp.arange(2)].get(mode="clip"),
    ),
    "a gradient inside": lambda x, i: (
        jax.grad(lambda y: (y[i] ** 3).sum())(x),
        jax.grad(lambda y: (y.at[i].get(mode="clip") ** 3).sum())(x),
    ),
}


def scalar(function: Any) -> Any:
    """Sum the squares of all that a function returns, each element with another weight."""

    def loss(x: Any, i: Any) -> Any:
        leaves = jax.tree.leaves(function(x, i))
        return sum(
            ((1 + jnp.arange(v.size).reshape(v.shape)) * (v + 1) ** 2).mean() for v in leaves
        )

    return loss


@pytest.mark.parametrize("name", FUNCTIONS)
def test_positions_out_of_range_give_what_jax_gives(name: str) -> None:
    arguments = (jnp.asarray(X), OUTSIDE)
    loss = scalar(FUNCTIONS[name])
    found = compare.gradients_differ(loss, arguments, import_function(loss, arguments))
    assert max(found.loss, found.gradient) < 1e-9, (found.loss, found.gradient)
    assert not found.missing


def test_positions_out_of_range_of_a_plan_of_four_ranks() -> None:
    loss = scalar(lambda x, i: [FUNCTIONS[name](x, i) for name in ("by default", "no number")])
    arguments = ({"x": jnp.asarray(X)}, OUTSIDE)
    own = lambda p, i: loss(p["x"], i)  # noqa: E731
    assert max(compare.on_ranks(own, arguments, 4, cluster="cpu", effort=1 / 6)) < 1e-9


def operators_of(function: Any, *arguments: Any) -> list[str]:
    graph = import_function(function, arguments).graph
    return [node.operator for node in graph.nodes]


def test_positions_that_are_known_to_be_inside_need_nothing() -> None:
    for known in (
        lambda x: x[jnp.argmax(x, 1)],
        lambda x: jnp.take(x, jnp.argsort(x[:, 0]), 0),
        lambda x: jnp.take(x, jnp.argmax(x, 1), 1),
        lambda x: jnp.take_along_axis(x, jax.lax.top_k(x, 3)[1], 1),
        lambda x: x[jnp.clip(x[:, 0].astype(int), 0, 7)],
        lambda x: x[(x > 0).astype(int)],
    ):
        found = operators_of(lambda x, known=known: known(x).sum(), jnp.asarray(X))
        assert "less" not in found, found
        assert "where" not in found, found


def test_an_embedding_costs_nothing_for_each_feature() -> None:
    tokens = np.zeros((4, 5), int)
    for lookup in (lambda x, i: x[i], lambda x, i: jnp.take(x, i, 0)):
        loss = lambda x, i, lookup=lookup: (lookup(x, i) ** 2).sum()  # noqa: E731
        graph = import_function(loss, (jnp.asarray(X), tokens)).graph
        wide = [n.operator for n in graph.nodes if n.results[0].type.shape == (4, 5, 6)]
        assert len(wide) == 2, wide
        assert wide[0] == "gather", wide
