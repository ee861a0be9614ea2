"""A small interpreter that runs operators on the shards of all ranks, in one process.

The checks of operators use it. It shares only the operators with the executor.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.builder import Builder
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator, run_ring
from shardwright.operators.info import Array, OperatorInfo, operator_info
from shardwright.operators.windows.halo_exchange import emit_split

Parts = list[Array]  # the slice of each rank
_REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}


def scatter(whole: Array, layout: Layout, mesh: Mesh) -> Parts:
    """Return the slice of each rank."""
    return [whole[layout.slices(whole.shape, mesh, rank)] for rank in range(mesh.size)]


def assemble(parts: Sequence[Array], layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> Array:
    """Assemble the slices, reduce partial values, and check that copies are equal.

    Raises
    ------
    ExecutionError
        If a slice has not the shape of its layout, or copies differ.
    """
    terms = np.zeros((mesh.extent(layout.partial), *shape), parts[0].dtype)
    written = np.zeros(terms.shape, bool)
    for rank, part in enumerate(parts):
        term = mesh.index(rank, layout.partial)
        region: Any = (*layout.slices(shape, mesh, rank), ...)
        held, copied = terms[term, ...][region], written[term, ...][region]
        _expect(part.shape == held.shape, f"a slice is {part.shape}, its layout says {held.shape}")
        same = np.array_equal(part[copied], held[copied], equal_nan=part.dtype.kind == "f")
        _expect(same, f"ranks hold copies that differ, the layout {layout} says they are equal")
        held[...], copied[...] = part, True
    _expect(bool(written.all()), f"the slices of the layout {layout} leave gaps")
    return np.asarray(_REDUCE[layout.reduction](terms, axis=0))


def run_shards(
    info: OperatorInfo, strategy: Strategy, mesh: Mesh, operands: Sequence[Parts]
) -> list[Parts]:
    """Run the kernel on every rank, with halo exchanges where windows are split, and rings.

    Raises
    ------
    ExecutionError
        If the kernel returns other shapes or element types than declared.
    """
    if splits_windows(info, strategy):
        build, names = Builder(mesh), [f"operand{i}" for i in range(len(operands))]
        taken = info.rule.operand_layouts(strategy)
        values = list(map(Value, names, info.operand_types, taken))
        emitted = emit_split(build, node_of(info, values), values, strategy)
        held = zip(info.operand_types, taken, operands, strict=True)
        held_by_name = dict(zip(names, held, strict=True))
        executed = execute(build.nodes, held_by_name, mesh)
        return [executed[value.name][2] for value in emitted.results]
    if isinstance(info, RingOperator):
        return _run_rings(info, strategy, mesh, operands)
    results: list[Parts] = [[] for _ in info.result_types]
    for rank in range(mesh.size):
        view = info.rule.view(strategy, mesh, rank)
        local = [parts[rank] for parts in operands]
        shapes = tuple(part.shape for part in local)
        _expect(shapes == view.operand_shapes, f"the slices are {shapes}, not as the rule says")
        returned = info.kernel(view, *local)
        returned = returned if isinstance(returned, tuple) else (returned,)
        check_results(info.result_types, view.result_shapes, returned)
        for parts, part in zip(results, returned, strict=True):
            parts.append(part)
    return results


def splits_windows(info: OperatorInfo, strategy: Strategy) -> bool:
    """Return whether a strategy splits windows that reach into other slices, or a ring."""
    split = any(strategy.axes.get(factor) for factor in info.halos)
    return split or info.rule.form_of(strategy) is not None


def _run_rings(
    info: RingOperator, strategy: Strategy, mesh: Mesh, operands: Sequence[Parts]
) -> list[Parts]:
    """Run an operator whose ranks pass parts round, group by group."""
    found: dict[int, tuple[Array, ...]] = {}
    extents = [mesh.sizes[axis] for axis in info.axes]
    for group in mesh.groups(info.axes):
        members = [
            info.turns(
                info.rule.view(strategy, mesh, rank), i, extents, *(p[rank] for p in operands)
            )
            for i, rank in enumerate(group)
        ]
        found.update(zip(group, run_ring(members), strict=True))
    for rank, returned in found.items():
        view = info.rule.view(strategy, mesh, rank)
        check_results(info.result_types, view.result_shapes, returned)
    return [[found[rank][i] for rank in range(mesh.size)] for i in range(len(info.result_types))]


def node_of(info: OperatorInfo, operands: Sequence[Value]) -> Node:
    """Return an operator as a node of a whole program."""
    results = tuple(Value(f"result{i}", kind) for i, kind in enumerate(info.result_types))
    return Node(info.name, tuple(value.name for value in operands), results, info.attributes)


def check_results(
    types: Sequence[TensorType], shapes: Sequence[tuple[int, ...]], found: Sequence[Array]
) -> None:
    """Check that a kernel returned arrays of the declared shapes and element types.

    Raises
    ------
    ExecutionError
        If it did not.
    """
    returned = [(array.dtype, array.shape) for array in found]
    declared = [(numpy_dtype(t.dtype), shape) for t, shape in zip(types, shapes, strict=True)]
    _expect(returned == declared, f"the kernel returns {returned}, declared is {declared}")


def execute(
    nodes: Iterable[Node],
    tensors: Mapping[str, tuple[TensorType, Layout, Parts]],
    mesh: Mesh,
) -> dict[str, tuple[TensorType, Layout, Parts]]:
    """Run nodes in order and return every tensor, with its type, layout and shards.

    Raises
    ------
    ExecutionError
        If a layout differs from the operator's rule.
    """
    known = dict(tensors)
    for node in nodes:
        operands = [known[name] for name in node.operands]
        info = operator_info(node.operator, [kind for kind, _, _ in operands], node.attributes)
        layouts = [result.layout for result in node.results]
        taken = [layout for _, layout, _ in operands]
        _expect(all(layouts), f"`{node.name}` has no layout")
        wanted = [layout.reduced() for layout in layouts if layout is not None]
        strategy, left = info.infer_layouts(taken, mesh, wanted)
        _expect(list(left) == layouts, f"`{node.name}` has another layout than its rule says")
        held = [parts for _, _, parts in operands]
        if isinstance(info, Communication):
            found = [exchange(info, held[0], mesh)]
        else:
            found = run_shards(info, strategy, mesh, held)
        for result, layout, parts in zip(node.results, left, found, strict=True):
            known[result.name] = (result.type, layout, parts)
    return known


def exchange(info: Communication, parts: Parts, mesh: Mesh) -> Parts:
    """Run a communication operator in every group."""
    results = list(parts)
    for group in info.groups or mesh.groups(info.axes):
        _, extents = info.place(group[0], info.axes, mesh)
        moved = info.exchange([parts[rank] for rank in group], extents)
        for rank, part in zip(group, moved, strict=True):
            results[rank] = part
    return results


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ExecutionError(otherwise)
