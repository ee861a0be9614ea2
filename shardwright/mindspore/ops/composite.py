"""Functions of functions: `GradOperation`, and what is done to each of several tensors."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from shardwright.gradients import Gradients
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE, wrong_value
from shardwright.mindspore.gradients import GradOperation
from shardwright.mindspore.ops import functions
from shardwright.tensor import Tensor, apply

_KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "Number": (int, float),
    "Bool": (bool,),
    "Tuple": (tuple,),
    "List": (list,),
    "String": (str,),
    "Function": (),
}


class MultitypeFuncGraph:
    """A function with a body for each list of kinds of arguments.

    Parameters
    ----------
    name : str
        What the function is called.
    read_value : bool
        Has no meaning here: tensors are values.
    """

    def __init__(self, name: str, read_value: bool = False) -> None:
        self.name, self.entries = name, list[tuple[tuple[str, ...], Callable[..., Any]]]()

    def register(self, *kinds: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator of the body for kinds of arguments: ``Tensor``, ``Number``, ..."""

        def registered(body: Callable[..., Any]) -> Callable[..., Any]:
            self.entries.append((kinds, body))
            return body

        return registered

    def __call__(self, *arguments: Any) -> Any:
        """Call the body that was registered for the arguments.

        Raises
        ------
        ModelError
            If there is none.
        """
        for kinds, body in self.entries:
            if len(kinds) == len(arguments) and all(map(_is_kind, arguments, kinds)):
                return body(*arguments)
        given = tuple(type(argument).__name__ for argument in arguments)
        raise ModelError(f"`{self.name}` has no body for arguments of the types {given}")


def _is_kind(argument: object, kind: str) -> bool:
    if kind == "Function":
        return callable(argument) and not isinstance(argument, Tensor)
    if kind == "Number" and isinstance(argument, bool):
        return False
    return isinstance(argument, _KINDS.get(kind, ()))


class Map:
    """Calls a function on the first, second, ... items of tuples or lists.

    Parameters
    ----------
    ops : callable, optional
        The function; else it is given with the items.
    reverse : bool
        Has no meaning here: calls have no effects that depend on their order.
    """

    def __init__(self, ops: Callable[..., Any] | None = None, reverse: bool = False) -> None:
        self.ops, self.reverse = ops, reverse

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the results in a tuple.

        Raises
        ------
        ModelError
            If there are different numbers of items.
        """
        function, items = (
            (self.ops, arguments) if self.ops is not None else (arguments[0], arguments[1:])
        )
        if len({len(each) for each in items}) != 1:
            raise ModelError(
                f"`{type(self).__name__}` is given {[len(each) for each in items]} items, expected "
                f"as many of each"
            )
        return tuple(self._called(function, each) for each in zip(*items, strict=True))

    def _called(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        return function(*items)


class HyperMap(Map):
    """Calls a function on the items of tuples or lists, also on those within them."""

    def _called(self, function: Callable[..., Any], items: Sequence[Any]) -> Any:
        if all(isinstance(item, tuple | list) for item in items):
            return HyperMap(function)(*items)
        return function(*items)


def clip_by_global_norm(
    x: Sequence[Tensor] | Gradients, clip_norm: float = 1.0, use_norm: None = None
) -> tuple[Tensor, ...] | Gradients:
    """Return tensors times one factor, so that the norm of all is at most `clip_norm`.

    Gradients of a step that is traced are scaled before the optimizer updates by them.

    Raises
    ------
    ModelError
        If the gradients of a step that is traced are clipped twice.
    OptionError
        If the norm is not positive, or `use_norm` is given.
    """
    POSITIVE.check("clip_norm", clip_norm)
    if use_norm is not None:
        raise wrong_value("use_norm", use_norm, "none: the norm is that of `x`")
    if isinstance(x, Gradients):
        if x.clip_norm is not None:
            raise ModelError(
                f"gradients are clipped twice, to the norms {x.clip_norm:g} and {clip_norm:g}",
                hint="clip them once",
            )
        return replace(x, clip_norm=float(clip_norm))
    if not x or not all(isinstance(item, Tensor) for item in x):
        raise wrong_value("x", tuple(x), "a tuple or a list of tensors")
    squares = [(item.astype("float32") ** 2).sum() for item in x]
    norm = apply(
        "maximum", functions.sqrt(reduce(operator.add, squares)), Tensor(clip_norm, "float32")
    )
    return tuple((item * float(clip_norm) / norm).astype(item.dtype) for item in x)


def clip_by_norm(
    x: Tensor | Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Return a tensor, or several, times one factor, so that the norm of all is below `max_norm`.

    Raises
    ------
    OptionError
        If the norm is not positive, `x` holds no tensors, or another option has not its default.
    """
    POSITIVE.check("max_norm", max_norm)
    if norm_type != 2:
        raise wrong_value("norm_type", norm_type, "2")
    if error_if_nonfinite:
        raise wrong_value("error_if_nonfinite", error_if_nonfinite, "False")
    items = (x,) if isinstance(x, Tensor) else x
    if not isinstance(items, tuple | list) or not items:
        raise wrong_value("x", items, "tensors; `clip_by_global_norm` clips gradients of a step")
    if not all(isinstance(item, Tensor) for item in items):
        raise wrong_value("x", items, "tensors")
    norm = functions.sqrt(reduce(operator.add, [(item**2).sum() for item in items]))
    factor = apply("minimum", float(max_norm) / (norm + 1e-6), Tensor(1.0, norm.dtype))
    clipped = tuple((item * factor).astype(item.dtype) for item in items)
    return clipped[0] if isinstance(x, Tensor) else clipped


__all__ = [
    "GradOperation",
    "HyperMap",
    "Map",
    "MultitypeFuncGraph",
    "clip_by_global_norm",
    "clip_by_norm",
    "partial",
]
