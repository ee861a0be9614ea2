"""Functions of JAX: values, losses and gradients are those of JAX, and what is trained is."""

import sys
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
import numpy as np  # noqa: E402

import shardwright  # noqa: E402
from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ModelError, OptionError, ShardwrightWarning  # noqa: E402
from shardwright.tools.main import main  # noqa: E402

Function = Any


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def network(layers: int = 1) -> tuple[Function, tuple[Any, ...]]:
    """A small decoder: a tied table, normalizations, causal attention, integer labels."""

    def norm(p: Any, x: Any) -> Any:
        mean, square = x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(square - mean**2 + 1e-5) * p["scale"] + p["bias"]

    def block(p: Any, x: Any) -> Any:
        y = norm(p["norm"], x)
        q, k, v = (jnp.einsum("bsd,dhe->bshe", y, p[name]) for name in "qkv")
        scores = jnp.einsum("bshe,bthe->bhst", q, k) / 2.0
        seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
        y = jnp.einsum("bhst,bthe->bshe", weights, v).reshape(x.shape)
        return x + jax.nn.gelu(y @ p["up"]) @ p["down"]

    def loss(p: Any, tokens: Any, labels: Any) -> Any:
        x = p["table"][tokens]
        for name in p["layers"]:
            x = jax.checkpoint(block)(p["layers"][name], x)
        logs = jax.nn.log_softmax(x @ p["table"].T)
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean()

    shapes = {"q": (8, 2, 4), "k": (8, 2, 4), "v": (8, 2, 4), "up": (8, 16), "down": (16, 8)}
    layers_of = {
        f"{i}": {n: draw(*s, seed=i + j) for j, (n, s) in enumerate(shapes.items())}
        | {"norm": {"scale": draw(8, seed=i), "bias": draw(8, seed=i + 1)}}
        for i in range(layers)
    }
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 16, (4, 6)))
    params = jax.tree.map(jnp.asarray, {"table": draw(16, 8), "layers": layers_of})
    return loss, (params, tokens, (tokens + 1) % 16)


def test_a_decoder_is_imported_in_whole_operators_and_differentiated_as_jax_does() -> None:
    function, arguments = network()
    found = compare.gradients_differ(function, arguments)
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing
    assert not found.extra
    used = {node.operator for node in found.imported.graph.nodes}
    assert used >= {"scaled_dot_product_attention", "layer_norm", "gelu", "exp_sum_and_pick"}
    assert not used & {"softmax", "exp", "rsqrt", "reduce_max", "erf", "tanh"}


def test_a_plan_of_four_ranks_computes_what_jax_does() -> None:
    function, arguments = network()
    assert max(compare.on_ranks(function, arguments, 4)) < 1e-9


def same(function: Function, *arguments: Any) -> None:
    """Check the mean of squares of a function, and its gradients."""

    def loss(*given: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(function(*given)) if x.dtype.kind == "f"]
        return sum(jnp.mean((x - 0.1) ** 2) for x in leaves)

    found = compare.gradients_differ(loss, arguments)
    assert max(found.loss, found.gradient) < 1e-9, (found.loss, found.gradient)
    assert not found.missing


X, Y = draw(4, 6), draw(4, 6, seed=1)
PLACES = np.array([3, 0, 3])
ONE_OF_SIX = np.array([[5, 1], [0, 0], [2, 3], [4, 4]])
IMAGE, KERNEL = draw(2, 6, 6, 2), draw(3, 3, 2, 4)
_NUMBERS = ("NHWC", "HWIO", "NHWC")
FUNCTIONS: dict[str, Function] = {
    "arithmetic": lambda x: x / (1 + x**2) - 2 * x**3 + 3.0 / (x**2 + 1) + jnp.abs(x) ** 1.5,
    "division of integers": lambda x: x * (jnp.arange(-3, 3) // 2) + (jnp.arange(-3, 3) % 4),
    "rem": lambda x: jax.lax.rem(x, 0.7),
    "rem at zero": lambda x: jax.lax.rem(x - jax.lax.stop_gradient(x), 0.7) + x,
    "clamp at a bound": lambda x: jax.lax.clamp(-0.4, x - jax.lax.stop_gradient(x) - 0.4, 0.4) + x,
    "functions": lambda x: jnp.exp(x) + jnp.tanh(x) + jnp.log1p(x * x) + jnp.sin(x) * jnp.cbrt(x),
    "activations": lambda x: jax.nn.silu(x) + jax.nn.elu(x) + jax.nn.gelu(x, approximate=False),
    "absolute values at zero": lambda x: jnp.abs(x - jax.lax.stop_gradient(x)) + x,
    "powers of zero": lambda x: jax.lax.integer_pow(x - jax.lax.stop_gradient(x), 0) + x,
    "runs beyond the ends": lambda x: [
        (
            jax.lax.dynamic_slice(x, (0, place), (4, 2)),
            jax.lax.dynamic_update_slice(x, 2 * x[:, :2], (0, place)),
            x.at[:, place + jnp.arange(2)].get(mode="clip"),
            x.at[:, place - 1 + jnp.arange(3)].add(x[:, :3]),
            x.at[place + jnp.arange(2)].set(2 * x[:2]),
        )
        for place in (jnp.argmax(x[0]) + 6, jnp.argmax(x[0]) - 18)
    ],
    "relu at zero": lambda x: jax.nn.relu(jnp.round(x)) + jax.nn.relu6(jnp.round(3 * x)),
    "ties of maxima": lambda x: jnp.maximum(jnp.round(x) + 0 * x, 0 * x) + jnp.minimum(x, x),
    "ties of a maximum": lambda x: jnp.max(jnp.round(x) * x, axis=1) + jnp.min(x * 0, axis=1),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5) + jax.lax.clamp(-0.4, x, 0.4),
    "softplus": lambda x: jax.nn.softplus(x) + jnp.logaddexp(x, 2 * x),
    "softmax": lambda x: jax.nn.softmax(x, 0) + jax.nn.log_softmax(x, 1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=0),
    "choices": lambda x: jnp.where(x > 0, x, 0.1 * x) + jax.lax.select_n(x > 1, x, x * x),
    "reductions": lambda x: (x.var(0), x.std(1), x.prod(1), x.mean(), jnp.any(x > 1)),
    "scans": lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), jax.lax.cummax(x, 1, reverse=True)),
    "order": lambda x: (jnp.sort(x), x[jnp.arange(4)[:, None], jnp.argsort(x)], jnp.argmax(x, 1)),
    "top k": lambda x: jax.lax.top_k(x, 3)[0],
    "slices": lambda x: (x[1], x[:, ::2], x[-1:, 1:3], x[..., ::-1], jnp.roll(x, 2, 1), x[:, -1]),
    "joins": lambda x: (jnp.concatenate([x, x], 1), jnp.stack([x, x]), jnp.split(x, 3, 1)[1]),
    "pads": lambda x: (jnp.pad(x, 1), jax.lax.pad(x, 0.0, ((1, 0, 1), (-1, 2, 0))), jnp.tile(x, 2)),
    "triangles": lambda x: jnp.tril(x) + jnp.triu(x, 2) @ jnp.eye(6),
    "products": lambda x: (
        x @ x.T,
        jnp.einsum("ij,kj->ki", x, x),
        jnp.outer(x[0], x[1]),
        x[0] @ x[1],
    ),
    "batches": lambda x: jnp.einsum("abc,dcb->bad", x.reshape(2, 3, 4), x.reshape(2, 4, 3)),
    "norm": lambda x: jnp.linalg.norm(x, axis=1),
    "rows by position": lambda x: (x[PLACES], jnp.take(x, PLACES, 1), x[:, PLACES]),
    "elements by position": lambda x: (x[PLACES, PLACES], jnp.take_along_axis(x, ONE_OF_SIX, 1)),
    "vmapped rows": lambda x: jax.vmap(lambda row, i: row[i])(x, ONE_OF_SIX[:, 0]),
    "writes": lambda x: (x.at[0].set(1.0), x.at[PLACES].add(2 * x[:3]), x.at[1:3, 2:4].set(0.0)),
    "writes at positions": lambda x: x.at[:, PLACES[:2]].set(3 * x[:, :2]).at[0, 1].max(0.0),
    "segments": lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 0, 1]), 3),
    "one hot": lambda x: jax.nn.one_hot(PLACES, 4) @ x,
    "nested functions": lambda x: jax.jit(jax.jit(jnp.sin))(x) + jax.vmap(jax.vmap(jnp.cos))(x),
    "a scan": lambda x: jax.lax.scan(lambda c, r: (c + r * c, c), x[0], x, reverse=True),
    "a loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x + i, x),
    "a branch": lambda x: jax.lax.cond(True, jnp.sin, jnp.cos, x),
    "random constants": lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape),
    "types": lambda x: x.astype(jnp.int32) + x * jnp.int32(2) + x.astype(bool) * np.float32(0.5),
    "stopped": lambda x: x * jax.lax.stop_gradient(x),
    "bounds": lambda x: (
        x + jnp.searchsorted(jnp.linspace(-1, 1, 5), x),
        x * jnp.digitize(jnp.where(x > 1, jnp.nan, x), jnp.array([-1.0, 0.0, jnp.nan])),
        jnp.interp(x, jnp.linspace(-2, 2, 5), jnp.array([0.0, 1, 4, 2, 3])),
        x + jnp.searchsorted(x[0].sort(), x, side="right"),
    ),
    "a scalar": lambda x: x.sum() * jnp.float64(2.0),
    "an associative scan": lambda x: jax.lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, jnp.sin(x)), axis=1
    ),
    "parts without elements": lambda x: jnp.concatenate([x[:0], x, x[4:]]),
    "factors": lambda x: x.at[1:3, 2:4].mul(3.0).at[0].mul(x[1]),
    "unique factors": lambda x: x.at[PLACES[:2]].mul(x[:2], unique_indices=True),
    "a factor of a matrix": lambda x: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(4)),
    "triangular equations": lambda x: (
        jax.scipy.linalg.solve_triangular(x[:, :4] + 5 * jnp.eye(4), x, lower=True),
        jax.lax.linalg.triangular_solve(x[:, :4] + 5 * jnp.eye(4), x.T, transpose_a=True),
    ),
    "rows of groups": lambda x: jax.lax.ragged_dot(
        x, jnp.stack([x.T, x[::-1].T]), jnp.array([1, 2], jnp.int32)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_and_its_gradient_are_those_of_jax(name: str) -> None:
    same(FUNCTIONS[name], X)


@pytest.mark.parametrize(
    "how",
    [
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 2), "padding": ((1, 0), (0, 2)), "rhs_dilation": (2, 1)},
        {"window_strides": (1, 1), "padding": ((2, 2), (2, 2)), "lhs_dilation": (2, 2)},
    ],
)
def test_a_convolution_is_that_of_jax(how: dict[str, Any]) -> None:
    def convolved(kernel: Any, x: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=_NUMBERS, **how)

    same(convolved, KERNEL, IMAGE)


def test_positions_that_are_inputs_are_looked_up_and_written() -> None:
    def function(x: Any, i: Any, rows: Any) -> Any:
        run = jax.lax.dynamic_slice(x, (i, 0), (2, 6))
        return run, x[i], x[rows], x.at[rows].add(x), jax.lax.dynamic_update_slice(x, run, (i, 0))

    same(function, X, np.int64(1), np.array([3, 0, 2, 0]))
    same(function, X, np.int64(3), np.array([-1, 0, 2, 0]))  # JAX moves the slice back


# Derivatives of the user's own


@jax.custom_vjp
def reversed_gradient(x: Any) -> Any:
    return 2 * x


reversed_gradient.defvjp(lambda x: (2 * x, x), lambda x, g: (-3 * g * x,))


@jax.custom_jvp
def straight_through(x: Any, y: Any) -> Any:
    return jnp.round(x) * y


straight_through.defjvp(lambda at, by: (straight_through(*at), by[0] * 5 + at[0] * by[1]))


def test_derivatives_of_the_users_own_are_kept() -> None:
    same(lambda x: reversed_gradient(jnp.sin(x)), X)
    same(lambda x: straight_through(x, x * x), X)
    same(lambda x: jax.vmap(reversed_gradient)(x).sum(), X)
    wrong = jax.grad(lambda x: (2 * x).sum())(X)
    right = jax.grad(lambda x: reversed_gradient(x).sum())(X)
    assert compare.difference(wrong, right) > 0.1  # the rule is not the derivative


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


@jax.custom_vjp
def normed(x: Any, y: Any) -> Any:
    """Two results; the gradients are scaled to a norm over both, one is a constant."""
    return x * y, x.sum()


def _normed_backward(x: Any, cotangents: Any) -> Any:
    g, h = cotangents
    size = jnp.sqrt((g**2).sum() + h**2)
    g = jnp.where(size > 0.5, g / size, g)
    return g * x + h, jnp.ones_like(g)


normed.defvjp(lambda x, y: ((x * y, x.sum()), x), _normed_backward)


def test_backward_passes_that_are_not_linear_are_kept() -> None:
    same(lambda x: clipped(jnp.sin(x)) * jnp.cos(x), X)
    same(lambda x: normed(x * x, jnp.sin(x))[0] * 3, X)
    same(lambda x: sum(r.sum() for r in normed(x * x, clipped(jnp.sin(x)))), X)


# Parameters


def test_parameters_are_named_by_their_path_and_unread_or_integer_ones_are_not_trained() -> None:
    params = {"a": [X, Y], "scale": jnp.float64(2.0), "unread": X, "count": jnp.arange(6)}

    def loss(p: Any) -> Any:
        return (p["a"][0] * p["a"][0] * p["scale"] + p["a"][1] * p["count"]).mean()

    found = compare.gradients_differ(loss, (params,))
    assert max(found.loss, found.gradient) < 1e-9
    trained = {p.name for p in found.imported.graph.parameters if p.trainable}
    assert trained == {"a/0", "a/1", "scale"}
    assert {p.name for p in found.imported.graph.parameters} == trained | {"count"}
    assert any("`unread`" in text for text in found.imported.warnings)


def test_shapes_alone_are_planned() -> None:
    function, arguments = network()
    shapes = jax.eval_shape(lambda *a: a, *arguments)
    with pytest.warns(ShardwrightWarning, match="shapes alone"):
        plan = shardwright.compile(function, 4, example_inputs=shapes).plan
    assert shardwright.prove(plan).proven


def test_operators_have_the_scope_and_the_line_of_the_users_code() -> None:
    def loss(x: Any) -> Any:
        with jax.named_scope("block"):
            return jnp.sin(x).sum()

    node = import_function(loss, (X,)).graph.nodes[0]
    assert node.scope.startswith("block/test_functions.py-L")


def _drawn(params: Any, x: Any, key: Any) -> Any:
    first, second, third = jax.random.split(key, 3)
    folded = jax.random.fold_in(third, 7)
    rows = jax.vmap(lambda k: jax.random.uniform(k, x.shape))(jax.random.split(third))
    return (
        params + jax.random.normal(first, x.shape),
        params + jax.random.normal(first, x.shape),
        jax.random.bernoulli(second, 0.3, x.shape),
        -jax.random.gumbel(folded, x.shape),
        rows,
    )


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_keys_that_are_arguments_give_numbers_of_the_right_distribution(make: Any) -> None:
    arguments = (jnp.asarray(0.0), jnp.zeros(4000), make(0))
    imported = import_function(_drawn, arguments, outputs=True)
    assert "whatever the key is" in imported.warnings[0]
    feed = {v.name: np.zeros(v.type.shape, v.type.dtype) for v in imported.graph.inputs}
    names = list(imported.graph.outputs)
    found = list(compare.run(imported.graph, imported.initial, feed, names).values())
    normal, again, chosen, gumbel, rows = found
    assert np.array_equal(normal, again)
    assert (normal.mean(), normal.std()) == pytest.approx((0, 1), abs=0.05)
    assert chosen.mean() == pytest.approx(0.3, abs=0.03)
    assert gumbel.mean() == pytest.approx(-np.euler_gamma, abs=0.08)
    assert rows.mean() == pytest.approx(0.5, abs=0.02)
    assert rows.min() >= 0
    assert rows.max() < 1


def test_other_uses_of_keys_that_are_arguments_are_refused() -> None:
    with pytest.raises(ModelError, match=r"of a key that is an argument.*test_functions.py"):
        import_function(
            lambda p, key: p + jax.random.randint(key, (), 0, 4), (X, jax.random.key(0))
        )


# Refusals


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (
            lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
            "depends on data",
        ),
        (lambda x: x[x > 0], "cannot trace"),
        (lambda x: x.at[PLACES].mul(x[:3]), "may be equal"),
        (lambda x: (x + 1j).prod().real, "`reduce_prod` of complex numbers"),
        (lambda x: jnp.linalg.svd(x)[1], "`svd`"),
        (lambda x: jax.pure_callback(np.sin, x, x), "`pure_callback`"),
        (lambda x: jax.lax.fori_loop(0, 2000, lambda i, c: c + x, x), "steps"),
        (
            lambda x: jax.lax.reduce_window(
                jnp.argsort(x), 0, jax.lax.add, (2, 2), (1, 1), "VALID"
            ),
            "computes with real numbers",
        ),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_users_line(function: Any, word: str) -> None:
    with pytest.raises(ModelError, match=rf"({word}).*test_functions.py:\d+"):
        import_function(lambda x: function(x).sum(), (X,))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ModelError, match="expected a tuple"):
        import_function(jnp.sum, X)
    with pytest.raises(ModelError, match="expected an array"):
        import_function(jnp.sum, ({"a": X, "f": jnp.sin},))
    with pytest.raises(ModelError, match="expected a real scalar"):
        shardwright.compile(jnp.sin, 2, example_inputs=(jnp.asarray(X),))
    with pytest.raises(OptionError, match="a function of JAX"):
        shardwright.compile("mlp", 2, example_inputs=(jnp.asarray(X),))


def test_a_file_with_a_function_is_compiled_by_its_name(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import jax.numpy as jnp\n"
        "def net(batch=4):\n"
        "    params = {'w': jnp.ones((6, 8)), 'b': jnp.zeros(8)}\n"
        "    inputs = (params, jnp.ones((batch, 6)))\n"
        "    return lambda p, x: jnp.tanh(x @ p['w'] + p['b']), inputs, 'mse'\n"
    )
    plan = tmp_path / "plan"
    assert main(["compile", f"{file}:net:batch=8", "--devices", "2", "--out", str(plan)]) == 0
    assert main(["verify", str(plan)]) == 0
    assert "jax" in sys.modules
    assert capsys.readouterr().out
