"""What MindSpore's tests and tools call beside a compilation: numbers of operators, ranks."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from shardwright.mindspore.context import get_auto_parallel_context
from shardwright.mindspore.parallel._tensor import mesh_of

ParameterLayouts = Mapping[str, Sequence[Any]]


def _reset_op_id() -> None:
    """Do nothing: the names of operators are those of a program, from 0 in each."""


def _infer_rank_list(
    train_map: ParameterLayouts, predict_map: ParameterLayouts | None = None
) -> dict[str, tuple[list[int], bool]]:
    """Return which ranks' checkpoints have the slices of each parameter that this rank needs.

    Parameters
    ----------
    train_map, predict_map : mapping of str to sequence
        By parameter the sizes of the arrangement of devices, and the tensor map, of training and of
        prediction. Without the second the whole parameter is needed.

    Returns
    -------
    dict of str to (list of int, bool)
        The ranks of training, and whether the slice of one of them is that of this rank. Otherwise
        those of all of them make the whole parameter. A parameter that is not predicted with is
        left out.
    """
    get = get_auto_parallel_context
    rank = get("global_rank") % max(1, get("device_num") // get("pipeline_stages"))
    found = {}
    for name, train in train_map.items():
        holders = _holders(train[0], train[1])
        if not predict_map:
            found[name] = (holders, False)
        elif name in predict_map:
            predict = predict_map[name]
            own = [*train[0]], [*train[1]]
            if own == ([*predict[0]], [*predict[1]]):
                found[name] = ([rank], True)
            elif _used(*own) != _used([*predict[0]], [*predict[1]]):
                found[name] = (holders, False)
            else:
                found[name] = ([holders[_slice_of(rank, predict[0], predict[1])]], True)
    return found


def _used(sizes: Sequence[int], tensor_map: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return an arrangement without the axes that split nothing, and the tensor map in it."""
    axes = sorted(axis for axis in tensor_map if axis >= 0)
    places = [axes.index(axis) if axis >= 0 else -1 for axis in tensor_map]
    return [sizes[len(sizes) - 1 - axis] for axis in reversed(axes)], places


def _slice_of(rank: int, sizes: Sequence[int], tensor_map: Sequence[int]) -> int:
    """Return which of the slices a rank has, in the order of the axes that split."""
    mesh = mesh_of(sizes)
    axes = sorted((axis for axis in tensor_map if axis >= 0), reverse=True)
    return mesh.index(rank % mesh.size, [mesh.names[-1 - axis] for axis in axes])


def _holders(sizes: Sequence[int], tensor_map: Sequence[int]) -> list[int]:
    """Return of each slice the first rank that has it."""
    slices = [_slice_of(rank, sizes, tensor_map) for rank in range(prod(sizes))]
    return [slices.index(number) for number in range(max(slices) + 1)]
