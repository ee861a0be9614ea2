"""The zoo: models by name and size."""

from shardwright.zoo.definitions import bert, gpt, mlp, two_matmul
from shardwright.zoo.loading import MODELS, load

__all__ = ["MODELS", "bert", "gpt", "load", "mlp", "two_matmul"]
