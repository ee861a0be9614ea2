from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _wide() -> Iterator[None]:
    jax = pytest.importorskip("jax", reason="needs JAX")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
