"""Functions and cells whose tensors are split in a way: ``shard``."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.values import wrong_value
from shardwright.operators.info import SplitCounts
from shardwright.ops.primitive import Primitive, counts_of, record_strategy
from shardwright.tensor import Tensor, apply_all
from shardwright.tracer import is_tracing

Counts = SplitCounts | tuple[tuple[int, ...] | None, ...] | None


def shard(fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None) -> Callable[..., Any]:
    """Return a function whose inputs and results are split in a way.

    Of a function that is one operator the strategy of the operator is pinned; into any other the
    inputs go split so, and the search decides what is in it.

    Parameters
    ----------
    fn : callable
        A function of tensors, or a cell.
    in_strategy, out_strategy : tuple, optional
        For each input, or result, the slices of each dimension; or layouts. None for one that the
        search splits.
    """
    if isinstance(fn, Primitive):
        raise wrong_value("fn", fn, "a function or a cell", "call its own `shard`")
    if not callable(fn):
        raise wrong_value("fn", fn, "a function or a cell")
    is_operator = hasattr(fn, "operator")
    strategies = (in_strategy, out_strategy)
    pins = [counts_of(each) for each in strategies] if is_operator else []
    counts, out_counts = map(_some, strategies)

    def sharded(*inputs: Any, **named: Any) -> Any:
        if not is_tracing():
            return fn(*inputs, **named)
        if not is_operator:
            _check_tuples(in_strategy)
            inputs = _moved(inputs, counts, "inputs")
        made = fn(*inputs, **named)
        several = isinstance(made, tuple)
        results = made if several else (made,)
        if is_operator:
            record_strategy(results, _tensors(inputs), *pins)
            return made
        moved = _moved(results, out_counts, "results")
        return moved if several else moved[0]

    return sharded


def _check_tuples(in_strategy: Any) -> None:
    """Refuse lists of slices, as MindSpore does, so that a script is one for both.

    Raises
    ------
    OptionError
        If there is one.
    """
    for each in (in_strategy, *(in_strategy or ())):
        if isinstance(each, list):
            expected = "a tuple: in_strategy should be a two-dimension tuple"
            raise wrong_value("in_strategy", each, expected)


def _some(strategy: Any) -> Counts:
    """Return a strategy as plain numbers, where there are some."""
    if not isinstance(strategy, tuple | list):
        return counts_of(strategy)
    found = (counts_of((each,)) for each in strategy if each is not None)
    plain = (counts[0] for counts in found if counts)
    return tuple(None if each is None else next(plain) for each in strategy)


def _tensors(items: Sequence[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, Tensor)]


def _moved(items: Sequence[Any], counts: Counts, what: str) -> tuple[Any, ...]:
    """Return tensors split in a way.

    Raises
    ------
    ModelError
        If there is not one strategy for each, or not one number for each dimension.
    """
    if counts is None:
        return tuple(items)
    side, tensors = {"inputs": "in", "results": "out"}[what], _tensors(items)
    if len(tensors) != len(counts):
        raise ModelError(
            f"a strategy has {len(counts)} {what}, and the function {len(tensors)}: "
            f"{what[:-1].capitalize()} numbers: {len(tensors)} is not equal to {side}_strategy "
            f"numbers: {len(counts)}"
        )
    for i, (item, own) in enumerate(zip(tensors, counts, strict=True)):
        if own is not None and len(own) != item.ndim:
            raise ModelError(
                f"a strategy is {own} for one of the {what}, a tensor of the shape {item.shape}: "
                f"{what[:-1].capitalize()} dimension: {item.ndim} is not equal to {side}_strategy "
                f"dimension: {len(own)} at index {i}"
            )
    given, moved = iter(counts), []
    for item in items:
        if not isinstance(item, Tensor):
            moved.append(item)
            continue
        own = next(given)
        same = apply_all("identity", item) if own is not None else (item,)
        record_strategy(same, [item], None if own is None else (own,), None)
        moved.append(same[0])
    return tuple(moved)


__all__ = ["shard"]
