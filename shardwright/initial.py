"""Values of parameters: how they begin, such as ``normal(0.02)``, and who keeps them."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from shardwright.ir.types import TensorType
from shardwright.ir.values import SEED
from shardwright.operators.info import Array
from shardwright.operators.models.random import initial_value

_SEED: ContextVar[int] = ContextVar("seed", default=0)


def set_seed(seed: int) -> None:
    """Set the seed of the initial values of networks that are run outside of a training step."""
    SEED.check("seed", seed)
    _SEED.set(seed)


def get_seed() -> int:
    """Return the seed of `set_seed`, or 0."""
    return _SEED.get()


@dataclass(frozen=True)
class Initial:
    """The initial value of a tensor of a given type.

    Parameters
    ----------
    text : str
        One of the texts that `operators.random.initial_value` understands.
    type : TensorType
        The type of the tensor.
    """

    text: str
    type: TensorType


def initializer(
    init: str | float, shape: int | tuple[int, ...] | list[int], dtype: str = "float32"
) -> Initial:
    """Return the initial value of a tensor.

    Parameters
    ----------
    init : str or float
        A number, or one of the texts that `operators.random.initial_value` understands.
    shape : int or sequence of int
        Shape of the tensor.
    dtype : str
        Element type.

    Raises
    ------
    IRError
        If there is no such initializer.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    text = init.lower() if isinstance(init, str) else f"constant({float(init)!r})"
    nothing = [slice(0, 0)] * len(sizes)
    initial_value(text, "", 0, sizes, nothing, "float32")  # raises for an unknown text
    return Initial(text, TensorType(dtype, sizes))


class Keeper(Protocol):
    """Keeps the values of parameters while they are trained."""

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter."""

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value."""
