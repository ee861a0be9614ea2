"""The zoo: models by name and size."""

from shardwright.zoo.imported import from_jax, from_torch, is_jax_function, is_torch_module
from shardwright.zoo.loading import MODELS, PRESETS, assumed_batch, assumed_precision, load
from shardwright.zoo.presets import presets
from shardwright.zoo.tuning.freezing import frozen

__all__ = [
    "MODELS",
    "PRESETS",
    "assumed_batch",
    "assumed_precision",
    "from_jax",
    "from_torch",
    "frozen",
    "is_jax_function",
    "is_torch_module",
    "load",
    "presets",
]
