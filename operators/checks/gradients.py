"""Checks of gradients: against central differences, and split against whole."""

from collections.abc import Sequence

import numpy as np

from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.rounding import OF_SUM
from shardwright.operators.builder import Builder
from shardwright.operators.checks.cases import (
    Case,
    expect,
    expect_close,
    has_gradient,
)
from shardwright.operators.checks.spmd import (
    Parts,
    assemble,
    execute,
    node_of,
    scatter,
    splits_windows,
)
from shardwright.operators.info import (
    Array,
    Linearization,
    OperatorInfo,
    whole_kernel,
)
from shardwright.operators.windows.halo_exchange import emit_split, emit_split_gradient

_NUMERIC = 1e-6  # the accuracy of central differences


def cotangents(info: OperatorInfo, seed: int) -> list[Array]:
    """Return random cotangents of the results."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(result.shape) for result in info.result_types]


def _emitted(
    info: OperatorInfo, mesh: Mesh, layouts: tuple[Sequence[Layout], Sequence[Layout]]
) -> tuple[Builder, list[Value], list[Value | None]]:
    """Emit the gradient; return the builder, the values that it reads, and the gradients."""
    taken, left = layouts
    build = Builder(mesh)
    operands = [
        build.input(Value(f"operand{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.operand_types, taken, strict=True))
    ]
    results = [
        build.input(Value(f"result{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.result_types, left, strict=True))
    ]
    cotangents = [
        build.input(Value(f"cotangent{i}", r.type, r.layout and r.layout.reduced()))
        for i, r in enumerate(results)
    ]
    gradients = list(build.gradients(info, Linearization(operands, results, cotangents)))
    count = f"the gradient returns {len(gradients)} values for {len(operands)} operands"
    expect(len(gradients) == len(operands), count, info.name)
    return build, [*operands, *results, *cotangents], gradients


def _emitted_with_halos(
    info: OperatorInfo, strategy: Strategy, mesh: Mesh
) -> tuple[Builder, list[Value], list[Value | None]]:
    """Emit the operator with its halo exchanges, and the gradient of both."""
    build, (taken, left) = Builder(mesh), info.infer_tensor_layouts(strategy, mesh)
    operands = [
        build.input(Value(f"operand{i}", kind, layout))
        for i, (kind, layout) in enumerate(zip(info.operand_types, taken, strict=True))
    ]
    emitted = emit_split(build, node_of(info, operands), operands, strategy)
    found = tuple(value.layout for value in emitted.results)
    what = f"the results have the layouts {found}, expected {left} by the rule"
    expect(found == left, what, info.name)
    cotangents = [
        build.input(Value(f"cotangent{i}", kind, layout.reduced()))
        for i, (kind, layout) in enumerate(zip(info.result_types, left, strict=True))
    ]
    gradients = emit_split_gradient(build, emitted, cotangents)
    return build, [*operands, *cotangents], gradients


def _emitted_whole(info: OperatorInfo) -> tuple[Builder, list[Value], list[Value | None]]:
    """Emit the gradient on one device."""
    one = Mesh(())
    return _emitted(info, one, info.infer_tensor_layouts(Strategy(), one))


def _whole_gradients(
    info: OperatorInfo,
    emitted: tuple[Builder, list[Value], list[Value | None]],
    operands: list[Array],
    seed: int,
) -> list[Array | None]:
    """Return the gradients on one device, of what is emitted for it."""
    build, inputs, gradients = emitted
    results = list(whole_kernel(info, *operands))
    arrays = [*operands, *results, *cotangents(info, seed)]
    tensors = {
        value.name: (value.type, value.known_layout, [array])
        for value, array in zip(inputs, arrays, strict=True)
    }
    found = execute(build.nodes, tensors, Mesh(()))
    return [None if value is None else found[value.name][2][0] for value in gradients]


def _check_same_nodes(info: OperatorInfo, split: Builder, whole: Builder) -> None:
    """Check that the gradient is of the same nodes whatever the layouts: it is emitted once."""
    found, expected = (
        [(node.operator, node.operands, dict(node.attributes)) for node in build.nodes]
        for build in (split, whole)
    )
    what = f"the gradient is {_named(found)} where it is split, {_named(expected)} where it is not"
    expect(found == expected, f"{what}; it must not depend on layouts", info.name)


def _named(nodes: Sequence[tuple[str, object, object]]) -> str:
    return ", ".join(f"`{name}`" for name, *_ in nodes) or "no operator"


def _numeric_gradient(
    info: OperatorInfo, operands: list[Array], position: int, seed: int, step: float = 1e-5
) -> Array:
    """Return the central difference by every element of one operand."""
    weights = cotangents(info, seed)

    def loss() -> float:
        found = whole_kernel(info, *operands)
        return sum(float((w * y).sum()) for w, y in zip(weights, found, strict=True))

    target = operands[position] = operands[position].copy()
    gradient = np.zeros_like(target)
    for index in np.ndindex(target.shape):
        value = target[index]
        target[index] = value + step
        above = loss()
        target[index] = value - step
        gradient[index] = (above - loss()) / (2 * step)
        target[index] = value
    return gradient


def check_numeric_gradient(case: Case) -> None:
    """Check the gradient against central differences."""
    info = case.info()
    if not has_gradient(info) or info.has_own_gradient:
        return
    operands = case.operands(info)
    whole = _whole_gradients(info, _emitted_whole(info), operands, seed=0)
    for position, found in enumerate(whole):
        place = f"operand {position} of {case}"
        if position in case.example.constants or not info.operand_types[position].is_float:
            expect(found is None, "the gradient is a tensor, expected None", place)
            continue
        if found is None:
            found = np.zeros(info.operand_types[position].shape)
        expected = _numeric_gradient(info, operands, position, seed=0)
        what = "the gradient is not the central difference"
        expect_close(found, expected, what, place, _NUMERIC)


def check_gradients(
    info: OperatorInfo,
    strategy: Strategy,
    mesh: Mesh,
    layouts: tuple[Sequence[Layout], Sequence[Layout]],
    shards: Sequence[Parts],
    results: Sequence[Parts],
    operands: list[Array],
    seed: int = 0,
) -> None:
    """Run the gradient on the shards of a mesh, and compare it with the whole gradient.

    The results are those that `run_shards` computes of the shards.

    A gradient has the split of its operand. It is partial over the axes that split factors the
    operand lacks, and over the partial axes of other operands.
    """
    taken, left = layouts
    emitted = _emitted_whole(info)
    if splits_windows(info, strategy):
        build, inputs, gradients = _emitted_with_halos(info, strategy, mesh)
        results = ()
    else:
        build, inputs, gradients = _emitted(info, mesh, layouts)
        _check_same_nodes(info, build, emitted[0])
    reduced = [layout.reduced() for layout in left]
    pulled = [
        scatter(x, layout, mesh) for x, layout in zip(cotangents(info, seed), reduced, strict=True)
    ]
    tensors = {
        value.name: (value.type, value.layout, parts)
        for value, parts in zip(inputs, [*shards, *results, *pulled], strict=True)
        if value.layout is not None
    }
    found = execute(build.nodes, tensors, mesh)
    carried = {axis for layout in taken for axis in layout.partial}
    expected = _whole_gradients(info, emitted, operands, seed)
    for position, (value, whole) in enumerate(zip(gradients, expected, strict=True)):
        place = f"operand {position}"
        expect((value is None) == (whole is None), "the gradient is there only if whole", place)
        if value is None or whole is None:
            continue
        mirrored = info.infer_mirror_ops(strategy, mesh)[position]
        if not taken[position].partial:
            mirrored = mesh.ordered({*mirrored, *carried})
        kind, layout, parts = found[value.name]
        wanted = info.operand_types[position], taken[position].with_partial(mirrored)
        what = f"the gradient of operand {position} is {kind} {layout}, expected {wanted[0]} "
        expect((kind, layout) == wanted, f"{what}{wanted[1]}", place)
        array = assemble(parts, layout, whole.shape, mesh)
        what = f"the gradient of operand {position} differs from that of the whole"
        expect_close(array, whole, what, place, OF_SUM)
