"""Optimizers with MindSpore's arguments, defaults and rules.

As in MindSpore, the weight decay of parameters that are not in groups leaves out those with
``beta`` or ``gamma`` in their names, but for `FTRL`. Gradients are divided by ``loss_scale``.
"""

from typing import Any, ClassVar

from shardwright import nn
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.values import check_flag, wrong_value
from shardwright.mindspore.context import (
    ParallelMode,
    get_auto_parallel_context,
    get_context,
    splits_operators,
)
from shardwright.mindspore.errors import as_mindspore
from shardwright.nn.optimizers import Optimizer, Parameters, Rate
from shardwright.operators.models.loss_scale import SCALES
from shardwright.ops.primitive import OnAnyDevice

_UNDECAYED = ("beta", "gamma")


class _Scaled(Optimizer):
    """An optimizer that divides gradients by a loss scale.

    A subclass may override `construct`, which is what the optimizer does when it is applied.
    """

    _support_parallel_optimizer = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        with as_mindspore():
            self._check_division()

    def _check_division(self) -> None:
        """Refuse to be divided among ranks where MindSpore does not divide optimizers.

        Raises
        ------
        ModelError
            If the context asks for it.
        """
        get = get_auto_parallel_context
        mode, target = get("parallel_mode"), get_context("device_target")
        if not get("enable_parallel_optimizer") or splits_operators():
            return
        why = ""
        if mode != ParallelMode.DATA_PARALLEL:
            why = f"in `{mode}`, expected `data_parallel` or a mode that splits operators"
        elif target == "GPU":
            why = f"on `{target}` in `{mode}`, expected `Ascend`"
        elif target == "Ascend" and not self._support_parallel_optimizer:
            why = f"for `{type(self).__name__}` in `{mode}`, expected `Lamb` or `AdamWeightDecay`"
        elif target == "Ascend" and len(self._settings) < get("device_num"):
            count, ranks = len(self._settings), get("device_num")
            why = f"for {count} parameters on {ranks} ranks, expected one for each rank or more"
        if why:
            raise ModelError(
                f"`enable_parallel_optimizer` is True {why}: MindSpore divides no states there",
                hint="set it to False, or `parallel_mode` to `semi_auto_parallel`",
            )

    def construct(self, gradients: Any) -> None:
        """Update the parameters."""
        super().__call__(gradients)

    def __call__(self, gradients: Any) -> None:
        """Update the parameters as `construct` does."""
        self.construct(gradients)

    def _set_loss_scale(self, loss_scale: float) -> None:
        SCALES.check("loss_scale", loss_scale)
        self.loss_scale = float(loss_scale)


class _Filtered(_Scaled):
    """An optimizer that leaves the scales and shifts of normalizations without weight decay."""

    def _add(self, parameters: Any, own: dict[str, Attribute]) -> None:
        decay = self.group_settings.get("weight_decay", "weight_decay")
        parameters = list(parameters)
        if self.is_grouped or not self.rule.settings.get(decay):
            super()._add(parameters, own)
            return
        for parameter in parameters:
            left_out = any(word in getattr(parameter, "name", "") for word in _UNDECAYED)
            super()._add([parameter], {decay: 0.0} if left_out else own)


class _OfRows:
    """What scripts say of the device that updates rows of tables: it is that of the program."""

    sparse_opt = OnAnyDevice()

    @property
    def target(self) -> str:
        """The device that updates parameters."""
        return str(get_context("device_target"))

    @target.setter
    def target(self, value: str) -> None:
        self.sparse_opt.set_device(value)


def _refuse(name: str, expected: object, **arguments: object) -> None:
    """Refuse arguments that have another value than the only one that is supported.

    Raises
    ------
    OptionError
        If one has.
    """
    for argument, value in arguments.items():
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            hint = f"leave it out: `{name}` has no other"
            raise wrong_value(argument, value, str(expected), hint)


class SGD(_Filtered, nn.SGD):
    """Stochastic gradient descent; see `shardwright.nn.SGD`."""

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        self._set_loss_scale(loss_scale)
        super().__init__(params, learning_rate, momentum, weight_decay, nesterov, dampening)


class Momentum(_Filtered, nn.Momentum):
    """Gradient descent with momentum; see `shardwright.nn.Momentum`."""

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
    ) -> None:
        self._set_loss_scale(loss_scale)
        super().__init__(params, learning_rate, momentum, weight_decay, use_nesterov)


class AdamWeightDecay(_Filtered, nn.AdamWeightDecay):
    """Adam with weight decay apart, and without correction of the bias of its moments."""

    _support_parallel_optimizer = True

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, learning_rate, beta1, beta2, eps, weight_decay)

    def _more(self) -> dict[str, Attribute]:
        return {"bias_correction": "none"}


class Adam(_OfRows, _Filtered, nn.Adam):
    """Adam; ``weight_decay`` times a parameter is added to its gradient.

    The bias of the moments is corrected in the learning rate, so ``eps`` is added as it is. For
    ``use_lazy`` see `LazyAdam`; ``use_locking`` and ``use_offload`` must be False.
    """

    group_settings: ClassVar = nn.Adam.group_settings
    _lazy = False

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
        use_amsgrad: bool = False,
        use_lazy: bool = False,
        use_offload: bool = False,
    ) -> None:
        name = type(self).__name__
        _refuse(name, False, use_locking=use_locking, use_offload=use_offload)
        check_flag("use_nesterov", use_nesterov)
        self._set_loss_scale(loss_scale)
        self._lazy, self._nesterov = self._lazy or use_lazy, use_nesterov
        if use_amsgrad and (self._lazy or use_nesterov):
            raise wrong_value("use_amsgrad", True, "False with `use_lazy` or `use_nesterov`")
        super().__init__(params, learning_rate, beta1, beta2, eps, weight_decay, use_amsgrad)

    def _more(self) -> dict[str, Attribute]:
        flags = {"lazy": self._lazy, "nesterov": self._nesterov}
        return {"bias_correction": "rate", **{name: True for name in flags if flags[name]}}


class LazyAdam(Adam):
    """Adam that updates the touched rows of tables alone; see `shardwright.nn.LazyAdam`."""

    _lazy = True

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        use_locking: bool = False,
        use_nesterov: bool = False,
        weight_decay: float = 0.0,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(
            params,
            learning_rate,
            beta1,
            beta2,
            eps,
            use_locking,
            use_nesterov,
            weight_decay,
            loss_scale,
        )


class FTRL(_OfRows, _Scaled, nn.FTRL):
    """Follow the regularized leader; see `shardwright.nn.FTRL`."""

    def __init__(
        self,
        params: Parameters,
        initial_accum: float = 0.1,
        learning_rate: Rate = 0.001,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        use_locking: bool = False,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _refuse("FTRL", False, use_locking=use_locking)
        self._set_loss_scale(loss_scale)
        super().__init__(params, initial_accum, learning_rate, lr_power, l1, l2, weight_decay)


class AdaFactor:
    """Refused: no state of an optimizer is of the rows and columns of a parameter here."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        raise OptionError(
            "`AdaFactor` is not supported: states of an optimizer have the shapes of parameters",
            hint="use `AdamWeightDecay`, and divide its states with `enable_parallel_optimizer`",
        )


class Adagrad(_Filtered, nn.Adagrad):
    """Adagrad; see `shardwright.nn.Adagrad`."""

    def __init__(
        self,
        params: Parameters,
        accum: float = 0.1,
        learning_rate: Rate = 0.001,
        update_slots: bool = True,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _refuse("Adagrad", True, update_slots=update_slots)
        self._set_loss_scale(loss_scale)
        super().__init__(params, accum, learning_rate, weight_decay)


class LARS(_Scaled, nn.LARS):
    """LARS round `SGD` or `Momentum`; see `shardwright.nn.LARS`."""

    def __init__(self, optimizer: Optimizer, *arguments: Any, **settings: Any) -> None:
        own = getattr(type(optimizer), "construct", _Scaled.construct)
        if own is not _Scaled.construct:
            hint = "override that of `LARS`"
            raise wrong_value("optimizer", optimizer, "one without a `construct` of its own", hint)
        super().__init__(optimizer, *arguments, **settings)


class Lamb(_Filtered, nn.Lamb):
    """LAMB; see `shardwright.nn.Lamb`."""

    _support_parallel_optimizer = True


class RMSProp(_Filtered, nn.RMSProp):
    """RMSProp, whose means of squares begin with one; see `shardwright.nn.RMSProp`."""

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 0.1,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        loss_scale: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        _refuse("RMSProp", False, use_locking=use_locking)
        self._set_loss_scale(loss_scale)
        own = (decay, momentum, epsilon, weight_decay, 1.0, centered)
        super().__init__(params, learning_rate, *own)


__all__ = [
    "FTRL",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamWeightDecay",
    "Lamb",
    "LazyAdam",
    "Momentum",
    "RMSProp",
]
