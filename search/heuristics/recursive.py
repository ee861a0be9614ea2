"""Recursive programming: halve the work once for each mesh axis, and choose the factor to split.

MindSpore's double-recursive search, restated on sharding rules. In each round an operator weighs,
for every factor that it could split, the tensors that lack the factor: they must be copied or
summed. For a product of (I, K) and (K, J) that is half of J K (times 0.1, for a weight) to split I,
half of I K to split J, half of I J to split K, and a 25th of the square of the least to split
nothing; J and K are not both split. Inputs are split by samples. A neighbour that was split
differently in the same round costs its tensor 16 times. Lookups are split by their shapes alone.
Pinned operators keep their strategies, and others see them; MindSpore does that where
``MS_INTERFERED_SAPP`` is 1. Linear in the number of operators; ignores memory, proves no bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.indexing.gather import Gather
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.linear.matmul import MatMul
from shardwright.operators.rule import base
from shardwright.search.heuristics.completion import complete
from shardwright.search.method import Heuristic
from shardwright.search.space.space import SearchSpace

# Of MindSpore's search, as the first lines of this module say.
_REDISTRIBUTION = 16.0  # on a tensor that a neighbour has split otherwise in the same round
_WEIGHT = 0.1  # on a tensor that is a weight
_REPLICATE_BELOW = 25.0  # elements up to which it costs less to split nothing

Cut = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Round:
    """One round.

    Parameters
    ----------
    axis, mesh : str, Mesh
        The axis of the round, and the mesh.
    inputs, weights : frozenset of str
        The inputs of the program; its parameters, and values that depend on parameters alone.
    split : dict of str to int or None
        The dimension of each tensor that this round has split.
    """

    axis: str
    mesh: Mesh
    inputs: frozenset[str]
    weights: frozenset[str]
    split: dict[str, int | None]


class RecursiveProgramming(Heuristic):
    """Cut round by round around the pinned operators."""

    name = "recursive_programming"

    def assignment(self, space: SearchSpace) -> tuple[int, ...]:
        """Cut the operators; complete with the cheapest storage and shared layouts."""
        pinned = {
            choice.name: option
            for choice in space.choices
            for option in choice.options
            if choice.name in space.pinned
            and len(choice.options) == 1
            and isinstance(option, Strategy)
        }
        return complete(space, recursive_programming(space.graph, space.mesh, pinned))


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
    infos = {node.name: info_of(graph, node) for node in graph.nodes}
    cut: dict[str, Cut] = {node.name: {} for node in graph.nodes}
    weights = _weights(graph)
    writers = [node for node in graph.nodes if node.results[0].name in weights]
    readers = [node for node in graph.nodes if node.results[0].name not in weights]
    for this in _rounds(graph, mesh, weights):
        for node in (*readers, *reversed(writers)):
            info, own = infos[node.name], cut[node.name]
            pin = (pinned or {}).get(node.name)
            factor = _choose(info, node, own, this) if pin is None else _pinned_factor(pin, this)
            if factor is not None:
                own[factor] = (*own.get(factor, ()), this.axis)
            _record(info, node, factor, this)
    chosen = {
        name: Strategy.of({f: axes[f] for f in infos[name].rule.sizes if f in axes})
        for name, axes in cut.items()
    }
    return {**chosen, **(pinned or {})}


def _pinned_factor(pin: Strategy, this: _Round) -> str | None:
    return next((factor for factor, axes in pin.axes.items() if this.axis in axes), None)


def _record(info: OperatorInfo, node: Node, factor: str | None, this: _Round) -> None:
    """Record the dimensions of the tensors of an operator that its factor splits."""
    for name, dims in zip(node.operands, info.rule.operands, strict=True):
        this.split.setdefault(name, _dimension(dims, factor))
    for result, dims in zip(node.results, info.rule.results, strict=True):
        this.split[result.name] = _dimension(dims, factor)


def _weights(graph: Graph) -> frozenset[str]:
    """Return the parameters, and the values that depend on parameters alone."""
    weights = {parameter.name for parameter in graph.parameters}
    for node in graph.nodes:
        if node.operands and weights.issuperset(node.operands):
            weights.update(result.name for result in node.results)
    return frozenset(weights)


def _rounds(graph: Graph, mesh: Mesh, weights: frozenset[str]) -> Iterator[_Round]:
    """Yield a round for each axis; it starts with inputs split by samples, where evenly."""
    shapes = {value.name: value.type.shape for value in graph.inputs}
    for i, axis in enumerate(mesh.names, 1):
        parts = mesh.extent(mesh.names[:i])
        split = {name: 0 for name, shape in shapes.items() if shape and shape[0] % parts == 0}
        yield _Round(axis, mesh, frozenset(shapes), weights, {**split})


def _dimension(dims: Sequence[tuple[str, ...]], factor: str | None) -> int | None:
    return next((d for d, factors in enumerate(dims) if factor in [base(f) for f in factors]), None)


def _choose(info: OperatorInfo, node: Node, cut: Cut, this: _Round) -> str | None:
    """Return the factor to split in this round; None to split nothing."""
    if node.results[0].name in this.weights:
        return _wanted(info, node, cut, this)
    if isinstance(info, Gather):
        return _choose_in_lookup(info, cut, this)
    legal = set(info.generate_strategies(this.mesh))
    options: dict[str | None, float] = {}
    for factor in info.rule.sizes:
        if isinstance(info, MatMul) and cut.get({"k": "n", "n": "k"}.get(factor, "")):
            continue
        wider = {**cut, factor: (*cut.get(factor, ()), this.axis)}
        strategy = Strategy.of({f: wider[f] for f in info.rule.sizes if f in wider})
        if strategy in legal:
            options[factor] = _lacking(info, node, factor, cut, this)
    least = min(options.values(), default=0.0)
    options[None] = least * least / _REPLICATE_BELOW
    for option in options:
        options[option] += _mismatch(info, node, option, cut, this)
    return min(options, key=lambda option: (options[option], option is None))


def _wanted(info: OperatorInfo, node: Node, cut: Cut, this: _Round) -> str | None:
    """Return the factor to split so that a weight has the layout of its reader."""
    dimension = this.split.get(node.results[0].name)
    factors = info.rule.results[0][dimension] if dimension is not None else ()
    legal = set(info.generate_strategies(this.mesh)) if factors else set()
    for factor in map(base, factors):
        wider = {**cut, factor: (*cut.get(factor, ()), this.axis)}
        if Strategy.of({f: wider[f] for f in info.rule.sizes if f in wider}) in legal:
            return factor
    return None


def _choose_in_lookup(info: OperatorInfo, cut: Cut, this: _Round) -> str | None:
    """Return the first dimension of the indices while it divides evenly, then that of the table.

    Where the table is not looked up along its first dimension, that one comes before the indices.
    Only matrices are split, and rows as well as indices only if these have one or two dimensions.
    """
    table, indices = info.rule.operands
    rows, places = base(table[0][0]), base(indices[0][0]) if indices else None
    stays = any(rows in map(base, dims) for dims in info.rule.results[0])
    for factor in (rows, places) if stays else (places, rows):
        if factor is None or (factor == rows and len(table) != 2):
            continue
        if factor == rows and len(indices) > 2 and cut.get(places or ""):
            continue
        axes = (*cut.get(factor, ()), this.axis)
        if info.rule.sizes[factor] % this.mesh.extent(axes) == 0:
            return factor
    return None


def _local_elements(
    dims: Sequence[tuple[str, ...]], info: OperatorInfo, cut: Cut, mesh: Mesh
) -> float:
    layout = Layout(
        tuple(tuple(a for f in factors for a in cut.get(base(f), ())) for factors in dims)
    )
    size = 1.0
    for factors in dims:
        for factor in factors:
            size *= info.rule.sizes[factor]
    return size / mesh.extent(layout.split_axes)


def _lacking(info: OperatorInfo, node: Node, factor: str, cut: Cut, this: _Round) -> float:
    """Return half of the elements of the tensors that lack a factor, weights counted less."""
    total = 0.0
    for position, name in enumerate(node.operands):
        dims = info.rule.operands[position]
        if _dimension(dims, factor) is None:
            weighs = name in this.weights or (isinstance(info, MatMul) and position == 1)
            share = _WEIGHT if weighs else 1.0
            total += share * _local_elements(dims, info, cut, this.mesh) / 2
    for dims in info.rule.results:
        if _dimension(dims, factor) is None:
            total += _local_elements(dims, info, cut, this.mesh) / 2
    return total


def _mismatch(info: OperatorInfo, node: Node, factor: str | None, cut: Cut, this: _Round) -> float:
    """Return the price of operands that this round has split in another dimension."""
    total = 0.0
    for position, name in enumerate(node.operands):
        # Other inputs are taken to follow the first operand.
        follows = position > 0 and name in this.inputs
        dims = info.rule.operands[0 if follows else position]
        known = name in this.split and name not in this.weights
        if known and this.split[name] != _dimension(dims, factor):
            total += _REDISTRIBUTION * _local_elements(dims, info, cut, this.mesh)
    return total
