"""Functions of matrices, by those that all systems have."""

from .arrays import Array, xp
from .elementwise import widened

inverse, determinant = widened(xp.linalg.inv), widened(xp.linalg.det)


@widened
def log_determinant(a: Array) -> tuple[Array, ...]:
    return tuple(xp.linalg.slogdet(a))


@widened
def cholesky(a: Array) -> Array:
    return xp.linalg.cholesky((a + a.mT) / 2)


@widened
def qr(a: Array) -> tuple[Array, ...]:
    return tuple(xp.linalg.qr(a))


@widened
def svd(a: Array) -> tuple[Array, ...]:
    return tuple(xp.linalg.svd(a, full_matrices=False))
