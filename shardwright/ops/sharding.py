"""Functions and cells whose tensors are split in a way: ``shard``."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.values import wrong_value
from shardwright.operators.info import SplitCounts
from shardwright.ops.primitive import Primitive, counts_of, record_strategy
from shardwright.tensor import Tensor, apply_all
from shardwright.tracer import is_tracing


def shard(fn: Callable[..., Any], in_strategy: Any, out_strategy: Any = None) -> Callable[..., Any]:
    """Return a function whose inputs and results are split in a way.

    Of a function that is one operator the strategy of the operator is pinned; into any other the
    inputs go split so, and the search decides what is in it.

    Parameters
    ----------
    fn : callable
        A function of tensors, or a cell.
    in_strategy, out_strategy : tuple, optional
        For each input, or result, the slices of each dimension; or layouts.
    """
    counts, out_counts = counts_of(in_strategy), counts_of(out_strategy)
    if isinstance(fn, Primitive):
        raise wrong_value("fn", fn, "a function or a cell", "call its own `shard`")
    if not callable(fn):
        raise wrong_value("fn", fn, "a function or a cell")
    is_operator = hasattr(fn, "operator")

    def sharded(*inputs: Any, **named: Any) -> Any:
        if not is_tracing():
            return fn(*inputs, **named)
        if not is_operator:
            inputs = _moved(inputs, counts, "inputs")
        made = fn(*inputs, **named)
        several = isinstance(made, tuple)
        results = made if several else (made,)
        if is_operator:
            record_strategy(results, _tensors(inputs), counts, out_counts)
            return made
        moved = _moved(results, out_counts, "results")
        return moved if several else moved[0]

    return sharded


def _tensors(items: Sequence[Any]) -> list[Any]:
    return [item for item in items if isinstance(item, Tensor)]


def _moved(items: Sequence[Any], counts: SplitCounts | None, what: str) -> tuple[Any, ...]:
    """Return tensors split in a way.

    Raises
    ------
    ModelError
        If there is not one strategy for each.
    """
    if counts is None:
        return tuple(items)
    if len(_tensors(items)) != len(counts):
        raise ModelError(
            f"a strategy has {len(counts)} {what}, and the function {len(_tensors(items))}"
        )
    given, moved = iter(counts), []
    for item in items:
        if not isinstance(item, Tensor):
            moved.append(item)
            continue
        same = apply_all("identity", item)
        record_strategy(same, [item], (next(given),), None)
        moved.append(same[0])
    return tuple(moved)


__all__ = ["shard"]
