"""Operators of a plan on matrices: equations, factors, decompositions, products of reflections."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from .shared.arrays import dtype_of
from .shared.elementwise import widened
from .shared.matrices import *  # noqa: F403


@widened
def solve_triangular(
    a: Array,
    b: Array,
    *,
    lower: bool = True,
    transposed: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    return jax.scipy.linalg.solve_triangular(
        *_alike(a, b), trans=int(transposed), lower=lower, unit_diagonal=unit_diagonal
    )


@widened
def solve(a: Array, b: Array, *, transposed: bool = False) -> Array:
    return jnp.linalg.solve(*_alike(a.mT if transposed else a, b))


def _alike(a: Array, b: Array) -> tuple[Array, Array]:
    """Return matrices with the same leading dimensions."""
    leading = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    wide_a = jnp.broadcast_to(a, (*leading, *a.shape[-2:]))
    return wide_a, jnp.broadcast_to(b, (*leading, *b.shape[-2:]))


@widened
def matrix_exponential(a: Array) -> Array:
    return jax.scipy.linalg.expm(a)


@widened
def householder_product(a: Array, factors: Array) -> Array:
    return lax.linalg.householder_product(a, factors)


@widened
def householder_product_gradient(g: Array, a: Array, factors: Array) -> tuple[Array, ...]:
    return jax.vjp(_reflected, a, factors)[1](g)


def _reflected(a: Array, factors: Array) -> Array:
    """Return the product by its definition; that of LAPACK has no derivative here."""
    rows, count = jnp.arange(a.shape[-2]), factors.shape[-1]

    def step(found: Array, one: tuple[Array, ...]) -> tuple[Array, None]:
        k, column, factor = one
        v = jnp.where(rows == k, 1, jnp.where(rows > k, column, 0))[..., None]
        return found - factor[..., None, None] * v * (v.mT @ found), None

    first = jnp.broadcast_to(jnp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    columns = (jnp.moveaxis(x, -1, 0) for x in (a[..., :count], factors))
    return lax.scan(step, first, (jnp.arange(count), *columns), reverse=True)[0]


@widened
def pseudo_inverse(a: Array, *, relative: float = 0.0, absolute: float = 0.0) -> Array:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    kept = s > jnp.maximum(relative * s.max(-1, keepdims=True), absolute)
    inverse = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0)
    return vh.mT @ (inverse[..., None] * u.mT)


@widened
def eig(a: Array) -> tuple[Array, ...]:
    # On CPUs alone, and on the GPUs that JAX has it for.
    return tuple(jnp.stack([x.real, x.imag], -1) for x in jnp.linalg.eig(a))


@widened
def eigh(a: Array, *, upper: bool = False) -> tuple[Array, ...]:
    return tuple(jnp.linalg.eigh(a, "U" if upper else "L", symmetrize_input=False))


def lu_pivots(a: Array) -> Array:
    wide = a.astype(jnp.float32) if a.dtype.itemsize < 4 else a
    return lax.linalg.lu(wide)[1].astype(dtype_of("int64"))


def pivots_to_permutation(pivots: Array, *, rows: int = 1) -> Array:
    order = lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32), rows)
    return order.astype(dtype_of("int64"))


@widened
def lu(a: Array) -> Array:
    rows, columns = (jnp.arange(n) for n in a.shape[-2:])

    def step(k: Array, a: Array) -> Array:
        row = lax.dynamic_slice_in_dim(a, k, 1, a.ndim - 2)
        column, head = (lax.dynamic_slice_in_dim(x, k, 1, a.ndim - 1) for x in (a, row))
        factor = jnp.where(head == 0, column, column / jnp.where(head == 0, 1, head))
        below = rows[:, None] > k
        rest = jnp.where(below & (columns > k), a - factor * row, a)
        return jnp.where(below & (columns == k), factor, rest)

    return lax.fori_loop(0, min(a.shape[-2:]), step, a)
