"""Functional training steps: ``value_and_grad``.

The compiler differentiates the traced forward program, so gradients are a token here that an
optimizer takes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shardwright.communication import (
    WORLD_AXIS,
    WORLD_GROUPS,
    get_group_size,
    groups_of,
    processes,
)
from shardwright.ir.errors import ModelError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.values import check_flag, check_type
from shardwright.operators.models.optimizer import CLIP_NORM, Optimizer
from shardwright.parameter import Parameter
from shardwright.runtime import MpiCommunicator
from shardwright.tensor import Tensor
from shardwright.tracer import current_tracer, is_tracing

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Gradients:
    """The token that `value_and_grad` returns for the gradients.

    Parameters
    ----------
    weights : tuple of Parameter, optional
        The parameters to differentiate by; by default those of the optimizer.
    clip_norm : float, optional
        The greatest norm of all of them together, to which an optimizer scales them down.
    """

    weights: tuple[Parameter, ...] | None = None
    clip_norm: float | None = None

    def clip(self, rule: Optimizer, loss_scale: float) -> Optimizer:
        """Return a rule that clips them before it divides them by a loss scale."""
        if self.clip_norm is None:
            return rule
        return replace(rule, settings={**rule.settings, CLIP_NORM: self.clip_norm / loss_scale})


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
            If it is called outside of a training step, or `has_aux` does not fit what the function
            returns.
        """
        if not is_tracing():
            raise ModelError(
                "the function of `value_and_grad` is called outside of a training step",
                hint="write `@jit` before the function that calls it and the optimizer",
            )
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
    check_type("fn", fn, Callable)
    check_type("weights", weights, Iterable[Parameter] | None)
    return ValueAndGrad(fn, None if weights is None else tuple(weights), has_aux)


class DistributedGradReducer:
    """Averages the gradients of all ranks, or adds them up, in a hand-written training step.

    The gradients of a step are those of the mean of the losses of all ranks, or of their sum.

    Parameters
    ----------
    parameters : iterable of Parameter
        The parameters; all that the optimizer updates are reduced.
    mean : bool, optional
        Whether to average; True if not given.
    degree : int, optional
        What sums are divided by: the number of ranks.
    fusion_type : int
        Must be 1: gradients are reduced as the options of the compilation say.
    group : str
        The group of all ranks.

    Raises
    ------
    ModelError
        If another group or degree is asked for.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        mean: bool | None = None,
        degree: int | None = None,
        fusion_type: int = 1,
        group: str = WORLD_GROUPS[0],
    ) -> None:
        self._parameters = tuple(parameters)
        self._mean = True if mean is None else mean
        check_flag("mean", self._mean)
        if fusion_type != 1:
            raise ModelError(f"`fusion_type` is {fusion_type}, expected 1")
        if degree not in (None, get_group_size()):
            raise ModelError(
                f"`degree` is {degree}, expected the number of ranks, {get_group_size()}"
            )
        if get_group_size() > 1 and groups_of(group, get_group_size()):
            raise ModelError(
                f"gradients are to be reduced over the group `{group}`, expected all ranks",
                hint="leave `group` out; parameters of each rank alone are `layerwise_parallel`",
            )

    def __call__(self, gradients: Any) -> Any:
        """Reduce the gradients of `value_and_grad`; those of processes that have values at once.

        Raises
        ------
        ModelError
            If they are no gradients.
        """
        if not is_tracing() and are_values(gradients):
            return self._of_processes(gradients)
        if not isinstance(gradients, Gradients):
            raise ModelError(
                f"`DistributedGradReducer` is given {type(gradients).__name__}, it takes what "
                f"`value_and_grad` returns as gradients"
            )
        if gradients.clip_norm is not None:
            raise ModelError(
                "gradients are clipped before `DistributedGradReducer` has them, expected after it",
                hint="clip what it returns: the norm is that of the reduced gradients",
            )
        current_tracer().reduce_gradients(mean=self._mean)
        return gradients

    def _of_processes(self, gradients: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return the sums or means over the processes, added in their order."""
        started = processes()
        if started is None:
            return tuple(gradients)
        communicator = MpiCommunicator(Mesh((MeshAxis(WORLD_AXIS, started.size),)))
        reduced = []
        for gradient in gradients:
            parts = communicator.collect({started.rank: gradient.asnumpy()})
            total = sum(parts[rank] for rank in sorted(parts))
            reduced.append(Tensor(total / started.size if self._mean else total, gradient.dtype))
        return tuple(reduced)


def are_values(gradients: object) -> bool:
    """Return whether gradients are tensors with data."""
    return isinstance(gradients, tuple | list) and all(
        isinstance(item, Tensor) and item.array is not None for item in gradients
    )


def jit(function: Function) -> Function:
    """Return the function unchanged: every traced function is compiled."""
    return function
