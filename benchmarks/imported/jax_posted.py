"""Functions of kinds that people write in JAX: their own derivatives, loops, positions, chance.

Each takes features ``[8, 8]``, the parameters, and the samples, and returns features.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Use = Any


# Derivatives of one's own


@jax.custom_jvp
def _safe_root(x: Any) -> Any:
    return jnp.sqrt(jnp.abs(x))


@_safe_root.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _safe_root(x), t * jnp.sign(x) / (2 * _safe_root(x) + 0.1)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _clipped(x: Any, most: float) -> Any:
    return jnp.sin(x)


_clipped.defvjp(
    lambda x, most: (jnp.sin(x), x),
    lambda most, x, g: (jnp.clip(g * jnp.cos(x), -most, most),),
)


@jax.custom_vjp
def _through(x: Any, scale: Any) -> Any:
    return jnp.round(x * scale) / scale


_through.defvjp(
    lambda x, scale: (_through(x, scale), (x, scale)),
    lambda kept, g: (g, (g * kept[0]).sum() * 0.1),
)


def _implicit(h: Any, p: Any, x: Any) -> Any:
    """A fixed point whose gradient is that of the equation."""

    @jax.custom_vjp
    def solve(w: Any, u: Any) -> Any:
        return lax.fori_loop(0, 40, lambda _, z: jnp.tanh(z @ w + u), jnp.zeros_like(u))

    def backward(kept: Any, g: Any) -> Any:
        w, u, z = kept
        _, pull = jax.vjp(lambda w, u, z: jnp.tanh(z @ w + u), w, u, z)
        v = lax.fori_loop(0, 40, lambda _, v: g + pull(v)[2], g)
        return pull(v)[:2]

    solve.defvjp(lambda w, u: (lambda z: (z, (w, u, z)))(solve(w, u)), backward)
    return solve(0.1 * p["a"].T @ p["a"], h)


def _own_in_a_scan(h: Any, p: Any, x: Any) -> Any:
    return lax.scan(lambda c, r: ((c := _clipped(c + r, 0.05)), c), h[0], h)[1]


def _own_under_vmap(h: Any, p: Any, x: Any) -> Any:
    return jax.vmap(lambda r, s: _through(r, 1 + s**2))(h, h[:, 0])


# Loops and branches


def _nested_scan(h: Any, p: Any, x: Any) -> Any:
    def outer(carry: Any, row: Any) -> Any:
        state, count = carry
        inner = lax.scan(lambda c, v: (0.5 * c + jnp.tanh(v + state), None), row[0], row)[0]
        return (state * 0.9 + inner, count + 1), {"kept": state * count, "row": row}

    (state, count), kept = lax.scan(outer, (jnp.zeros(()), 0), h)
    return kept["kept"][:, None] + kept["row"] * count + state


def _scan_without_inputs(h: Any, p: Any, x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c) + h, c.sum(0)), h, None, length=8, unroll=3)[1]


def _recomputed_scan(h: Any, p: Any, x: Any) -> Any:
    w = p["a"].T @ p["a"] * 0.1

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    def layer(c: Any, scale: Any) -> Any:
        return jnp.tanh(c @ w * scale) + c, None

    return lax.scan(layer, h, jnp.arange(3.0) + 1)[0]


def _counted_while(h: Any, p: Any, x: Any) -> Any:
    def step(state: Any) -> Any:
        return state[0] + 1, state[1] * 0.9 + 0.1

    return h * lax.while_loop(lambda s: s[0] < 5, step, (0, jax.lax.stop_gradient(h)))[1]


def _while_on_data(h: Any, p: Any, x: Any) -> Any:
    v = lax.stop_gradient(h)
    return h + lax.while_loop(lambda v: jnp.abs(v).max() > 0.1, lambda v: v / 2, v)


def _switch(h: Any, p: Any, x: Any) -> Any:
    which = jnp.argmax(x[0]) % 3
    return lax.switch(which, [jnp.sin, lambda v: v * v, lambda v: v @ p["a"].T @ p["a"]], h)


def _switch_of_rows(h: Any, p: Any, x: Any) -> Any:
    which = (x[:, 0] > 0).astype(int) + 2 * (x[:, 1] > 1)
    return jax.vmap(lambda i, r: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], r))(which, h)


def _cond_with_nan(h: Any, p: Any, x: Any) -> Any:
    return jax.vmap(
        lambda r: lax.cond(r[0] > 0, lambda v: jnp.log(jnp.abs(v) + 1), lambda v: v * r[0], r)
    )(h)


def _loop_that_writes(h: Any, p: Any, x: Any) -> Any:
    def step(i: Any, table: Any) -> Any:
        return table.at[i + 1].set(jnp.tanh(table[i] + h[i]))

    return lax.fori_loop(0, 8, step, jnp.zeros((9, 8)))[1:]


def _dynamic_rows(h: Any, p: Any, x: Any) -> Any:
    def step(carry: Any, i: Any) -> Any:
        window = lax.dynamic_slice(h, (i, 2 * i - 3), (2, 3))  # starts are brought inside
        return lax.dynamic_update_slice(carry, window * 2, (7 - i, i)), window.sum()

    table, sums = lax.scan(step, h, jnp.arange(8))
    return table + sums[:, None]


def _pairs_scanned(h: Any, p: Any, x: Any) -> Any:
    gates, values = jax.nn.sigmoid(h), jnp.tanh(h)
    join = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    return lax.associative_scan(join, (gates, values), axis=0, reverse=True)[1]


# Positions


_OUTSIDE = jnp.array([0, 3, -1, 9, -12, 7])


def _lookups_outside(h: Any, p: Any, x: Any) -> Any:
    found = h.at[_OUTSIDE].get(mode="fill", fill_value=0.5).sum(0)
    found += h.at[_OUTSIDE].get(mode="clip").sum(0) + jnp.take(h, _OUTSIDE, 0, mode="wrap").sum(0)
    return h + found + h[_OUTSIDE].mean(0)


def _writes_outside(h: Any, p: Any, x: Any) -> Any:
    rows = 2 * h[:6]
    found = h.at[_OUTSIDE].add(rows, mode="drop").at[_OUTSIDE].add(rows, mode="clip")
    return found.at[jnp.array([20, 2])].set(7.0).at[jnp.array([1, 30]), 0].multiply(3.0)


def _places(x: Any) -> Any:
    """Return positions that samples decide, of which many are outside."""
    return (x[:, 0] * 12).astype(int)


def _lookups_of_data(h: Any, p: Any, x: Any) -> Any:
    places = _places(x)
    found = h.at[places].get(mode="clip") + jnp.take(h, places, 0, mode="wrap")
    return found + jnp.take(h, places, 0, mode="clip") + h[jnp.clip(places, -8, 7)]


def _lookups_beyond(h: Any, p: Any, x: Any) -> Any:
    places = _places(x)
    found = h[places] + h.at[places].get(mode="fill", fill_value=0.5) + h[places[0]]
    return found + jnp.nan_to_num(jnp.take(h, places, 0)) + h[places, places % 3][:, None]


def _writes_of_data(h: Any, p: Any, x: Any) -> Any:
    places = _places(x)
    found = h.at[places].add(2 * h).at[places, 1].add(1.0, mode="clip")
    most = jax.ops.segment_max(h, places % 11, 9)[:8]
    return found.at[places, 0].min(0.3) + jnp.where(jnp.isinf(most), 0, most)


def _factors_of_positions(h: Any, p: Any, x: Any) -> Any:
    rows = jnp.array([[0, 2], [5, 7]])
    found = h.at[rows].multiply(2 + h[:2, None], unique_indices=True)
    return found.at[3, jnp.array([1, 4])].divide(4.0, unique_indices=True)


def _extrema_of_positions(h: Any, p: Any, x: Any) -> Any:
    rows = jnp.array([0, 0, 3, 3, 5, 1])
    return h.at[rows].max(h[2:]).at[rows, rows].min(0.1).at[0].power(2)


def _segments(h: Any, p: Any, x: Any) -> Any:
    kinds = jnp.array([0, 0, 2, 2, 1, 9, 1, 0])
    most = jax.ops.segment_max(h, kinds, 3)
    least = jax.ops.segment_min(h, kinds, 3)
    total = jax.ops.segment_prod(h, kinds, 3)
    return h + (most - least + total)[jnp.minimum(kinds, 2)]


def _gathers_mapped(h: Any, p: Any, x: Any) -> Any:
    rows = jnp.argsort(x, axis=1)[:, :4]
    found = jax.vmap(lambda r, i: r[i])(h, rows)
    found = found + jax.vmap(lambda r, i: jnp.take(r, i), (None, 0))(h[0], rows)
    return jnp.concatenate([found, jax.vmap(lambda r, i: r[i], (1, 0))(h, rows)], 1)


def _written_rows_mapped(h: Any, p: Any, x: Any) -> Any:
    places = jnp.argmax(x, 1)
    found = jax.vmap(lambda r, i: r.at[i].set(r[0]))(h, places)
    return found + jax.vmap(lambda r, i: lax.dynamic_update_slice(r, r[:2], (i + 4,)))(h, places)


def _equal_top(h: Any, p: Any, x: Any) -> Any:
    same = jnp.stack([h, 2 * h - lax.stop_gradient(h)], -1).reshape(8, 16)
    values, places = lax.top_k(same, 3)
    return h + values.sum(1, keepdims=True) + jnp.sort(same, 1)[:, ::2] + places.sum() * 0.01


def _sorted_together(h: Any, p: Any, x: Any) -> Any:
    keys, rows, third = lax.sort((jnp.round(h[:, 0]), h[:, 1], h[:, 2]), num_keys=2)
    order = jnp.lexsort((h[:, 3], jnp.round(h[:, 4])))
    return h[order] + (keys + rows * third)[:, None]


# Windows, products, transforms


def _windows(h: Any, p: Any, x: Any) -> Any:
    image = h.reshape(2, 4, 8, 1)
    sums = lax.reduce_window(image, 0.0, lax.add, (1, 2, 3, 1), (1, 1, 2, 1), "SAME")
    most = lax.reduce_window(image, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "VALID")
    return h + sums.reshape(2, 4, 4).sum(2).reshape(8, 1) + most.sum()


def _convolved(h: Any, p: Any, x: Any) -> Any:
    kernel = p["a"][:4, :3].reshape(2, 3, 2, 1)
    found = lax.conv_general_dilated(
        h.reshape(2, 4, 4, 2),
        kernel,
        (1, 2),
        ((1, 2), (0, 3)),
        lhs_dilation=(2, 1),
        rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return h + found.mean((1, 2, 3)).repeat(4)[:, None] + jnp.convolve(h[0], h[1, :3], "same")


def _transposed(h: Any, p: Any, x: Any) -> Any:
    kernel = p["a"][:3, :4].reshape(3, 2, 2)
    found = lax.conv_transpose(h.reshape(4, 8, 2), kernel, (2,), "SAME")
    return h + found.reshape(8, -1)[:, :8]


def _equations(h: Any, p: Any, x: Any) -> Any:
    cube = h.reshape(2, 4, 8)
    found = (
        jnp.einsum("...ij,...kj->...ik", cube, cube) + jnp.einsum("bii->bi", cube[..., :4])[:, None]
    )
    return h + jnp.tensordot(found, cube, ((2,), (1,)))[:, :, 0].reshape(8, 8)


def _forward_over_reverse(h: Any, p: Any, x: Any) -> Any:
    energy = lambda v: jnp.sum(jnp.tanh(v @ p["a"]) ** 2)  # noqa: E731
    moved = jax.jvp(jax.grad(energy), (x[0],), (x[1],))[1]
    return h + moved.sum() + jax.hessian(energy)(x[2]).diagonal().sum()


def _jacobians(h: Any, p: Any, x: Any) -> Any:
    layer = lambda v: jnp.tanh(v @ p["a"])  # noqa: E731
    found = jax.vmap(jax.jacfwd(layer))(x) + jax.vmap(jax.jacrev(layer))(x)
    return h + found.sum(-1)


def _linearized(h: Any, p: Any, x: Any) -> Any:
    value, push = jax.linearize(lambda v: jnp.sin(v @ p["a"]), x)
    (pulled,) = jax.linear_transpose(lambda v: v @ p["a"], x)(h)
    return value + push(jnp.cos(x)) + pulled.mean()


def _mapped_axes(h: Any, p: Any, x: Any) -> Any:
    both = jax.vmap(jax.vmap(lambda a, b: jnp.tanh(a * b), (0, None)), (None, 0), out_axes=1)
    return both(h[:, 0], h[0]) + lax.map(lambda r: jnp.cumsum(r)[::-1], h, batch_size=3)


def _spectrum(h: Any, p: Any, x: Any) -> Any:
    z = jnp.fft.rfft(h, axis=1) * jnp.exp(1j * jnp.arange(5))
    return jnp.fft.irfft(z, 8) + jnp.abs(jnp.fft.fft2(h)) ** 2 * 0.01 + jnp.real(z).sum()


def _decomposed(h: Any, p: Any, x: Any) -> Any:
    cover = h.T @ h + jnp.diag(jnp.arange(1.0, 9))  # no two eigenvalues are equal
    w, v = jnp.linalg.eigh(cover)
    found = (v * jnp.sqrt(w)) @ v.T + jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(cover), h
    )
    return found + jnp.linalg.slogdet(cover)[1] + jax.scipy.linalg.expm(cover * 0.02)


# Types, chance, points where a derivative is a choice


def _whole_numbers(h: Any, p: Any, x: Any) -> Any:
    a, b = jnp.arange(-4, 4), jnp.array([3, -2, 4, -5, 2, -1, -3, 4])
    found = a // b + a % b + lax.div(a, b) + lax.rem(a, b) + (a >> 1) + (a & b) + jnp.gcd(a, b)
    small = (a * 60).astype(jnp.int8).astype(float) / 64 + (a * 60).astype(jnp.uint8) / 64
    return h * (found + small + jnp.round(jnp.array([0.5, 1.5, -0.5, -1.5, 2.5, 0.25, 3.5, -2.5])))


def _weak_types(h: Any, p: Any, x: Any) -> Any:
    half = jnp.float32(0.5) * 3 + jnp.int32(2)
    return h * half + h.astype(jnp.float32) * 0.1 + jnp.where(x[:, :1] > 0, 1, 2) * h


def _drawn(h: Any, p: Any, x: Any) -> Any:
    key = jax.random.key(3)
    first, second = jax.random.split(key)
    found = h * jax.random.normal(first, h.shape) + h[jax.random.permutation(second, 8)]
    kinds = jax.random.categorical(jax.random.fold_in(key, 7), jnp.zeros((8, 8)))
    return found + jax.nn.one_hot(kinds, 8) * h


def _drawn_in_a_scan(h: Any, p: Any, x: Any) -> Any:
    def step(key: Any, row: Any) -> Any:
        key, own = jax.random.split(key)
        return key, row + 0.1 * jax.random.uniform(own, row.shape)

    return lax.scan(step, jax.random.key(0), h)[1]


def _corners(h: Any, p: Any, x: Any) -> Any:
    z = h * (jnp.arange(64).reshape(8, 8) % 3 > 0)  # zeros
    found = jax.nn.relu(z) + jnp.abs(z) + jnp.sign(z) * z + jnp.maximum(z, 0) + jnp.clip(z, 0, 1)
    found += jax.nn.leaky_relu(z) + jax.nn.elu(z) + jax.nn.hard_tanh(z) + jnp.minimum(z, -z)
    return found + z.prod(1, keepdims=True) + jnp.max(z, 1, keepdims=True) + z**2 + z**0


def _safe_norms(h: Any, p: Any, x: Any) -> Any:
    z = h.at[2].set(0.0 * h[2])
    square = (z * z).sum(1, keepdims=True)
    norm = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return h + z / jnp.maximum(norm, 1e-6) + jnp.sinc(z) + jnp.logaddexp(z, -z)


def _hidden_rows(h: Any, p: Any, x: Any) -> Any:
    mask = (jnp.arange(8) % 3 > 0)[:, None] & jnp.tril(jnp.ones((8, 8), bool))
    scores = jnp.where(mask, h, -jnp.inf)
    shares = jax.nn.softmax(scores, where=mask)
    return h + jnp.where(mask, shares, 0) @ h + jax.nn.softmax(jnp.where(mask, h, -1e30))


def _barrier(h: Any, p: Any, x: Any) -> Any:
    h, w = lax.optimization_barrier((h, p["a"]))
    return jax.named_call(jnp.sin, name="wave")(h) + lax.stop_gradient(w).sum()


def _piecewise(h: Any, p: Any, x: Any) -> Any:
    found = jnp.piecewise(h, [h < -0.5, h > 0.5], [jnp.exp, jnp.sin, lambda v: v * v])
    found += jnp.select([h > 1, h > 0], [h, 2 * h], -h) + jnp.polyval(jnp.array([1.0, 2, 3]), h)
    return found + jnp.interp(h, jnp.array([-1.0, 0, 1]), jnp.array([0.0, 2, 1]))


CASES: dict[str, Use] = {
    "own_forward_derivative": lambda h, p, x: _safe_root(h),
    "own_backward_clipped": lambda h, p, x: _clipped(h, 0.05),
    "own_backward_of_a_scale": lambda h, p, x: _through(h, p["b"][0, 0]),
    "fixed_point": _implicit,
    "own_backward_in_a_scan": _own_in_a_scan,
    "own_backward_mapped": _own_under_vmap,
    "scan_in_a_scan": _nested_scan,
    "scan_without_inputs": _scan_without_inputs,
    "scan_recomputed": _recomputed_scan,
    "while_counted": _counted_while,
    "while_on_data": _while_on_data,
    "switch": _switch,
    "switch_of_rows": _switch_of_rows,
    "branches_of_rows": _cond_with_nan,
    "loop_that_writes": _loop_that_writes,
    "windows_brought_inside": _dynamic_rows,
    "pairs_scanned": _pairs_scanned,
    "lookups_outside": _lookups_outside,
    "writes_outside": _writes_outside,
    "lookups_of_data": _lookups_of_data,
    "lookups_beyond": _lookups_beyond,
    "writes_of_data": _writes_of_data,
    "factors_at_positions": _factors_of_positions,
    "extrema_at_positions": _extrema_of_positions,
    "segments_of_kinds": _segments,
    "lookups_mapped": _gathers_mapped,
    "writes_mapped": _written_rows_mapped,
    "top_of_equal_elements": _equal_top,
    "sorted_together": _sorted_together,
    "windows_reduced": _windows,
    "convolved_dilated": _convolved,
    "convolved_transposed": _transposed,
    "equations_with_ellipsis": _equations,
    "forward_over_reverse": _forward_over_reverse,
    "jacobians": _jacobians,
    "linearized_and_transposed": _linearized,
    "mapped_axes": _mapped_axes,
    "spectrum": _spectrum,
    "decomposed": _decomposed,
    "whole_numbers": _whole_numbers,
    "weak_types": _weak_types,
    "drawn_by_a_constant_key": _drawn,
    "drawn_in_a_scan": _drawn_in_a_scan,
    "corners": _corners,
    "safe_norms": _safe_norms,
    "hidden_rows": _hidden_rows,
    "barrier": _barrier,
    "pieces": _piecewise,
}
