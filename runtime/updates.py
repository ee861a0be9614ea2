"""Updates of parameters and optimizer states in place, as devices do them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

import numpy as np

from shardwright.ir.graph import Graph
from shardwright.ir.types import is_low, numpy_dtype
from shardwright.operators.info import Array, OperatorInfo, operator_class
from shardwright.operators.models.optimizer import Update
from shardwright.operators.rule import ShardView
from shardwright.operators.views import buffer_roots, buffers_of

Kernel = Callable[..., object]
_CHUNK_BYTES = 2**21  # bytes of each array in a chunk, so that all are in a processor's cache


def replaced_operands(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return for each update, by node, the operand that each of its results replaces.

    Not for one with an operand whose buffer is still needed after it.
    """
    names = {new: name for name, new in graph.updates}
    roots = buffer_roots(graph.nodes)
    nodes = enumerate(graph.nodes)
    last = {name: position for position, node in nodes for name in buffers_of(node, roots)}
    found = {}
    for position, node in enumerate(graph.nodes):
        replaced = [names.get(result.name, "") for result in node.results]
        if issubclass(operator_class(node.operator), Update) and all(
            name in node.operands and last[name] == position for name in replaced
        ):
            found[node.name] = tuple(node.operands.index(name) for name in replaced)
    return found


def update_in_place(
    kernel: Kernel,
    views: Mapping[int, ShardView],
    operands: Sequence[Mapping[int, Array]],
    replaced: Sequence[int],
) -> list[dict[int, Array]]:
    """Run the kernel of an update on every rank; return the results, in the buffers they replace.

    Ranks with the same operands share the result. Of ranks that share a parameter but not its
    gradient, the first one keeps the buffer.

    Parameters
    ----------
    kernel : callable
        Takes a view and a part of each operand along its first dimension.
    views : mapping of int to ShardView
        The view of each hosted rank.
    operands : sequence of (mapping of int to array)
        The operands of each rank.
    replaced : sequence of int
        For each result the operand that it replaces.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in views:
        groups.setdefault(tuple(id(parts[rank]) for parts in operands), []).append(rank)
    waiting = Counter(key[i] for key in groups for i in replaced)
    results: list[dict[int, Array]] = [{} for _ in replaced]
    for key, ranks in reversed(groups.items()):
        arrays = [parts[ranks[0]] for parts in operands]
        for i in replaced:
            waiting[key[i]] -= 1
            if waiting[key[i]] or not _can_be_written(arrays[i]):
                arrays[i] = np.array(arrays[i])  # a scalar has no room to write to
        _write(kernel, views[ranks[0]], arrays, replaced)
        for parts, i in zip(results, replaced, strict=True):
            parts.update(dict.fromkeys(ranks, arrays[i]))
    return results


def overwrites(info: OperatorInfo, replaced: Sequence[int]) -> TypeGuard[Update]:
    """Return whether an update writes the parameter and its states where they are by itself."""
    if not isinstance(info, Update) or is_low(numpy_dtype(info.operand_types[0].dtype)):
        return False
    return info.overwrites and tuple(replaced) == (0, *range(2, 2 + info.states))


def overwriting(update: Update, replaced: Sequence[int]) -> Callable[..., None]:
    """Return what runs an update on one rank, with its results in place of the operands.

    It takes the list of operands, in which the results are afterwards, and as `spends_gradient`
    whether nobody reads the gradient any more: its array is the room to compute in then.

    Parameters
    ----------
    update : Update
        One that `overwrites`.
    replaced : sequence of int
        The operands that are replaced.
    """
    count = update.tensors
    fixed = update.writer(()) if len(update.operand_types) == count else None

    def overwrite(arrays: list[Array], *, spends_gradient: bool = False) -> None:
        if not _are_apart(arrays, replaced):
            _set_apart(arrays, replaced)
        write = fixed or update.writer(arrays[count:])
        first, tensors = arrays[0], arrays[:count]
        if first.nbytes <= _CHUNK_BYTES or not all(array.flags.c_contiguous for array in tensors):
            write(*tensors, room=tensors[1] if spends_gradient else None)
            return
        flat = [array.reshape(-1) for array in tensors]
        length = max(1, _CHUNK_BYTES // first.itemsize)
        for begin in range(0, first.size, length):
            parts = [array[begin : begin + length] for array in flat]
            write(*parts, room=parts[1] if spends_gradient else None)

    return overwrite


def _are_apart(arrays: Sequence[Array], replaced: Sequence[int]) -> bool:
    """Return whether arrays that are replaced have buffers of their own, in the usual case."""
    gradient = arrays[1]
    for i in replaced:
        array = arrays[i]
        if array.base is not None or not array.flags.writeable:
            return False
        if array is gradient or gradient.base is array:
            return False
    return len(set(map(id, arrays))) == len(arrays)


def _set_apart(arrays: list[Array], replaced: Sequence[int]) -> None:
    """Copy what is replaced and has no buffer of its own, and a gradient that shares one."""
    seen: set[int] = set()
    for i in replaced:
        if id(arrays[i]) in seen or not _can_be_written(arrays[i]):
            arrays[i] = np.array(arrays[i])
        seen.add(id(arrays[i]))
        if np.may_share_memory(arrays[1], arrays[i]):
            arrays[1] = np.array(arrays[1])  # the gradient, read after the states are written


def _can_be_written(array: Array) -> bool:
    """Return whether an array has its whole buffer to itself."""
    whole = array.base is None or getattr(array.base, "nbytes", 0) == array.nbytes
    return whole and array.flags.writeable


def _write(
    kernel: Kernel, view: ShardView, arrays: Sequence[Array], replaced: Sequence[int]
) -> None:
    """Update arrays chunk by chunk, so that no second copy of any of them exists."""
    first = arrays[replaced[0]]
    rows = first.shape[0] if first.ndim else 1
    step = max(1, _CHUNK_BYTES * rows // max(first.nbytes, 1))
    if any(arrays[i].shape != first.shape for i in replaced):  # scales have no such rows
        step = rows
    for begin in range(0, rows, step):
        part = slice(begin, begin + step) if first.ndim else ...
        chunks = [array[part] if array.shape == first.shape else array for array in arrays]
        found = kernel(view, *chunks)
        new = found if isinstance(found, tuple) else (found,)
        for i, array in zip(replaced, new, strict=True):
            arrays[i][part if arrays[i].shape == first.shape else ...] = array
