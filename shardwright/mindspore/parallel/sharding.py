"""Functions whose tensors are split in a way, and functions that are applied to slices.

One may be round neither: what ranks have of a slice is said where all of a tensor is known, and
once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from shardwright import ops as own
from shardwright.ir.errors import ModelError
from shardwright.mindspore.errors import as_mindspore
from shardwright.tensor import Tensor, apply

Axes = int | tuple[int | None, ...] | None

_AROUND: ContextVar[str] = ContextVar("what a function is called inside of", default="")
_REFUSED = {
    "shard": "Nested use of shard (e.g shard(shard(...), ...) is not supported currently.",
    "vmap": "The usage of vmap nested shard (e.g vmap(shard)) is not supported currently. Current "
    "FuncGraph: ",
}


@contextmanager
def _inside(what: str) -> Iterator[None]:
    token = _AROUND.set(what)
    try:
        yield
    finally:
        _AROUND.reset(token)


def shard(fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None) -> Callable[..., Any]:
    """Return a function whose inputs and results are split in a way; see `shardwright.ops.shard`.

    Raises
    ------
    ModelError
        When it is called, if that is inside of another such function, or of one of `vmap`.
    """
    split = own.shard(fn, in_strategy, out_strategy)
    name = getattr(fn, "__name__", type(fn).__name__)

    def sharded(*inputs: Any, **named: Any) -> Any:
        around = _AROUND.get()
        if around:
            with as_mindspore():
                raise ModelError(
                    f"`{name}` is split inside of a function of `{around}`: {_REFUSED[around]}"
                    f"{name * (around == 'vmap')}",
                    hint="split the function that is outside, or call `shard` of operators",
                )
        with _inside("shard"):
            return split(*inputs, **named)

    return sharded


def vmap(
    fn: Callable[..., Any], in_axes: Axes = 0, out_axes: int | tuple[int, ...] = 0
) -> Callable[..., Any]:
    """Return a function that applies another to each slice of its inputs.

    Its program has that of `fn` once for each slice.

    Parameters
    ----------
    fn : callable
        A function or a cell, of tensors.
    in_axes : int or tuple of int, optional
        The dimension along which inputs are sliced, or that of each; None where it is whole.
    out_axes : int or tuple of int
        The dimension of the slices in the results, or in each.

    Raises
    ------
    ModelError
        When it is called, if inputs have no such dimension, or of other sizes.
    """

    def mapped(*inputs: Tensor) -> Any:
        with as_mindspore():
            slices = _slices(inputs, in_axes)
            with _inside("vmap"):
                made = [fn(*each) for each in slices]
            if not isinstance(made[0], tuple):
                return apply("stack", *made, axis=_each(out_axes, 1, "out_axes")[0])
            axes = _each(out_axes, len(made[0]), "out_axes")
            results = zip(zip(*made, strict=True), axes, strict=True)
            return tuple(apply("stack", *parts, axis=axis) for parts, axis in results)

    return mapped


def _slices(inputs: Sequence[Tensor], in_axes: Axes) -> list[tuple[Tensor, ...]]:
    """Return the inputs of each slice."""
    given = list(zip(inputs, _each(in_axes, len(inputs), "in_axes"), strict=True))
    for i, (item, axis) in enumerate(given):
        if axis is not None and not -item.ndim <= axis < item.ndim:
            raise ModelError(
                f"`in_axes` is {axis} for the input {i}, whose shape is {item.shape}",
                hint="name one of its dimensions, or None to pass all of it",
            )
    sizes = {item.shape[axis] for item, axis in given if axis is not None}
    if len(sizes) != 1:
        raise ModelError(
            f"inputs of the shapes {[item.shape for item in inputs]} are sliced along {in_axes}: "
            f"the sizes there are {sorted(sizes)}, expected one"
        )
    return [tuple(_slice(*each, i) for each in given) for i in range(*sizes)]


def _slice(item: Tensor, axis: int | None, i: int) -> Tensor:
    if axis is None:
        return item
    whole = (slice(None),) * (axis % item.ndim)
    return item[(*whole, i)]


def _each(axes: Any, count: int, name: str) -> tuple[Any, ...]:
    """Return the dimension of each of several tensors.

    Raises
    ------
    ModelError
        If there is not one for each.
    """
    each = axes if isinstance(axes, tuple) else (axes,) * count
    if len(each) != count:
        raise ModelError(f"`{name}` is {axes}, expected a number for each of {count} tensors")
    return each


__all__ = ["shard", "vmap"]
