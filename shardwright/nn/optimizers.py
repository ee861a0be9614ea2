"""Optimizers: which rule updates which parameters."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import numpy as np

from shardwright.gradients import Gradients, are_values
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.values import (
    NOT_NEGATIVE,
    SHARE,
    Range,
    check_flag,
    check_names,
    wrong_value,
)
from shardwright.nn.eager_updates import EagerUpdates
from shardwright.nn.rates import LearningRateSchedule, as_rate
from shardwright.operators.models.optimizer import (
    DECAY_OF_ADAMW,
    RULE,
    STEP,
    Kind,
    check_overrides,
)
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.operators.models.schedule import is_schedule, rate_at
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor
from shardwright.tracer import current_tracer, is_tracing

Parameters = Iterable[Parameter | Mapping[str, Any]]
Rate = float | str | LearningRateSchedule | Tensor | Iterable[float]


class Optimizer:
    """A rule of update and the parameters it is for.

    Parameters
    ----------
    params : iterable of Parameter or of mapping
        The parameters; all others stay as they are. Or groups of them, which may have settings of
        their own: ``{"params": [...], "lr": 0.01, "weight_decay": 0.0}``, and one
        ``{"order_params": [...]}``, whose parameters have those of no group too.
    kind : str
        The rule.
    **settings
        Its numbers. The ``learning_rate``, also that of a group, may be a schedule; see `as_rate`.

    Attributes
    ----------
    group_settings : mapping of str to str
        The settings that a group may have of its own: MindSpore's name, and ours.
    loss_scale : float
        What gradients are divided by.

    Raises
    ------
    ModelError
        If there are no parameters, one is given twice, or something else stands among them.
    OptionError
        If a setting has a value that is not allowed.
    """

    group_settings: ClassVar[Mapping[str, str]] = {
        "lr": "learning_rate",
        "weight_decay": "weight_decay",
    }
    loss_scale = 1.0

    def __init__(
        self, params: Parameters, kind: Kind, learning_rate: Rate, **settings: Attribute
    ) -> None:
        given = {"learning_rate": as_rate(learning_rate), **settings, **self._more()}
        self.rule = Rule(kind, given)
        self._settings: list[tuple[Parameter, dict[str, Attribute]]] = []
        self._eager: EagerUpdates | None = None
        items = [params] if isinstance(params, Parameter | Mapping) else list(params)
        grouped = [isinstance(item, Mapping) for item in items]
        if any(grouped) and not all(grouped):
            raise ModelError(
                "parameters and groups of parameters are given together",
                hint='put all into groups: `[{"params": [...], "lr": 0.01}, {"params": [...]}]`',
            )
        self.is_grouped = any(grouped)
        for group in items if self.is_grouped else [{"params": items}]:
            self._add_group(cast(Mapping[str, Any], group))
        if not self._settings:
            raise ModelError(f"the optimizer `{kind}` has no parameters")

    def _more(self) -> dict[str, Attribute]:
        """Return settings that the class has besides its arguments."""
        return {}

    def _add_group(self, group: Mapping[str, Any]) -> None:
        names = ("params", "order_params", "grad_centralization", *self.group_settings)
        check_names("a group of parameters has no", group, names)
        if group.get("grad_centralization", False):
            raise ModelError("gradients cannot be centralized", hint="leave it out")
        own = {self.group_settings[key]: group[key] for key in self.group_settings if key in group}
        if "learning_rate" in own:
            own["learning_rate"] = as_rate(own["learning_rate"])
        check_overrides(self.rule.kind, own)
        if "order_params" in group:
            known = {id(parameter) for parameter, _ in self._settings}
            self._add([p for p in group["order_params"] if id(p) not in known], {})
        elif "params" not in group:
            raise ModelError(f"a group of parameters has {tuple(group)}, but no `params`")
        else:
            self._add(group["params"], own)

    def _add(self, parameters: Iterable[object], own: dict[str, Attribute]) -> None:
        for parameter in parameters:
            if not isinstance(parameter, Parameter):
                raise ModelError(
                    f"an optimizer is given {type(parameter).__name__} among its parameters",
                    hint="give it `network.trainable_params()`",
                )
            if any(parameter is other for other, _ in self._settings):
                raise ModelError(f"an optimizer is given {parameter!r} twice")
            self._settings.append((parameter, own))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={_shown(v)}" for name, v in self.rule.settings.items())
        return f"<{type(self).__name__}: {len(self._settings)} parameters, {settings}>"

    @property
    def updates(self) -> list[tuple[Parameter, dict[str, Attribute]]]:
        """The parameters that are trained, each with the settings of its group."""
        return [(parameter, own) for parameter, own in self._settings if parameter.requires_grad]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that are trained."""
        return tuple(parameter for parameter, _ in self.updates)

    def get_lr(self) -> Tensor | tuple[Tensor, ...]:
        """Return the learning rate of the next step: one, or that of each parameter.

        In several processes every one takes part.
        """
        step = 0
        common = self.rule.settings["learning_rate"]
        rates = [own.get("learning_rate", common) for _, own in self.updates]
        if any(map(is_schedule, rates)):
            step = self._steps()
        tensors = tuple(Tensor(np.float32(rate_at(rate, step))) for rate in rates)
        return tensors[0] if len(set(rates)) == 1 else tensors

    def _steps(self) -> int:
        """Return the number of steps that were trained."""
        if self._eager is not None:
            return self._eager.steps
        kept = next((p.kept for p in self.parameters if p.kept is not None), None)
        return 0 if kept is None else int(kept[0].read(STEP))

    def __call__(self, gradients: object) -> None:
        """Update the parameters: in a training step that is being traced, or else at once.

        Raises
        ------
        ModelError
            If the gradients are not those of `value_and_grad`, or not of all the parameters.
        """
        if not is_tracing() and are_values(gradients):
            if self._eager is None:
                self._eager = EagerUpdates(self.rule, self.updates, self.loss_scale)
            self._eager(list(cast(Iterable[Tensor], gradients)))
            return
        if not isinstance(gradients, Gradients):
            raise ModelError(
                f"an optimizer is given {type(gradients).__name__}, it takes what `value_and_grad` "
                f"returns as gradients"
            )
        updates = self.updates
        if gradients.weights is not None:
            known = {id(parameter) for parameter in gradients.weights}
            missing = sum(id(parameter) not in known for parameter, _ in updates)
            if missing:
                raise ModelError(
                    f"an optimizer updates {missing} parameters that are not among the `weights` "
                    f"of `value_and_grad`",
                    hint="give both the same parameters",
                )
        current_tracer().train(gradients.clip(self.rule, self.loss_scale), updates, self.loss_scale)


def _shown(setting: Attribute) -> str:
    return f"{len(setting)} rates" if isinstance(setting, tuple) else str(setting)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is not zero.

    From the second step on, 1 less ``dampening`` of a gradient is added to the sum of gradients.
    """

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
    ) -> None:
        SHARE.check("dampening", dampening)
        if nesterov and dampening:
            raise wrong_value("dampening", dampening, "0 with `nesterov`")
        kind: Kind = "sgd"
        own: dict[str, Attribute] = {"weight_decay": weight_decay}
        if momentum:
            kind = "dampened" if dampening else "momentum"
            last = {"dampening": dampening} if dampening else {"nesterov": nesterov}
            own |= {"momentum": momentum, **last}
        super().__init__(params, kind, learning_rate, **own)


class Momentum(Optimizer):
    """Gradient descent with momentum."""

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate,
        momentum: float,
        weight_decay: float = 0.0,
        use_nesterov: bool = False,
    ) -> None:
        own: dict[str, Attribute] = {"momentum": momentum, "nesterov": use_nesterov}
        super().__init__(params, "momentum", learning_rate, weight_decay=weight_decay, **own)


class AdamWeightDecay(Optimizer):
    """Adam (Kingma and Ba, 2015), with weight decay apart (Loshchilov and Hutter, 2019)."""

    kind: ClassVar[Kind] = "adam"

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            self.kind,
            learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=eps,
            weight_decay=weight_decay,
        )


class AdamW(AdamWeightDecay):
    """Adam with weight decay apart, with PyTorch's defaults (Loshchilov and Hutter, 2019)."""

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = DECAY_OF_ADAMW,
    ) -> None:
        super().__init__(params, learning_rate, beta1, beta2, eps, weight_decay)


class AdamW8bit(AdamW):
    """`AdamW` whose states have 8 bits, in blocks of 256 numbers (Dettmers et al., 2022).

    Tensors of fewer than 4,096 elements, and those that no block of 256 numbers divides, have
    states of 32 bits.
    """

    kind: ClassVar[Kind] = "adam8bit"


class Muon(Optimizer):
    """Momentum whose matrices are orthogonalized (Jordan et al., 2024), as `torch.optim.Muon`.

    It updates the matrices between embeddings and heads; AdamW updates the other parameters. A
    group may say so itself: ``{"params": [...], "optimizer": "adam"}``, or ``"muon"``.

    Parameters
    ----------
    params
        As for `Optimizer`: all that are trained.
    learning_rate : Rate
        As for `Optimizer`.
    weight_decay : float
        Subtracted from the parameter, times the learning rate.
    momentum : float
        Share of the mean before in the mean of gradients.
    nesterov : bool
        Whether the direction of a step looks one gradient ahead.
    coefficients : tuple of float
        Those of x, x^3 and x^5 in an iteration of Newton and Schulz.
    eps : float
        The least norm that a matrix is divided by.
    iterations : int
        Number of iterations.
    adjustment : str
        How the rate follows the shape: ``original``, ``match_rms_adamw``, ``spectral_unclamped`` or
        ``none``.
    product_type : str
        The type of the products: ``bfloat16`` as in PyTorch, ``float32`` or ``float64``.
    adamw_learning_rate : Rate, optional
        That of AdamW; by default the same.
    adamw_weight_decay : float
        That of AdamW.
    """

    group_settings: ClassVar[Mapping[str, str]] = {**Optimizer.group_settings, RULE: RULE}

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        iterations: int = 5,
        adjustment: str = "original",
        product_type: str = "bfloat16",
        adamw_learning_rate: Rate | None = None,
        adamw_weight_decay: float = DECAY_OF_ADAMW,
    ) -> None:
        own: dict[str, Attribute] = {"adamw_weight_decay": adamw_weight_decay}
        if adamw_learning_rate is not None:
            own["adamw_learning_rate"] = as_rate(adamw_learning_rate)
        super().__init__(
            params,
            "muon",
            learning_rate,
            weight_decay=weight_decay,
            momentum=momentum,
            nesterov=nesterov,
            coefficients=coefficients,
            epsilon=eps,
            iterations=iterations,
            adjustment=adjustment,
            product_type=product_type,
            **own,
        )


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); ``weight_decay`` times a parameter is added to its gradient.

    With ``amsgrad`` the greatest mean of squares so far divides (Reddi et al., 2018).
    """

    group_settings: ClassVar[Mapping[str, str]] = {"lr": "learning_rate", "weight_decay": "l2"}

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        check_flag("amsgrad", amsgrad)
        NOT_NEGATIVE.check("weight_decay", weight_decay)
        own: dict[str, Attribute] = {"beta1": beta1, "beta2": beta2, "epsilon": eps}
        if weight_decay:
            own["l2"] = weight_decay
        super().__init__(params, "amsgrad" if amsgrad else "adam", learning_rate, **own)


class LazyAdam(Adam):
    """Adam that updates the touched rows of tables alone.

    Of a parameter that is only read by rows (`nn.Embedding`, `ops.gather`), the rows that a batch
    does not read keep their values and their states; so does an element whose gradient is zero.
    Other parameters are updated as by `Adam`.
    """

    def _more(self) -> dict[str, Attribute]:
        return {"lazy": True}


class FTRL(Optimizer):
    """Follow the regularized leader (McMahan et al., 2013).

    Parameters
    ----------
    params
        As for `Optimizer`.
    initial_accum : float
        What the sums of squared gradients begin with.
    learning_rate : Rate
        As for `Optimizer`; above 0 in every step.
    lr_power : float
        Minus the power of the sums that the learning rate is divided by.
    l1, l2 : float
        Strengths of the regularization.
    weight_decay : float
        Times a parameter it is added to the gradient.
    """

    def __init__(
        self,
        params: Parameters,
        initial_accum: float = 0.1,
        learning_rate: Rate = 0.001,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if lr_power not in Range() or lr_power > 0:
            raise wrong_value("lr_power", lr_power, "a number of at most 0")
        super().__init__(
            params,
            "ftrl",
            learning_rate,
            initial_accumulator=initial_accum,
            power=-lr_power,
            l1=l1,
            l2=l2,
            weight_decay=weight_decay,
        )


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011); `accum` is what the sums of squared gradients begin with."""

    def __init__(
        self,
        params: Parameters,
        accum: float = 0.1,
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.0,
    ) -> None:
        own = {"initial_accumulator": accum, "weight_decay": weight_decay}
        super().__init__(params, "adagrad", learning_rate, **own)


class Lamb(AdamWeightDecay):
    """LAMB (You et al., 2020): steps of Adam as long as the norm of each parameter says.

    A parameter that is split is gathered for its update, and its states are whole.
    """

    kind: ClassVar[Kind] = "lamb"

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, learning_rate, beta1, beta2, eps, weight_decay)


class RMSProp(Optimizer):
    """RMSProp (Tieleman and Hinton, 2012), with momentum.

    `initial_square` is what the means of squared gradients begin with. ``centered`` divides by the
    root of the variance in place of that of the mean of squares.
    """

    def __init__(
        self,
        params: Parameters,
        learning_rate: Rate = 0.1,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        weight_decay: float = 0.0,
        initial_square: float = 0.0,
        centered: bool = False,
    ) -> None:
        check_flag("centered", centered)
        super().__init__(
            params,
            "centered" if centered else "rmsprop",
            learning_rate,
            decay=decay,
            momentum=momentum,
            epsilon=epsilon,
            weight_decay=weight_decay,
            initial_square=initial_square,
        )
