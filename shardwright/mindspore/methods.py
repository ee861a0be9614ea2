"""Functions of `ops` that are methods of tensors, as in MindSpore: those of ``methods.txt``."""

import inspect
from collections.abc import Callable
from importlib.resources import files
from operator import index
from typing import Any

from shardwright.mindspore.forms import METHODS, PROPERTIES
from shardwright.mindspore.ops import functional
from shardwright.operators.info import operator_class
from shardwright.tensor import Tensor

# What a dimension, and keeping it, are called by one function or another.
_SAME = ({"axis", "dim"}, {"keepdims", "keep_dims", "keepdim"})


def calling(name: str) -> Callable[..., Any]:
    """Return a function that calls one of `ops`, whatever it calls a dimension."""

    def method(self: Tensor, *arguments: Any, **named: Any) -> Any:
        function = getattr(functional, name)
        known = _arguments(function)
        renamed = {_known(given, known): value for given, value in named.items()}
        return function(self, *arguments, **renamed)

    method.__name__ = name
    method.__doc__ = f"Return `ops.{name}` of the tensor."
    return method


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    operator = getattr(function, "operator", None)
    if operator is not None:
        return tuple(operator_class(operator).defaults)
    return tuple(inspect.signature(function).parameters)


def _known(given: str, known: tuple[str, ...]) -> str:
    names = next((names for names in _SAME if given in names and given not in known), {given})
    return next((name for name in known if name in names), given)


def _where(self: Tensor, condition: Tensor, y: Any) -> Tensor:
    """Return elements of the tensor where a condition holds, of the other elsewhere."""
    made: Tensor = functional.where(condition, self, y)
    return made


def _index(self: Tensor) -> int:
    """Return a whole number, which arrays and lists take as a place."""
    return index(self.asnumpy()[()])


def add_methods() -> None:
    """Give tensors the methods that they do not have."""
    Tensor.where = _where  # type: ignore[attr-defined]
    Tensor.__index__ = _index  # type: ignore[attr-defined]
    names = (files(__package__) / "methods.txt").read_text("utf-8")
    methods: dict[str, Any] = {**{name: calling(name) for name in names.split()}, **METHODS}
    methods |= {name: property(of) for name, of in PROPERTIES.items()}
    for name, method in methods.items():
        if not hasattr(Tensor, name):
            setattr(Tensor, name, method)
