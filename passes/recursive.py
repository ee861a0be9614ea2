"""Recursive programming: halve the work once for each mesh axis, and choose what to cut.

MindSpore's double-recursive search re-stated on sharding rules. In each round an operator weighs,
for every factor that it could cut, the tensors that lack the factor: they must be copied or summed.
For a product of (I, K) and (K, J) that is half of J K (times 0.1, for a weight) to cut I, half of I
K to cut J, half of I J to cut K, and a 25th of the square of the least to cut nothing. A neighbour
that was cut otherwise in the same round costs its tensor 16 times. Lookups are cut by their shapes
alone. Operators that a person has split stay so, and others see how; MindSpore does that where
``MS_INTERFERED_SAPP`` is 1. Linear in the number of operators; no memory limit, no certificate.
"""

from collections.abc import Mapping, Sequence

from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo, operator_info
from shardwright.operators.rule import base

_REDISTRIBUTION = 16.0
_WEIGHT = 0.1
_REPLICATE_BELOW = 25.0


def recursive_programming(
    graph: Graph, mesh: Mesh, pinned: Mapping[str, Strategy] | None = None
) -> dict[str, Strategy]:
    """Return a strategy for every operator.

    Parameters
    ----------
    graph : Graph
        The whole program.
    mesh : Mesh
        The mesh; one round for each of its axes.
    pinned : mapping of str to Strategy, optional
        Operators that are split already.
    """
    fixed = {name: strategy.axes for name, strategy in (pinned or {}).items()}
    parameters = frozenset(parameter.name for parameter in graph.parameters)
    infos = {node.name: _info(graph, node) for node in graph.nodes}
    cut: dict[str, dict[str, tuple[str, ...]]] = {node.name: {} for node in graph.nodes}
    for axis in mesh.names:
        landed: dict[str, int | None] = {}  # dimension of each tensor that this round has cut
        for node in graph.nodes:
            info = infos[node.name]
            if node.name in fixed:
                factor = next((f for f, axes in fixed[node.name].items() if axis in axes), None)
            else:
                factor = _choose(info, node, cut[node.name], axis, mesh, landed, parameters)
            if factor is not None:
                cut[node.name][factor] = (*cut[node.name].get(factor, ()), axis)
            for name, dims in zip(node.operands, info.rule.operands, strict=True):
                landed.setdefault(name, _dimension(dims, factor))
            for result, dims in zip(node.results, info.rule.results, strict=True):
                landed[result.name] = _dimension(dims, factor)
    chosen = {
        name: Strategy.of({f: found[f] for f in infos[name].rule.sizes if f in found})
        for name, found in cut.items()
    }
    return {**chosen, **(pinned or {})}


def _info(graph: Graph, node: Node) -> OperatorInfo:
    types = [value.type for value in graph.operand_values(node)]
    return operator_info(node.operator, types, node.attributes)


def _dimension(dims: Sequence[tuple[str, ...]], factor: str | None) -> int | None:
    return next((d for d, factors in enumerate(dims) if factor in [base(f) for f in factors]), None)


def _choose(
    info: OperatorInfo,
    node: Node,
    cut: dict[str, tuple[str, ...]],
    axis: str,
    mesh: Mesh,
    landed: dict[str, int | None],
    parameters: frozenset[str],
) -> str | None:
    """Return the factor to cut in this round; None to cut nothing."""
    if info.name == "gather":
        return _choose_in_lookup(info, cut, axis, mesh)
    legal = set(info.generate_strategies(mesh))
    options: dict[str | None, float] = {}
    for factor in info.rule.sizes:
        wider = {**cut, factor: (*cut.get(factor, ()), axis)}
        strategy = Strategy.of({f: wider[f] for f in info.rule.sizes if f in wider})
        if strategy in legal:
            options[factor] = _lacking(info, node, factor, cut, mesh, parameters)
    least = min(options.values(), default=0.0)
    options[None] = least * least / _REPLICATE_BELOW
    for option in options:
        options[option] += _mismatch(info, node, option, cut, mesh, landed, parameters)
    return min(options, key=lambda option: (options[option], option is None))


def _choose_in_lookup(
    info: OperatorInfo, cut: dict[str, tuple[str, ...]], axis: str, mesh: Mesh
) -> str | None:
    """Return the first dimension of the indices while it divides evenly, then that of the table.

    Where the table is not looked up along its first dimension, that one comes before the indices.
    Only matrices are cut, and rows beside indices only where these have one or two dimensions.
    """
    table, indices = info.rule.operands
    rows, places = base(table[0][0]), base(indices[0][0]) if indices else None
    stays = any(rows in map(base, dims) for dims in info.rule.results[0])
    order = (rows, places) if stays else (places, rows)
    for factor in order:
        if factor is None or (factor == rows and len(table) != 2):
            continue
        if factor == rows and len(indices) > 2 and cut.get(places or ""):
            continue
        axes = (*cut.get(factor, ()), axis)
        if info.rule.sizes[factor] % mesh.extent(axes) == 0:
            return factor
    return None


def _local_elements(
    dims: Sequence[tuple[str, ...]], info: OperatorInfo, cut: dict[str, tuple[str, ...]], mesh: Mesh
) -> float:
    layout = Layout(
        tuple(tuple(a for f in factors for a in cut.get(base(f), ())) for factors in dims)
    )
    size = 1.0
    for factors in dims:
        for factor in factors:
            size *= info.rule.sizes[factor]
    return size / mesh.extent(layout.split_axes)


def _lacking(
    info: OperatorInfo,
    node: Node,
    factor: str,
    cut: dict[str, tuple[str, ...]],
    mesh: Mesh,
    parameters: frozenset[str],
) -> float:
    """Return half of the elements of the tensors that lack a factor, weights counted less."""
    total = 0.0
    for name, dims in zip(node.operands, info.rule.operands, strict=True):
        if _dimension(dims, factor) is None:
            share = _WEIGHT if name in parameters else 1.0
            total += share * _local_elements(dims, info, cut, mesh) / 2
    for dims in info.rule.results:
        if _dimension(dims, factor) is None:
            total += _local_elements(dims, info, cut, mesh) / 2
    return total


def _mismatch(
    info: OperatorInfo,
    node: Node,
    factor: str | None,
    cut: dict[str, tuple[str, ...]],
    mesh: Mesh,
    landed: dict[str, int | None],
    parameters: frozenset[str],
) -> float:
    """Return the price of operands that this round has already cut in another dimension."""
    total = 0.0
    for name, dims in zip(node.operands, info.rule.operands, strict=True):
        known = name in landed and name not in parameters
        if known and landed[name] != _dimension(dims, factor):
            total += _REDISTRIBUTION * _local_elements(dims, info, cut, mesh)
    return total
