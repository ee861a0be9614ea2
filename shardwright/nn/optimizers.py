"""Optimizers: which rule updates which parameters."""

from collections.abc import Iterable

from shardwright.gradients import Gradients
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Attribute
from shardwright.passes.optimizer import Kind
from shardwright.passes.optimizer import Optimizer as Rule
from shardwright.tensor import Parameter
from shardwright.tracer import current_tracer


class Optimizer:
    """A rule of update and the parameters it is for.

    Parameters
    ----------
    params : iterable of Parameter
        The parameters; all others stay as they are.
    kind : str
        The rule.
    **settings
        Its numbers.
    """

    def __init__(self, params: Iterable[Parameter], kind: Kind, **settings: Attribute) -> None:
        self.parameters = tuple(params)
        if not self.parameters:
            raise ModelError(f"the optimizer `{kind}` has no parameters")
        rate = settings["learning_rate"]
        if not isinstance(rate, (int, float)):
            raise ModelError(f"the learning rate is {rate!r}, it must be a number")
        self.rule = Rule(kind, settings)

    def __call__(self, gradients: object) -> None:
        """Update the parameters, in a training step that is being traced.

        Raises
        ------
        ModelError
            If the gradients are not those of `value_and_grad`.
        """
        if not isinstance(gradients, Gradients):
            raise ModelError(
                f"an optimizer is given {type(gradients).__name__}, it takes what `value_and_grad` "
                f"returns as gradients"
            )
        current_tracer().train(self.rule, self.parameters)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if it is not zero."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        settings = {"learning_rate": learning_rate, "weight_decay": weight_decay}
        if momentum:
            super().__init__(params, "momentum", momentum=momentum, nesterov=nesterov, **settings)
        else:
            super().__init__(params, "sgd", **settings)


class Momentum(Optimizer):
    """Gradient descent with momentum."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float,
        momentum: float,
        weight_decay: float = 0.0,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(
            params,
            "momentum",
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=use_nesterov,
            weight_decay=weight_decay,
        )


class AdamWeightDecay(Optimizer):
    """Adam (Kingma and Ba, 2015), with weight decay apart (Loshchilov and Hutter, 2019)."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params,
            "adam",
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=eps,
            weight_decay=weight_decay,
        )


class Adam(AdamWeightDecay):
    """Adam (Kingma and Ba, 2015)."""

    def __init__(
        self,
        params: Iterable[Parameter],
        learning_rate: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, learning_rate, beta1, beta2, eps)
