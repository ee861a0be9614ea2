"""Managers of the loss scale, under MindSpore's names."""

from shardwright.ir.values import POSITIVE_INTEGER, Range, check_flag
from shardwright.operators.models.loss_scale import SCALES, DynamicLossScale, LossScale


class FixedLossScaleManager:
    """A constant factor on the loss, against underflow of small gradients.

    Parameters
    ----------
    loss_scale : float
        The factor.
    drop_overflow_update : bool
        Whether steps whose gradients overflow are skipped.
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = False) -> None:
        SCALES.check("loss_scale", loss_scale)
        check_flag("drop_overflow_update", drop_overflow_update)
        self.loss_scale, self.drop_overflow_update = float(loss_scale), drop_overflow_update

    def get_loss_scale(self) -> float:
        """Return the factor."""
        return self.loss_scale

    def get_drop_overflow_update(self) -> bool:
        """Return whether steps whose gradients overflow are skipped."""
        return self.drop_overflow_update

    @property
    def rule(self) -> LossScale:
        """The loss scale of the compiler."""
        if self.drop_overflow_update:
            return DynamicLossScale(self.loss_scale, factor=1.0, window=1)
        return self.loss_scale


class DynamicLossScaleManager:
    """A factor on the loss that is divided where gradients overflow, and grows where they do not.

    A step whose gradients overflow is skipped.

    Parameters
    ----------
    init_loss_scale : float
        The first factor.
    scale_factor : float
        By what it is divided and multiplied.
    scale_window : int
        Number of steps without overflow after which it is multiplied.
    """

    def __init__(
        self,
        init_loss_scale: float = 2.0**24,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
    ) -> None:
        SCALES.check("init_loss_scale", init_loss_scale)
        Range(least=1.0).check("scale_factor", scale_factor)
        POSITIVE_INTEGER.check("scale_window", scale_window)
        self.rule = DynamicLossScale(float(init_loss_scale), float(scale_factor), scale_window)

    def get_loss_scale(self) -> float:
        """Return the first factor; the program updates its own."""
        return self.rule.initial

    def get_drop_overflow_update(self) -> bool:
        """Return True: steps whose gradients overflow are skipped."""
        return True
