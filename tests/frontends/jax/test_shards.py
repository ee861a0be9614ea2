"""Functions of shards, branches and factors at positions, against JAX on whole arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import AbstractMesh, AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

TOLERANCE = 1e-12
MESH = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
shards = partial(jax.shard_map, mesh=MESH)
typed = pytest.mark.skipif(not hasattr(jax, "reshard"), reason="needs layouts that are types")


def arguments() -> tuple[Any, ...]:
    """A matrix, rows, and targets."""
    random = np.random.default_rng(0)
    return tuple(jnp.asarray(random.normal(size=s)) for s in ((8, 6), (16, 8), (16, 6)))


def _right(found: Any) -> bool:
    return max(found.loss, found.gradient) < TOLERANCE and not found.missing


# A function of shards, and the same of whole arrays


def _mean(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P(), P("x"), P("x")), out_specs=P())
    def loss(p: Any, x: Any, y: Any) -> Any:
        return jax.lax.pmean(jnp.mean((jnp.tanh(x @ p) - y) ** 2), "x")

    return loss(p, x, y)


def _whole_mean(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ p) - y) ** 2)


def _products(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P("y", None), P("x", "y"), P("x")), out_specs=P("x"))
    def apart(p: Any, x: Any, y: Any) -> Any:
        return jax.nn.relu(jax.lax.psum(x @ p, "y")) - y

    return (apart(p, x, y) ** 2).mean()


def _whole_products(p: Any, x: Any, y: Any) -> Any:
    return ((jax.nn.relu(x @ p) - y) ** 2).mean()


def _gathered(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P("x"), P("x"), P("x")), out_specs=P("x"))
    def apart(p: Any, x: Any, y: Any) -> Any:
        return jax.nn.softmax(x @ jax.lax.all_gather(p, "x", tiled=True)) * y

    return (apart(p, x, y) ** 2).sum()


def _whole_gathered(p: Any, x: Any, y: Any) -> Any:
    return ((jax.nn.softmax(x @ p) * y) ** 2).sum()


def _sent(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P(), P("x")), out_specs=P("x"))
    def apart(p: Any, x: Any) -> Any:
        h = x @ p
        following = jax.lax.ppermute(h, "x", [(i, (i + 1) % 4) for i in range(4)])
        second = jax.lax.ppermute(h, "x", [(0, 1)])
        return h * following + jax.lax.axis_index("x") * second

    return (apart(p, x) ** 2).mean()


def _whole_sent(p: Any, x: Any, y: Any) -> Any:
    h = (x @ p).reshape(4, 4, 6)
    second = jnp.zeros_like(h).at[1].set(h[0])
    return ((h * jnp.roll(h, 1, 0) + jnp.arange(4)[:, None, None] * second) ** 2).mean()


def _exchanged(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P(), P(("x", "y"))), out_specs=(P(("x", "y")), P()))
    def apart(p: Any, x: Any) -> Any:
        h = jnp.concatenate([x @ p, x[:, :2]], 1)
        turned = jax.lax.all_to_all(h, "x", 1, 1, tiled=True)
        part = jax.lax.psum_scatter(h.T, "x", scatter_dimension=0, tiled=True)
        return turned, jax.lax.psum((part**2).sum(), ("x", "y"))

    turned, total = apart(p, x)
    return (turned**2 * y[:, :1]).mean() + total


def _whole_exchanged(p: Any, x: Any, y: Any) -> Any:
    h = jnp.concatenate([x @ p, x[:, :2]], 1).reshape(4, 2, 2, 8)
    blocks = h.reshape(4, 2, 2, 4, 2)  # device, device of the other axis, row, receiver, feature
    turned = jnp.transpose(blocks, (3, 1, 2, 0, 4)).reshape(16, 8)
    return (turned**2 * y[:, :1]).mean() + (h.sum(0) ** 2).sum()


def _stepped(p: Any, x: Any, y: Any) -> Any:
    @partial(shards, in_specs=(P(), P("x"), P("x")), out_specs=P())
    def loss(p: Any, x: Any, y: Any) -> Any:
        def step(total: Any, row: Any) -> Any:
            return total + jax.lax.psum(((row @ p) ** 2).sum(), "x"), None

        total, _ = jax.lax.scan(step, jnp.zeros(()), x)
        return total + jax.lax.psum((y * (x @ p)).sum(), "x")

    return loss(p - 0.01 * jax.grad(loss)(p, x, y), x, y)


def _resharded(p: Any, x: Any, y: Any) -> Any:
    """Layouts that are types, JAX's default from 0.12 on, say nothing of what is computed."""
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Explicit))
    p, x, y = (jax.reshard(a, NamedSharding(mesh, P(*s))) for a, s in ((p, ()), (x, "x"), (y, "x")))

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("x"), P("x")), out_specs=P())
    def loss(p: Any, x: Any, y: Any) -> Any:
        return jax.lax.pmean(jnp.mean((jnp.tanh(x @ p) - y) ** 2), "x")

    return loss(p, x, y)


def _whole_stepped(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return ((x @ p) ** 2).sum() + (y * (x @ p)).sum()

    return loss(p - 0.01 * jax.grad(loss)(p))


@pytest.mark.parametrize(
    ("function", "whole"),
    [
        (_mean, _whole_mean),
        (_products, _whole_products),
        (_gathered, _whole_gathered),
        (_sent, _whole_sent),
        (_exchanged, _whole_exchanged),
        (_stepped, _whole_stepped),
        pytest.param(_resharded, _whole_mean, marks=typed),
    ],
)
def test_a_function_of_shards_is_that_of_whole_arrays(
    function: Callable[..., Any], whole: Callable[..., Any]
) -> None:
    imported = import_function(function, arguments())
    assert _right(compare.gradients_differ(whole, arguments(), imported))


@typed
def test_a_mesh_that_the_user_has_set_changes_nothing() -> None:
    mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Explicit))

    def loss(p: Any, x: Any, y: Any) -> Any:
        x, y = jax.reshard(x, P("x")), jax.reshard(y, P("x"))
        apart = jax.shard_map(lambda p, x: x @ p, in_specs=(P(), P("x")), out_specs=P("x"))
        return ((jnp.tanh(apart(p, x)) - y) ** 2).mean()

    with jax.set_mesh(mesh):
        imported = import_function(loss, arguments())
    assert _right(compare.gradients_differ(_whole_mean, arguments(), imported))


def test_a_derivative_of_the_users_inside_of_shards_is_refused() -> None:
    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return x * 2

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0] * 3))

    def loss(p: Any, x: Any, y: Any) -> Any:
        apart = shards(lambda p, x: doubled(x @ p), in_specs=(P(), P("x")), out_specs=P("x"))
        return apart(p, x).sum()

    with pytest.raises(ModelError, match=r"^a function with a derivative of its own inside of"):
        import_function(loss, arguments())


# Branches


def _branch(p: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return jax.lax.cond(
            x.sum() > 0, lambda p: ((x @ p - y) ** 2).mean(), lambda p: jnp.abs(x @ p).sum(), p
        )

    return loss(p - 0.1 * jax.grad(loss)(p))


def _not_a_number(p: Any, x: Any, y: Any) -> Any:
    size = ((x @ p) ** 2).sum()
    return jax.lax.cond(size >= 0, jnp.sqrt, lambda s: jnp.sqrt(-s) + jnp.log(s - s), size)


def _switch(p: Any, x: Any, y: Any) -> Any:
    number = (x.sum() * 0 + 1).astype(int)
    branches = [lambda p: jnp.cos(p).sum(), lambda p: (p**2).sum(), lambda p: (p**3).sum()]
    return sum(jax.lax.switch(number + shift, branches, p) for shift in (-5, 0, 5))


@pytest.mark.parametrize("loss", [_branch, _not_a_number, _switch])
def test_branches_that_depend_on_data_are_those_of_jax(loss: Callable[..., Any]) -> None:
    assert _right(compare.gradients_differ(loss, arguments()))


# Factors at positions


def _factors(p: Any, x: Any, y: Any) -> Any:
    rows = p.at[jnp.array([0, 2])].multiply(y[:2])
    shares = p.at[jnp.array([0, -1])].divide(y[:2])
    points = p.at[jnp.array([0, 2]), jnp.array([1, 1])].multiply(3.0)
    return ((x @ rows) ** 2).sum() + (shares**2).sum() + (points**2).sum()


def test_factors_at_known_positions_that_differ_are_those_of_jax() -> None:
    assert _right(compare.gradients_differ(_factors, arguments()))


def test_factors_at_positions_that_may_be_equal_are_refused() -> None:
    def loss(p: Any, x: Any, y: Any) -> Any:
        return p.at[jnp.array([1, 1])].multiply(2.0).sum()

    with pytest.raises(ModelError, match=r"^a scatter of factors to positions that may be equal"):
        import_function(loss, arguments())
