"""Fine-tuning of decoders: what of them is trained, on what rows, and with what they begin."""

from shardwright.zoo.tuning.sizes import WHOLE, Tuning

__all__ = ["WHOLE", "Tuning"]
