"""The zoo: models by name and size."""

from shardwright.zoo.imported import from_torch, is_torch_module
from shardwright.zoo.loading import MODELS, PRESETS, assumed_precision, load

__all__ = ["MODELS", "PRESETS", "assumed_precision", "from_torch", "is_torch_module", "load"]
