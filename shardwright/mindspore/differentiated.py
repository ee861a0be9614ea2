"""What a program is differentiated by, and what stands for its gradients while it is traced."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from shardwright.gradients import Gradients
from shardwright.mindspore.context import arrives_whole
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import current_tracer


@dataclass
class Differentiated:
    """What a function is differentiated by that is traced alone, and what it returned.

    Parameters
    ----------
    outputs : list
        What the differentiated functions returned.
    inputs : list of str
        Names of the inputs to differentiate by.
    weighing : list of str
        Names of the inputs that weigh what is differentiated, which are split as it.
    weights : list of Parameter
        The parameters to differentiate by.
    runs : bool
        Whether the program is run: what stands for a gradient cannot be computed with.
    """

    outputs: list[Any] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    weighing: list[str] = field(default_factory=list)
    weights: list[Parameter] = field(default_factory=list)
    runs: bool = False


@dataclass(frozen=True)
class OneGradient(Gradients):
    """Stands for the gradient of a single parameter."""


@dataclass(frozen=True)
class InputGradient:
    """Stands for the gradient by an input; it has a value when the program was run.

    Parameters
    ----------
    name : str
        The input.
    """

    name: str


_ALONE: ContextVar[Differentiated | None] = ContextVar("differentiated alone", default=None)


@contextmanager
def differentiated_alone(runs: bool = False) -> Iterator[Differentiated]:
    """Note what is differentiated in a trace, and by what; `runs` is that of `Differentiated`."""
    noted = Differentiated(runs=runs)
    token = _ALONE.set(noted)
    try:
        yield noted
    finally:
        _ALONE.reset(token)


def being_differentiated() -> Differentiated | None:
    """Return what the present trace notes; None in a training step of our own."""
    return _ALONE.get()


def as_they_arrive(inputs: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return inputs, of which those at some positions are read whole, where they arrive whole.

    They are parameters of what is compiled alone, which would be stored as operators read them.
    """
    tracer = current_tracer()
    names = {value.name for value in tracer.inputs} if arrives_whole() else set()
    read = [*inputs]
    for i in positions:
        if isinstance(read[i], Tensor) and (value := read[i].value(tracer)).name in names:
            read[i] = TracedTensor(tracer.pinned(value, (1,) * value.type.rank))
    return read
