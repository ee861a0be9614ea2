"""LARS: an optimizer whose gradients are as long as the norms of their parameters say."""

from collections.abc import Callable

from shardwright.ir.values import check_type, wrong_value
from shardwright.nn.optimizers import Optimizer
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.parameter import Parameter

_WRAPPED = ("sgd", "momentum")


def adapts(parameter: Parameter) -> bool:
    """Return whether LARS changes the gradient of a parameter: of no bias or layer norm."""
    return "LayerNorm" not in parameter.name and "bias" not in parameter.name


class LARS(Optimizer):
    """LARS (You et al., 2017) round an optimizer: its gradients, in the norms of their parameters.

    A gradient g of a parameter p with the weight decay d of the optimizer becomes ``coefficient``
    norm(p) / (norm(g) + d norm(p) + ``epsilon``) (g + d p). A parameter that is split is gathered
    for its update, and its states are whole.

    Parameters
    ----------
    optimizer : SGD or Momentum
        Steps along the changed gradients.
    epsilon : float
        Added to the divisor.
    coefficient : float
        Share of the norm of a parameter that a gradient has, at most.
    use_clip : bool
        Whether the factor is divided by the learning rate, and at most 1.
    lars_filter : callable
        Returns of a parameter whether its gradient is changed; others have no weight decay.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        epsilon: float = 1e-5,
        coefficient: float = 0.001,
        use_clip: bool = False,
        lars_filter: Callable[[Parameter], bool] = adapts,
    ) -> None:
        if not isinstance(optimizer, Optimizer) or optimizer.rule.kind not in _WRAPPED:
            hint = "LARS has no other optimizer inside"
            raise wrong_value("optimizer", optimizer, "`SGD` or `Momentum`", hint)
        check_type("lars_filter", lars_filter, Callable)
        own = {"epsilon": epsilon, "coefficient": coefficient, "clip": use_clip}
        self.rule = Rule("lars", {"momentum": 0.0, **optimizer.rule.settings, **own})
        self._settings = [
            (parameter, settings if lars_filter(parameter) else {**settings, "adapts": False})
            for parameter, settings in optimizer._settings
        ]
        self._eager = None
        self.is_grouped = optimizer.is_grouped
        self.loss_scale = optimizer.loss_scale


__all__ = ["LARS"]
