"""Functional training steps: ``value_and_grad``.

The compiler differentiates the traced forward program, so gradients are a token here that an
optimizer takes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_flag
from shardwright.tensor import Parameter, Tensor
from shardwright.tracer import current_tracer

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Gradients:
    """The token that `value_and_grad` returns for the gradients.

    Parameters
    ----------
    weights : tuple of Parameter, optional
        The parameters to differentiate by; by default those of the optimizer.
    """

    weights: tuple[Parameter, ...] | None = None


@dataclass(frozen=True)
class ValueAndGrad:
    """A function that also returns the gradients of its loss.

    Parameters
    ----------
    function : callable
        Returns a loss, or with `has_aux` a tuple that begins with it.
    weights : tuple of Parameter, optional
        The parameters to differentiate by; by default those of the optimizer.
    has_aux : bool
        Whether the function returns more than the loss.
    """

    function: Callable[..., Any]
    weights: tuple[Parameter, ...] | None = None
    has_aux: bool = False

    def __call__(self, *inputs: Any) -> tuple[Any, Gradients]:
        """Return the value of the function, and its gradients.

        Raises
        ------
        ModelError
            If `has_aux` does not fit what the function returns.
        """
        tracer = current_tracer()
        outputs = self.function(*inputs)
        if isinstance(outputs, tuple) != self.has_aux:
            kind = f"{len(outputs)} values" if isinstance(outputs, tuple) else "one value"
            raise ModelError(
                f"`value_and_grad` is called with has_aux={self.has_aux}, and its function returns "
                f"{kind}",
                hint="use `has_aux=True` for a function that returns a tuple with its loss first",
            )
        loss = outputs[0] if isinstance(outputs, tuple) else outputs
        if isinstance(loss, Tensor):
            tracer.differentiate(loss.value(tracer).name)
        return outputs, Gradients(self.weights)


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: None = None,
    weights: Iterable[Parameter] | None = None,
    has_aux: bool = False,
) -> ValueAndGrad:
    """Return a function that also returns the gradients of the loss by the parameters.

    Parameters
    ----------
    fn : callable
        Returns a loss, or with `has_aux` a tuple that begins with it.
    grad_position : None
        Must be None: gradients by inputs are not supported.
    weights : iterable of Parameter, optional
        The parameters to differentiate by; by default all that the optimizer updates.
    has_aux : bool
        Whether `fn` returns more than the loss.

    Raises
    ------
    ModelError
        If a gradient by an input is asked for.
    """
    if grad_position is not None:
        raise ModelError(
            f"the gradient by the inputs {grad_position} is wanted, only parameters have gradients",
            hint="give `None` for `grad_position`",
        )
    check_flag("has_aux", has_aux)
    return ValueAndGrad(fn, None if weights is None else tuple(weights), has_aux)


def jit(function: Function) -> Function:
    """Return the function unchanged: every traced function is compiled."""
    return function
