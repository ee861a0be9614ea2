"""Networks and operators outside of a training step: run at once, on one device, for their values.

What is applied is traced like a model, and the program runs on the values of its constants and
parameters; a parameter without a value gets the one that training would begin with.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.ir.values import SEED
from shardwright.operators.info import Array
from shardwright.operators.models.random import initial_value
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tracer import Tracer

_SEED: ContextVar[int] = ContextVar("seed", default=0)


def set_seed(seed: int) -> None:
    """Set the seed of the initial values of networks that are run outside of a training step."""
    SEED.check("seed", seed)
    _SEED.set(seed)


def get_seed() -> int:
    """Return the seed of `set_seed`, or 0."""
    return _SEED.get()


def values_of(
    tracer: Tracer, outputs: Sequence[Value], parameters: Mapping[str, Array]
) -> list[Array]:
    """Return the values of what was traced.

    Parameters
    ----------
    tracer : Tracer
        The tracer, which has recorded a program without inputs.
    outputs : sequence of Value
        The values that are asked for.
    parameters : mapping of str to array
        Values of parameters by name; the others are drawn.
    """
    graph = tracer.graph("eager", tuple(dict.fromkeys(value.name for value in outputs)))
    communicator = LocalCommunicator()
    state = initialize(graph, get_seed(), communicator, {**tracer.initial, **parameters})
    found = Executor(graph, communicator).step({}, state).outputs
    return [found[value.name][0] for value in outputs]


def drawn(name: str, initializer: str, kind: TensorType) -> Array:
    """Return the value that a parameter would begin with, in a network on its own."""
    whole = [slice(0, size) for size in kind.shape]
    dtype = numpy_dtype(kind.dtype)
    return initial_value(initializer, name, get_seed(), kind.shape, whole, dtype)
