"""Mixed precision, under MindSpore's name."""

from shardwright import train
from shardwright.amp import auto_mixed_precision
from shardwright.train import DynamicLossScaleManager


class FixedLossScaleManager(train.FixedLossScaleManager):
    """A constant factor on the loss; see `shardwright.train.FixedLossScaleManager`.

    Steps whose gradients overflow are skipped unless `drop_overflow_update` is False.
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        super().__init__(loss_scale, drop_overflow_update)


__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "auto_mixed_precision"]
