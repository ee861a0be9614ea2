"""Following the batch: strategies that split the first dimension of the inputs everywhere."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from shardwright.cost_model.program_profile import every_strategy
from shardwright.dataflow.samples import OWN_SAMPLES
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo, info_of
from shardwright.operators.rule import Rule
from shardwright.search.space.casts import parameter_casts

AtWeight = Callable[[OperatorInfo, Node, dict[str, tuple[str, ...]]], None]
"""May split further factors of an operator that reads a parameter."""


def follow_batch(
    graph: Graph, mesh: Mesh, axes: Sequence[str], at_weight: AtWeight | None = None
) -> dict[str, Strategy]:
    """Return strategies that split the first dimension of the inputs and follow it everywhere.

    Parameters
    ----------
    graph : Graph
        The whole program.
    mesh : Mesh
        The mesh.
    axes : sequence of str
        Axes that split the batch, as many of them as divide it.
    at_weight : callable, optional
        May split further factors of an operator that reads a parameter.
    """
    layouts = {value.name: batch_layout(value, mesh, axes) for value in graph.inputs}
    copies = {cast.name for cast in parameter_casts(graph).values()}
    parameters = copies | {parameter.name for parameter in graph.parameters}
    strategies = {}
    for node in graph.nodes:
        if node.name in copies:  # they follow their parameters
            strategies[node.name] = Strategy()
            continue
        info = info_of(graph, node)
        factors = followed(info, [layouts.get(name) for name in node.operands], mesh)
        if at_weight is not None and parameters.intersection(node.operands):
            at_weight(info, node, factors)
        strategy = legal_strategy(info, factors, mesh)
        strategies[node.name] = strategy
        results = info.rule.result_layouts(strategy, mesh)
        for result, layout in zip(node.results, results, strict=True):
            layouts[result.name] = layout.reduced()
    return strategies


def batch_layout(value: Value, mesh: Mesh, axes: Sequence[str]) -> Layout:
    """Return an input's layout: its first dimension split over the axes that divide it."""
    taken: tuple[str, ...] = ()
    for axis in axes if value.type.rank else ():
        if value.type.shape[0] % mesh.extent((*taken, axis)) == 0:
            taken = (*taken, axis)
    return Layout((taken, *((),) * (value.type.rank - 1))[: value.type.rank])


def can_split(
    rule: Rule, factor: str, axes: Sequence[str], mesh: Mesh, uneven: bool = False
) -> bool:
    """Return whether axes split a factor into parts, equal ones unless `uneven`."""
    if rule.kinds[factor] in ("whole", "halo"):
        return False
    count = mesh.extent(axes)
    return rule.sizes[factor] >= count if uneven else rule.sizes[factor] % count == 0


def followed(
    info: OperatorInfo, input_layouts: Sequence[Layout | None], mesh: Mesh, uneven: bool = False
) -> dict[str, tuple[str, ...]]:
    """Give each factor the axes that split it in the first operand that has it.

    With `uneven`, parts may differ in size where a dimension is one factor.
    """
    axes_of: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for dims, layout in zip(info.rule.operands, input_layouts, strict=True):
        if layout is None:
            continue
        for factors, axes in zip(dims, layout.splits, strict=True):
            free = tuple(axis for axis in axes if axis not in used)
            for factor in factors:
                part: tuple[str, ...] = ()
                alone = uneven and len(factors) == 1
                while free and can_split(info.rule, factor, (*part, free[0]), mesh, alone):
                    part, free = (*part, free[0]), free[1:]
                if part and factor not in axes_of:
                    axes_of[factor] = part
                    used.update(part)
                if mesh.extent(part) != info.rule.sizes[factor]:
                    break
    if info.name == OWN_SAMPLES and input_layouts[0] is not None:
        axes = input_layouts[0].splits[0]  # an input that is gathered, so that its parts are taken
        if axes and can_split(info.rule, "b", axes, mesh, uneven):
            axes_of["b"] = axes
    return axes_of


def legal_strategy(
    info: OperatorInfo, factors: Mapping[str, tuple[str, ...]], mesh: Mesh
) -> Strategy:
    """Return a strategy of the operator, its axes in mesh order; later factors give way."""
    names = dict.fromkeys((*info.rule.sizes, *info.rule.marks))  # marks come last
    ordered = {f: mesh.ordered(factors[f]) for f in names if f in factors}
    strategy = Strategy.of(ordered)
    while strategy not in _strategies(info, mesh):
        ordered.popitem()
        strategy = Strategy.of(ordered)
    return strategy


@lru_cache(maxsize=4096)  # equal operators share their information
def _strategies(info: OperatorInfo, mesh: Mesh) -> frozenset[Strategy]:
    return frozenset(every_strategy(info, mesh))
