"""Values of parameters: how they begin, such as ``normal(0.02)``, and who keeps them."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from shardwright.ir.types import TensorType
from shardwright.ir.values import SEED, checked
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


@dataclass(frozen=True)
class Initializer:
    """An initializer as an object, such as MindSpore's ``XavierUniform()``.

    Parameters
    ----------
    text : str
        One of the texts that `operators.random.initial_value` understands.
    """

    text: str


Init = str | float | Initializer
# Names without the underscores of ours, and MindSpore's shorter ones.
_NAMES = {
    "zero": "zeros",
    "one": "ones",
    "truncatednormal": "truncated_normal",
    "xavieruniform": "xavier_uniform",
    "xaviernormal": "xavier_normal",
    "heuniform": "he_uniform",
    "henormal": "he_normal",
}


def _text(init: Init) -> str:
    if isinstance(init, Initializer):
        return init.text
    if not isinstance(init, str):
        return f"constant({float(init)!r})"
    name, bracket, rest = init.lower().partition("(")
    return _NAMES.get(name, name) + bracket + rest


@checked
def initializer(
    init: Init,
    shape: int | tuple[int, ...] | list[int],
    dtype: str = "float32",
) -> Initial:
    """Return the initial value of a tensor.

    Parameters
    ----------
    init : str, float or Initializer
        A number, or one of the texts that `operators.random.initial_value` understands; MindSpore's
        names without underscores are the same: ``XavierUniform``.
    shape : int or sequence of int
        Shape of the tensor.
    dtype : str
        Element type.

    Raises
    ------
    IRError
        If there is no such initializer, or no tensor of this shape.
    """
    kind = TensorType(dtype, (shape,) if isinstance(shape, int) else tuple(shape))
    text = _text(init)
    nothing = [slice(0, 0)] * kind.rank
    initial_value(text, "", 0, kind.shape, nothing, "float32")  # raises for an unknown text
    return Initial(text, kind)


class Keeper(Protocol):
    """Keeps the values of parameters while they are trained."""

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter."""

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value."""
