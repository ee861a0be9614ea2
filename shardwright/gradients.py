"""Training steps written out: ``value_and_grad`` and the functions a step is made of.

Gradients are made by the compiler from the traced forward program, so that here they are a token
which an optimizer takes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwright.ir.errors import ModelError
from shardwright.tensor import Parameter
from shardwright.tracer import current_tracer

Function = TypeVar("Function", bound=Callable[..., Any])


class Gradients:
    """What `value_and_grad` returns for the gradients."""


@dataclass(frozen=True)
class ValueAndGrad:
    """A function that returns also the gradients of its loss.

    Parameters
    ----------
    function : callable
        Returns a loss, or a tuple that begins with it.
    """

    function: Callable[..., Any]

    def __call__(self, *inputs: Any) -> tuple[Any, Gradients]:
        """Return what the function returns, and its gradients."""
        current_tracer()  # refuse to be called outside a trace
        return self.function(*inputs), Gradients()


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: None = None,
    weights: Iterable[Parameter] | None = None,
    has_aux: bool = False,
) -> ValueAndGrad:
    """Return a function that returns also the gradients of the loss by the parameters.

    Parameters
    ----------
    fn : callable
        Returns a loss, or with `has_aux` a tuple that begins with it.
    grad_position : None
        Inputs by which the loss is differentiated; none.
    weights : iterable of Parameter, optional
        Taken as in MindSpore; the optimizer says which parameters are trained.
    has_aux : bool
        Whether `fn` returns more than the loss.

    Raises
    ------
    ModelError
        If the gradient by an input is wanted.
    """
    if grad_position is not None:
        raise ModelError(
            f"the gradient by the inputs {grad_position} is wanted, only parameters have gradients",
            hint="give `None` for `grad_position`",
        )
    return ValueAndGrad(fn)


def jit(function: Function) -> Function:
    """Return the function as it is: whatever is traced is compiled."""
    return function
