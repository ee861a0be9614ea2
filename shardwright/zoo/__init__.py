"""The zoo: models by name and size."""

from shardwright.zoo.loading import MODELS, PRESETS, assumed_precision, load

__all__ = ["MODELS", "PRESETS", "assumed_precision", "load"]
