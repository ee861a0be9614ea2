"""Operators as primitives, with MindSpore's arguments."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import Any

from shardwright import ops as own
from shardwright.ir.values import wrong_value
from shardwright.mindspore.calls import called
from shardwright.mindspore.errors import as_mindspore
from shardwright.mindspore.ops import (
    adapted,
    arrays,
    convolutions,
    functions,
    losses,
    messages,
    primitives,
    products,
    reductions,
    resizing,
    sampling,
    updates,
)
from shardwright.mindspore.ops.formulas import FORMULAS, SAME
from shardwright.mindspore.ops.functional import Depend, Shape
from shardwright.mindspore.ops.refusals import check_split
from shardwright.mindspore.ops.shapes import SHAPES

_PARTS = (
    adapted,
    functions,
    losses,
    primitives,
    products,
    arrays,
    convolutions,
    messages,
    reductions,
    resizing,
    sampling,
    updates,
)
_OWN = FORMULAS | SHAPES
_OWN |= {name: getattr(part, name) for part in reversed(_PARTS) for name in part.__all__}
_RAISING = ("__init__", "shard", "add_prim_attr", "set_device")
__all__ = ["Depend", "Shape"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"no operator is called `{name}`")
    name = SAME.get(name, name)
    item = _OWN[name] if name in _OWN else getattr(own, name)
    return _as_mindspore(item) if isinstance(item, type) else item


@cache
def _as_mindspore(kind: type) -> type:
    """Return a primitive whose constructor and `shard` raise errors that MindSpore raises, too."""
    known = {name: _raising(getattr(kind, name)) for name in _RAISING if hasattr(kind, name)}
    known["__init__"] = _remembering(known["__init__"])
    known["__call__"] = _noted(kind)
    if "shard" in known:
        known["shard"] = _raising(_with_operands(kind))
    named = {"__doc__": kind.__doc__, "__module__": __name__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), known | named)


def _with_operands(kind: Any) -> Callable[..., Any]:
    """Return the `shard` of a primitive, which needs the slices of operands."""

    @wraps(kind.shard)
    def shard(self: Any, in_strategy: Any = None, out_strategy: Any = None) -> Any:
        if in_strategy is None and out_strategy is not None:
            raise wrong_value("out_strategy", out_strategy, "None without `in_strategy`")
        return kind.shard(self, in_strategy, out_strategy)

    return shard


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor that keeps what it was given, which is listed of a program."""
    wanted = signature(function)

    @wraps(function)
    def remembering(self: Any, *arguments: Any, **named: Any) -> None:
        function(self, *arguments, **named)
        bound = wanted.bind(self, *arguments, **named)
        bound.apply_defaults()
        self.given = dict([*bound.arguments.items()][1:])

    return remembering


def _noted(kind: Any) -> Callable[..., Any]:
    """Return the call of a primitive, whose operators are noted as one of MindSpore's."""

    @wraps(kind.__call__)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        inputs = (*arguments, *named.values())
        with called(kind.__name__, inputs, getattr(self, "given", {})):
            made = kind.__call__(self, *arguments, **named)
        check_split(kind.__name__, self, inputs, made)
        return made

    return noted


def _raising(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def raising(*arguments: Any, **named: Any) -> Any:
        with as_mindspore():
            return function(*arguments, **named)

    return raising
