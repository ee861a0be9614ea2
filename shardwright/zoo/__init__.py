"""The zoo: models by name and size."""

from shardwright.zoo.loading import MODELS, PRESETS, load

__all__ = ["MODELS", "PRESETS", "load"]
