"""JAX functions, imported into the IR.

`primitives` has a converter for every primitive: a function that emits it in operators of our IR,
in a module per family.
"""

from shardwright.frontends.common.imported import Imported
from shardwright.frontends.jax.converters import (
    complex_numbers,
    control,
    custom,
    elementwise,
    indexing,
    linear,
    matrices,
    reduction,
    shape,
    shards,
    windows,
)
from shardwright.frontends.jax.jax_model import import_function

__all__ = [
    "Imported",
    "complex_numbers",
    "control",
    "custom",
    "elementwise",
    "import_function",
    "indexing",
    "linear",
    "matrices",
    "reduction",
    "shape",
    "shards",
    "windows",
]
