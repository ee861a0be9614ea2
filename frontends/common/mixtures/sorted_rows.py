"""Mixtures whose experts compute on rows that are sorted by expert, by products of groups."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from shardwright.frontends.common.mixtures.lifting import Lifting, constants_of
from shardwright.frontends.common.mixtures.mixture import (
    Candidate,
    Lifted,
    Mixture,
    choice_of,
    cone,
    tokens_of,
)
from shardwright.frontends.common.mixtures.probes import Run
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array


def sorted_rows_of(graph: Graph, data: Mapping[str, Array]) -> Iterator[Mixture]:
    """Yield the mixtures of a program whose rows are sorted."""
    groups: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.operator == "dispatch" and (key := _group(graph, node)):
            groups[key].append(node)
    constant = constants_of(graph) if groups else {}
    for (chosen, experts), entered in groups.items():
        found = _mixture(graph, data, chosen, experts, entered, constant)
        if found is not None:
            yield found


def _group(graph: Graph, node: Node) -> tuple[str, int] | None:
    """Return the choices that rows are sorted by, and how many experts there are."""
    experts, group = node.attributes["experts"], graph.values[node.operands[1]].type
    made = graph.producers.get(node.operands[1])
    if made is None or made.operator != "reduce_sum":  # as `group_of_rows` counts ends
        return None  # rows that are dispatched by choices already
    chosen = choice_of(graph, node.operands[1])
    if not isinstance(experts, int) or experts < 2 or not chosen or chosen == node.operands[1]:
        return None
    size = graph.values[chosen].type.elements
    return (chosen, experts) if group.shape == (size, 1) else None


def _mixture(
    graph: Graph,
    data: Mapping[str, Array],
    chosen: str,
    experts: int,
    entered: list[Node],
    constant: Mapping[str, bool],
) -> Mixture | None:
    within = {node.operands[1] for node in entered}
    left = [n for n in graph.nodes if n.operator == "combine" and n.operands[1] in within]
    before = [cone(graph, [node.operands[0]], {chosen}) for node in entered]
    ends = [node.name for node in left if not any(node.name in one for one in before)]
    starts = {
        node.operands[0]
        for node, one in zip(entered, before, strict=True)
        if not any(back.name in one for back in left)
    }
    if len(ends) != 1 or len(starts) != 1:
        return None
    (end,), (start,) = ends, starts
    x = tokens_of(graph, start, chosen)
    if not x:
        return None
    group = entered[0].operands[1]
    lift = _lift(graph, end, start, constant)
    parts = [(end, start, _expert_of(group))]
    return Candidate(graph, data, chosen, experts, x, parts, lift).mixture()


def _expert_of(group: str) -> Callable[[Run], Array]:
    return lambda run: run.value(group)


def _lift(graph: Graph, end: str, start: str, constant: Mapping[str, bool]) -> Lifted:
    def lift(build: Builder, rows: Value) -> Value | None:
        return Lifting(graph, build, rows, {start}, constant).lifted((end,))

    return lift
