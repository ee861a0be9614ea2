"""Mixed precision, under MindSpore's name."""

from shardwright.amp import auto_mixed_precision
from shardwright.train import DynamicLossScaleManager, FixedLossScaleManager

__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "auto_mixed_precision"]
