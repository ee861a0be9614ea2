"""Mixed precision, under MindSpore's name."""

from shardwright import train
from shardwright.amp import auto_mixed_precision
from shardwright.train import DynamicLossScaleManager


class FixedLossScaleManager(train.FixedLossScaleManager):
    """A constant factor on the loss, against underflow of small gradients.

    Parameters
    ----------
    loss_scale : float
        The factor.
    drop_overflow_update : bool
        Whether steps whose gradients overflow are skipped.
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        super().__init__(loss_scale, drop_overflow_update)


__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "auto_mixed_precision"]
