"""How parameters begin: a type, and a text such as ``normal(0.02)`` that a runtime understands."""

from dataclasses import dataclass

from shardwright.ir.types import TensorType
from shardwright.operators.models.random import initial_value


@dataclass(frozen=True)
class Initial:
    """How a tensor of a given type begins.

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
    """Return how a tensor begins.

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
    initial_value(text, "", 0, sizes, nothing, "float32")  # refuses what it does not know
    return Initial(text, TensorType(dtype, sizes))
