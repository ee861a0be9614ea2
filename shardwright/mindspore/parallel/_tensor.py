"""Slices of tensors between two layouts, as MindSpore's tools convert checkpoints.

A layout is ``(sizes of the arrangement of devices, tensor map, shape)``: the map has for each
dimension the axis that splits it, counted from the last one, or -1.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from shardwright.communication import get_rank
from shardwright.cost_model.cluster import prime_factors
from shardwright.cost_model.mindspore.redistribution import (
    Piece,
    RedistributionOperator,
    common_pieces,
    infer_operators,
)
from shardwright.frontends.configs.strategy_map import MatrixLayout
from shardwright.ir.errors import ModelError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.tensor import Tensor

TensorLayout = tuple[Sequence[int], Sequence[int], Sequence[int]]
Operator = tuple[str, list[int]]
Step = tuple[int, int, Operator]


def _get_tensor_strategy(dev_mat: Sequence[int], tensor_map: Sequence[int]) -> list[int]:
    """Return into how many slices each dimension is split."""
    return [*MatrixLayout(tuple(dev_mat), tuple(tensor_map)).counts]


def _transform_tensor_by_layout(
    from_layout: TensorLayout,
    to_layout: TensorLayout,
    device_list: Sequence[int],
    rank_id: int,
) -> list[Operator]:
    """Return the operators that bring the slice of a rank from one layout to another.

    Parameters
    ----------
    from_layout, to_layout : tuple
        Layouts of a tensor over the same number of devices; the shape may be another one of the
        same elements.
    device_list : sequence of int
        The ranks, in the order of the arrangement.
    rank_id : int
        The rank.

    Returns
    -------
    list of (str, list of int)
        ``Reshape`` with a shape, ``AllGather`` with ranks and the axis, ``StridedSlice`` with
        begins, ends and strides.

    Raises
    ------
    ModelError
        If a layout does not fit its shape or the devices, or the rank is none of them.
    """
    for name, layout in (("from_layout", from_layout), ("to_layout", to_layout)):
        _check(name, layout, len(device_list))
    if prod(from_layout[2]) != prod(to_layout[2]):
        raise ModelError(
            f"`to_layout` has the shape {list(to_layout[2])}, expected as many elements as "
            f"`from_layout` has, {list(from_layout[2])}"
        )
    if rank_id not in device_list:
        raise ModelError(f"`rank_id` is {rank_id}, expected one of {list(device_list)}")
    place = list(device_list).index(rank_id)
    found = _direct(from_layout, to_layout, place)
    if found is None:  # through the whole tensor
        before, after = (
            ((len(device_list),), [-1] * len(layout[2]), layout[2])
            for layout in (from_layout, to_layout)
        )
        found = [
            *_through(from_layout, before, place),
            *([("Reshape", [*after[2]])] if [*after[2]] != [*before[2]] else []),
            *_through(after, to_layout, place),
        ]
    return [
        (kind, [*(device_list[i] for i in numbers[:-1]), numbers[-1]])
        if kind == "AllGather"
        else (kind, numbers)
        for kind, numbers in found
    ]


def _check(name: str, layout: TensorLayout, devices: int) -> None:
    sizes, axes, shape = layout
    what = f"`{name}` is {tuple(map(list, layout))}"
    if len(axes) != len(shape) or any(not -1 <= axis < len(sizes) for axis in axes):
        raise ModelError(f"{what}, expected for each dimension an axis of the devices, or -1")
    named = [axis for axis in axes if axis >= 0]
    if len(set(named)) != len(named):
        raise ModelError(f"{what}, expected each axis for one dimension")
    if any(size < 1 for size in (*sizes, *shape)):
        raise ModelError(f"{what}, expected positive sizes")
    if prod(sizes) != devices:
        raise ModelError(f"{what}, expected {devices} devices")
    for size, count in zip(shape, _get_tensor_strategy(sizes, axes), strict=True):
        if size % count:
            raise ModelError(f"{what}, expected counts that divide the dimensions")


def _through(source: TensorLayout, target: TensorLayout, place: int) -> list[Operator]:
    found = _direct(source, target, place)
    assert found is not None  # one of the two is whole, and one arrangement refines the other
    return found


def _direct(source: TensorLayout, target: TensorLayout, place: int) -> list[Operator] | None:
    """Return the operators between two layouts; None where they have no common terms."""
    sizes = _common(source[0], target[0])
    shape = _common(source[2], target[2])
    if sizes is None or shape is None:
        return None
    finest = [factor for size in sizes for factor in prime_factors(size)] or [1]
    mesh = mesh_of(finest)
    layouts = [_refined(layout, mesh, shape) for layout in (source, target)]
    if layouts[0] is None or layouts[1] is None:
        return None
    pieces = common_pieces(shape, layouts[0], layouts[1], mesh)
    if pieces is None:
        return None
    return _emitted(pieces, infer_operators(pieces, mesh), mesh, place, source, target)


def _common(first: Sequence[int], second: Sequence[int]) -> list[int] | None:
    """Return the factors, major to minor, of which both sequences are made; None if there are none.

    (4, 2) and (2, 4) are made of (2, 2, 2); (2, 3) and (3, 2) have no such factors.
    """
    ends = {1}
    for sizes in (first, second):
        ends |= {prod(sizes[i:]) for i in range(len(sizes))}
    points = sorted(ends)
    if any(b % a for a, b in pairwise(points)):
        return None
    return [b // a for a, b in pairwise(points)][::-1] or [1]


def _refined(layout: TensorLayout, mesh: Mesh, shape: Sequence[int]) -> Layout | None:
    """Return a layout over finer axes and dimensions; None where an axis is over two dimensions."""
    sizes, tensor_map, own_shape = layout
    axes = _groups(sizes, [axis.size for axis in mesh.axes])
    dimensions = _groups(own_shape, shape)
    splits: list[tuple[str, ...]] = [()] * len(shape)
    for axis, parts in zip(tensor_map, dimensions, strict=True):
        names = [f"a{i}" for i in axes[len(sizes) - 1 - axis]] if axis >= 0 else []
        for part in parts:
            left = shape[part]
            while names and left > 1:
                count = mesh.sizes[names[0]]
                if left % count:
                    return None
                left //= count
                splits[part] += (names.pop(0),)
            if names and left != 1:
                return None
        if any(mesh.sizes[name] > 1 for name in names):
            return None
    return Layout(tuple(splits))


def _groups(sizes: Sequence[int], factors: Sequence[int]) -> list[list[int]]:
    """Return for each size the positions of the factors that it is made of."""
    left = list(enumerate(factors))
    groups = []
    for size in sizes:
        group, found = [], 1
        while found < size:
            i, factor = left.pop(0)
            group.append(i)
            found *= factor
        groups.append(group)
    return groups


def _emitted(
    pieces: Sequence[Piece],
    operators: Iterable[RedistributionOperator],
    mesh: Mesh,
    place: int,
    source: TensorLayout,
    target: TensorLayout,
) -> list[Operator]:
    """Return operators on the slices of a rank, of which those of pieces are given."""
    shape = [piece.size // mesh.extent(piece.source) for piece in pieces]
    made: list[Operator] = []
    for operator in operators:
        if operator.kind != "split":
            group = mesh.group(place, operator.axes)
            made.append(("AllGather", [*group, operator.piece]))
            shape[operator.piece] *= operator.devices
        piece = operator.piece if operator.kind == "split" else operator.split
        if piece is not None:
            size = shape[piece] // operator.devices
            begins = [0] * len(shape)
            begins[piece] = size * mesh.group(place, operator.axes).index(place)
            shape[piece] = size
            ends = [begin + size for begin, size in zip(begins, shape, strict=True)]
            made.append(("StridedSlice", [*begins, *ends, *[1] * len(shape)]))
    before, after = (_slice_shape(layout) for layout in (source, target))
    in_pieces = [piece.size // mesh.extent(piece.source) for piece in pieces]
    if made and in_pieces != before:
        made.insert(0, ("Reshape", in_pieces))
    if (shape if made else before) != after:
        made.append(("Reshape", after))
    return made


def _slice_shape(layout: TensorLayout) -> list[int]:
    counts = _get_tensor_strategy(layout[0], layout[1])
    return [size // count for size, count in zip(layout[2], counts, strict=True)]


def _get_needed_rank_transform_operator_map_by_layouts(
    from_tensor_layout: TensorLayout,
    to_tensor_layout: TensorLayout,
    device_list: Sequence[int],
    self_rank: int,
) -> dict[int, list[Operator]]:
    """Return the operators of each rank whose slices a rank needs, its own first."""
    found: dict[int, list[Operator]] = {}
    waiting = [self_rank]
    while waiting:
        rank = waiting.pop(0)
        if rank not in found:
            found[rank] = _transform_tensor_by_layout(
                from_tensor_layout, to_tensor_layout, device_list, rank
            )
            for operator in found[rank]:
                waiting += _read_ranks(operator, rank)
    return found


def _read_ranks(operator: Operator, rank: int) -> list[int]:
    """Return the ranks whose slices an operator of a rank reads."""
    kind, numbers = operator
    return numbers[:-1] if kind == "AllGather" else [rank]


def _get_needed_rank_list_by_layouts(
    from_tensor_layout: TensorLayout,
    to_tensor_layout: TensorLayout,
    device_list: Sequence[int],
    self_rank: int,
) -> list[int]:
    """Return the ranks whose slices a rank needs, in order."""
    return sorted(
        _get_needed_rank_transform_operator_map_by_layouts(
            from_tensor_layout, to_tensor_layout, device_list, self_rank
        )
    )


def _generate_transform_operator_stack(
    transform_operators_map: Mapping[int, Sequence[Operator]], self_rank: int
) -> list[Step]:
    """Return ``(rank, position, operator)`` of all ranks that a rank needs, the last step first."""
    steps: list[Step] = []
    ranks = [self_rank]
    for position in reversed(range(len(transform_operators_map[self_rank]))):
        level = [(rank, position, transform_operators_map[rank][position]) for rank in ranks]
        steps += level
        read = [other for rank, _, operator in level for other in _read_ranks(operator, rank)]
        ranks = list(dict.fromkeys(read))
    return steps


def _apply_tensor_transform_operators(
    transform_operator_stack: Sequence[Step],
    tensor_dict: dict[int, np.ndarray[Any, Any]],
    device_num: int,
) -> None:
    """Replace the slice of a rank by that of the other layout.

    Parameters
    ----------
    transform_operator_stack : sequence of (int, int, operator)
        Steps, the last first: the first rank is that whose slice is replaced.
    tensor_dict : dict of int to array
        The slices of the ranks that are read.
    device_num : int
        Number of ranks that have slices: those of further ones repeat.

    Raises
    ------
    ModelError
        If the slice of a rank is missing.
    """
    now: dict[int, np.ndarray[Any, Any]] = {}
    for rank, position, operator in reversed(transform_operator_stack):
        for other in _read_ranks(operator, rank) if position == 0 else ():
            if other % device_num not in tensor_dict:
                raise ModelError(f"the slice of rank {other % device_num} is missing")
            now.setdefault(other, tensor_dict[other % device_num])
    for position in sorted({step[1] for step in transform_operator_stack}):
        level = [step for step in transform_operator_stack if step[1] == position]
        now |= {rank: _applied(operator, rank, now) for rank, _, operator in level}
    if transform_operator_stack:
        last = transform_operator_stack[0][0]
        tensor_dict[last % device_num] = now[last]


def _applied(
    operator: Operator, rank: int, slices: Mapping[int, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    kind, numbers = operator
    own = slices[rank]
    if kind == "Reshape":
        return own.reshape(numbers)
    if kind == "AllGather":
        return np.concatenate([slices[other] for other in numbers[:-1]], axis=numbers[-1])
    begins, ends, strides = np.reshape(numbers, (3, -1)).tolist()
    return own[tuple(slice(*one) for one in zip(begins, ends, strides, strict=True))]


def _construct_tensor_layout_for_opt_shard(
    dev_matrix: Sequence[int],
    tensor_map: Sequence[int],
    opt_shard_step: int,
    opt_shard_size: int,
    origin_full_tensor_shape: Sequence[int],
) -> tuple[list[int], list[int], list[int]]:
    """Return the layout of a parameter that an optimizer divides further.

    Its first dimension becomes two: that which the model splits, and the rows within a slice, which
    the ranks that have the same slice divide.

    Parameters
    ----------
    dev_matrix, tensor_map, origin_full_tensor_shape : sequence of int
        The layout that the model gives it.
    opt_shard_step : int
        Number of ranks between two that have the same slice; 0 if it is not divided.
    opt_shard_size : int
        Into how many parts a slice is divided; 0 if it is not.

    Raises
    ------
    ModelError
        If the step is not the number of slices.
    """
    shape = list(origin_full_tensor_shape)
    if opt_shard_step == 0 or opt_shard_size == 0:
        return list(dev_matrix), list(tensor_map), shape
    counts = _get_tensor_strategy(dev_matrix, tensor_map)
    if prod(counts) != opt_shard_step:
        raise ModelError(
            f"`opt_shard_step` is {opt_shard_step}, expected {prod(counts)}, the number of slices"
        )
    rank = len(counts)
    repeated = prod(dev_matrix) // (opt_shard_step * opt_shard_size)
    axes = [rank - 1 - i if count > 1 else -1 for i, count in enumerate(counts)]
    return (
        [repeated] * (repeated > 1) + [opt_shard_size, *counts],
        [axes[0], rank, *axes[1:]],
        [counts[0], shape[0] // counts[0], *shape[1:]],
    )


def _construct_from_to_tensor_layout(
    from_full_tensor_shape: Sequence[int],
    from_dev_matrix: Sequence[int],
    from_tensor_map: Sequence[int],
    to_full_tensor_shape: Sequence[int],
    to_dev_matrix: Sequence[int],
    to_tensor_map: Sequence[int],
) -> tuple[TensorLayout, TensorLayout]:
    """Return two layouts over the same number of devices: the fewer ones are repeated.

    Raises
    ------
    ModelError
        If one number is no multiple of the other.
    """
    before, after = list(from_dev_matrix), list(to_dev_matrix)
    few, many = sorted((before, after), key=prod)
    if prod(many) % prod(few):
        raise ModelError(
            f"a tensor over {prod(before)} devices cannot be brought to {prod(after)}, expected a "
            f"multiple or a part"
        )
    if prod(few) < prod(many):
        few.insert(0, prod(many) // prod(few))
    return (
        (before, list(from_tensor_map), list(from_full_tensor_shape)),
        (after, list(to_tensor_map), list(to_full_tensor_shape)),
    )


def _load_tensor(tensor: Tensor, dev_mat: Sequence[int], tensor_map: Sequence[int]) -> Tensor:
    """Return the slice of a tensor that this rank has.

    Raises
    ------
    ModelError
        If the layout does not fit.
    """
    layout, mesh = _on_mesh(tensor.shape, dev_mat, tensor_map)
    part = layout.slices(tensor.shape, mesh, int(get_rank()) % mesh.size)
    return Tensor(tensor.asnumpy()[part])


def _reshape_param_data(
    param_data: Tensor, dev_mat: Sequence[int], tensor_map: Sequence[int]
) -> Tensor:
    """Return the whole tensor, of which the slices of all devices are given one after the other.

    Raises
    ------
    ModelError
        If the layout does not fit.
    """
    shape = (param_data.shape[0] // prod(dev_mat), *param_data.shape[1:])
    counts = _get_tensor_strategy(dev_mat, tensor_map)
    whole = tuple(size * count for size, count in zip(shape, counts, strict=True))
    layout, mesh = _on_mesh(whole, dev_mat, tensor_map)
    made = np.empty(whole, param_data.asnumpy().dtype)
    for rank, part in enumerate(np.split(param_data.asnumpy(), mesh.size)):
        made[layout.slices(whole, mesh, rank)] = part
    return Tensor(made)


def _on_mesh(
    shape: Sequence[int], dev_mat: Sequence[int], tensor_map: Sequence[int]
) -> tuple[Layout, Mesh]:
    """Return a layout on the mesh of an arrangement of devices."""
    _check("layout", (dev_mat, tensor_map, shape), prod(dev_mat))
    mesh = mesh_of(dev_mat)
    return Layout(tuple((mesh.names[-1 - at],) if at >= 0 else () for at in tensor_map)), mesh


def mesh_of(sizes: Sequence[int]) -> Mesh:
    """Return the mesh of an arrangement of devices."""
    return Mesh(tuple(MeshAxis(f"a{i}", size) for i, size in enumerate(sizes)))
