"""Cells of training and evaluation: a network with its loss, a step, an evaluation."""

from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.ir.values import check_flag, wrong_value
from shardwright.mindspore.gradients import value_and_grad
from shardwright.mindspore.steps import Step
from shardwright.nn.cell import Cell
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.models.loss_scale import (
    GOOD_STEPS,
    LOSS_SCALE,
    SCALES,
    DynamicLossScale,
)
from shardwright.tensor import Tensor
from shardwright.tracer import current_tracer, is_tracing
from shardwright.tracing import Network
from shardwright.tracing import WithLossCell as OwnWithLossCell
from shardwright.train import DynamicLossScaleManager, FixedLossScaleManager

# Steps before a scale with the factor 1 grows, which has no effect: fewer than a training has would
# make the count of steps without an overflow begin anew, more do not change anything.
_WITHOUT_END = 2**62


class WithLossCell(OwnWithLossCell):
    """A network and its loss, which gets the last input as labels.

    Parameters
    ----------
    backbone : Cell
        The network.
    loss_fn : Cell or function
        Takes what the network returns and the labels.
    """

    _auto_prefix = False  # the names of parameters are the network's

    def __init__(self, backbone: Network, loss_fn: Network) -> None:
        super().__init__(backbone, loss_fn)

    @property
    def backbone_network(self) -> Network:
        """The network."""
        return self.backbone


class TrainOneStepCell(Cell):
    """A training step: a call trains, and returns the loss before it.

    Parameters
    ----------
    network : Cell
        Returns the loss.
    optimizer : Optimizer
        Updates the parameters.
    sens : float, optional
        What gradients are multiplied by; an optimizer with the same ``loss_scale`` divides them.
    return_grad : bool
        Must be False.
    """

    _auto_prefix = False
    wraps = "network"

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer,
        sens: float | None = None,
        return_grad: bool = False,
    ) -> None:
        if sens is not None:
            SCALES.check("sens", sens)
        if return_grad is not False:
            raise wrong_value("return_grad", return_grad, "False", "use `value_and_grad`")
        if not isinstance(optimizer, Optimizer):
            raise wrong_value("optimizer", optimizer, "an optimizer of `nn`")
        self.network = network
        self.optimizer = optimizer
        self.weights = optimizer.parameters
        self.sens = 1.0 if sens is None else float(sens)
        self._step = Step(self)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the loss, and let the optimizer update the parameters."""
        loss, gradients = value_and_grad(self.network, None, self.weights)(*inputs)
        current_tracer().scale_gradients(self.sens)
        self.optimizer(gradients)
        return loss

    def __call__(self, *inputs: Any) -> Any:
        """Train a step on a batch; within a trace, apply the cell."""
        return super().__call__(*inputs) if is_tracing() else self._step(*inputs)


class WithEvalCell(Cell):
    """A network and its loss, for evaluation: returns the loss, the outputs and the labels.

    Parameters
    ----------
    network : Cell
        The network.
    loss_fn : Cell or function
        Takes what the network returns and the labels.
    add_cast_fp32 : bool
        Whether the outputs are cast to float32 before the loss.
    """

    _auto_prefix = False

    def __init__(self, network: Network, loss_fn: Network, add_cast_fp32: bool = False) -> None:
        check_flag("add_cast_fp32", add_cast_fp32)
        self.network, self.loss_fn, self.add_cast_fp32 = network, loss_fn, add_cast_fp32

    def construct(self, data: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, what the network returns, and the labels."""
        outputs = self.network(data)
        if self.add_cast_fp32:
            outputs = outputs.astype("float32")
        return self.loss_fn(outputs, label), outputs, label


class DynamicLossScaleUpdateCell(DynamicLossScaleManager):
    """A loss scale that follows overflows, for `TrainOneStepWithLossScaleCell` and `Model`.

    Parameters
    ----------
    loss_scale_value : float
        The first factor.
    scale_factor : float
        By what it is divided and multiplied.
    scale_window : int
        Number of steps without overflow after which it is multiplied.
    """

    def __init__(self, loss_scale_value: float, scale_factor: float, scale_window: int) -> None:
        super().__init__(loss_scale_value, scale_factor, scale_window)


class FixedLossScaleUpdateCell(FixedLossScaleManager):
    """A constant loss scale, with which steps that overflow are skipped.

    Parameters
    ----------
    loss_scale_value : float
        The factor.
    """

    def __init__(self, loss_scale_value: float) -> None:
        super().__init__(loss_scale_value, drop_overflow_update=True)

    @property
    def rule(self) -> DynamicLossScale:
        """The scale, which stays as it is."""
        return DynamicLossScale(self.loss_scale, factor=1.0, window=_WITHOUT_END)


class TrainOneStepWithLossScaleCell(TrainOneStepCell):
    """A training step with a scaled loss, which is skipped where gradients overflow.

    A call returns the loss, whether gradients overflowed, and the scale that the step had. Within a
    trace, as in a `Model`, it returns the loss.

    Parameters
    ----------
    network : Cell
        Returns the loss.
    optimizer : Optimizer
        Updates the parameters.
    scale_sense : DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, Tensor or number
        The scale; one number stays as it is.
    """

    def __init__(self, network: Network, optimizer: Optimizer, scale_sense: Any) -> None:
        super().__init__(network, optimizer)
        if not isinstance(scale_sense, DynamicLossScaleManager | FixedLossScaleUpdateCell):
            scale_sense = FixedLossScaleUpdateCell(_number(scale_sense))
        rule = scale_sense.rule
        self.scale = rule if rule.factor > 1 else replace(rule, window=_WITHOUT_END)
        self._before = (rule.initial, 0)

    def construct(self, *inputs: Tensor) -> Tensor:
        """Return the loss; the compiler scales it, and guards the optimizer."""
        current_tracer().manage_loss_scale(self.scale)
        return super().construct(*inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Train a step on a batch; within a trace, apply the cell."""
        loss = super().__call__(*inputs)
        if is_tracing():
            return loss
        scale, good = self._before
        self._before = (self._step.read(LOSS_SCALE).item(), self._step.read(GOOD_STEPS).item())
        return loss, Tensor(np.asarray(self._skipped(scale, good))), Tensor(np.float32(scale))

    def _skipped(self, scale: float, good: int) -> bool:
        """Return whether the step after a scale and a number of good steps overflowed."""
        after, count = self._before
        if count:
            return False
        return good + 1 < self.scale.window or after < scale or after == scale <= 1.0


def _number(scale: Any) -> float:
    """Return a scale that is a number, or a tensor of one."""
    if isinstance(scale, Tensor) and scale.size == 1:
        return float(scale.asnumpy().item())
    SCALES.check("scale_sense", scale)
    return float(scale)


_TrainPipelineWithLossScaleCell = TrainOneStepWithLossScaleCell
