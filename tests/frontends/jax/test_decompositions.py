"""Decompositions of matrices and solutions of equations: results and gradients are JAX's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")

import jax.numpy as jnp  # noqa: E402
import jax_compare as compare  # noqa: E402
from jax.scipy import linalg  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ModelError  # noqa: E402

Function = Callable[..., Any]


def _weighted(function: Function) -> Function:
    def loss(params: Any, x: Any) -> Any:
        results = jax.tree.leaves(function(params["w"] * x))
        steps = [jnp.arange(r.size).reshape(r.shape) for r in results]
        return sum((r * (0.5 + 0.7 * s % 1)).sum() for r, s in zip(results, steps, strict=True))

    return loss


def _arguments(*shape: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    weight, x = random.standard_normal(shape), 1 + 0.1 * random.random(shape)
    return {"w": jnp.asarray(weight)}, jnp.asarray(x)


def _without_signs(a: Any) -> Any:
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return u**2, s, vh**2, u @ (jnp.sin(s)[..., None] * vh), jnp.linalg.svdvals(a)


def _symmetric(a: Any) -> Any:
    values, vectors = jnp.linalg.eigh(a + a.mT)
    return values, vectors**2, jnp.linalg.eigvalsh(a + a.mT)


def _by_factors(a: Any) -> Any:
    factors, b = linalg.lu_factor(a[0]), jnp.cos(a[1, :, :2])
    return [linalg.lu_solve(factors, b, trans=transposed) for transposed in (0, 1)]


def _custom(a: Any) -> Any:
    """A solution by the user's own function, whose matrix is trained."""
    eye = jnp.eye(a.shape[-1])

    def product(x: Any) -> Any:
        return (eye + 0.1 * a[0]) @ x

    def solve(_: Any, b: Any) -> Any:
        return jnp.linalg.inv(eye + 0.1 * a[0]) @ b

    def transposed(_: Any, b: Any) -> Any:
        return jnp.linalg.inv(eye + 0.1 * a[0]).T @ b

    return jax.lax.custom_linear_solve(product, a[1, :, 0], solve, transposed)


SQUARE: dict[str, Function] = {
    "eigh": _symmetric,
    "lu_solve": _by_factors,
    "solve": lambda a: (jnp.linalg.solve(a, jnp.sin(a[..., :2])), jnp.linalg.inv(a)),
    "determinants": lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)[1]),
    "own solution": _custom,
    "gradient of a solution": jax.grad(lambda a: jnp.linalg.solve(a, a[..., :1]).sum()),
}
ANY: dict[str, Function] = {
    "qr": jnp.linalg.qr,
    "svd": _without_signs,
    "lu": lambda a: (linalg.lu(a[0]), linalg.lu_factor(a)[0]),
    "pinv": jnp.linalg.pinv,
}


def _agree(function: Function, shape: tuple[int, ...]) -> None:
    try:
        found = compare.gradients_differ(_weighted(function), _arguments(*shape))
    except NotImplementedError:  # Of JAX: what we lack is refused by a ModelError.
        pytest.skip(f"JAX {jax.__version__} has no such gradient itself")
    assert max(found.loss, found.gradient) < 1e-9
    assert not found.missing


@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices(name: str) -> None:
    _agree(SQUARE[name], (2, 4, 4))


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 5, 3), (2, 3, 5)])
@pytest.mark.parametrize("name", ANY)
def test_any_matrices(name: str, shape: tuple[int, ...]) -> None:
    _agree(ANY[name], shape)


def test_a_plan_splits_the_matrices_of_a_batch() -> None:
    def both(a: Any) -> Any:
        return jnp.linalg.solve(a, jnp.sin(a[..., :1])), jnp.linalg.svdvals(a), jnp.linalg.qr(a)

    found = compare.on_ranks(_weighted(both), _arguments(4, 3, 3), 4)
    assert max(found) < 1e-9


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda a: jnp.linalg.svd(a)[1], "`svd` of 4 by 3 matrices with `full_matrices`, whose"),
        (lambda a: jnp.linalg.qr(a, mode="complete")[0], "`qr` with pivots, or whose columns are"),
    ],
)
def test_what_has_no_gradient_is_refused(function: Function, what: str) -> None:
    with pytest.raises(ModelError, match=f"^{what}"):
        import_function(_weighted(function), _arguments(2, 4, 3))
