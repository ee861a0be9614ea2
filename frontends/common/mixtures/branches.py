"""Mixtures of which one expert after another computes the rows that a mask selects."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.frontends.common.mixtures.lifting import Lifting, constants_of
from shardwright.frontends.common.mixtures.mixture import (
    Candidate,
    Lifted,
    Mixture,
    choice_of,
    tokens_of,
)
from shardwright.frontends.common.mixtures.probes import Run, UnknownError, choices
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array


@dataclass(frozen=True)
class _Branch:
    """What one expert computes: its last product, its rows, the choices that select them."""

    end: str
    start: str
    mask: str


def branches_of(graph: Graph, data: Mapping[str, Array]) -> Iterator[Mixture]:
    """Yield the mixtures of a program that compute expert after expert."""
    groups: dict[str, list[_Branch]] = defaultdict(list)
    back = [node for node in graph.nodes if node.operator == "combine" and _is_one(graph, node)]
    constant = constants_of(graph) if back else {}
    for node in back:
        chosen, branch = choice_of(graph, node.operands[1]), _branch(graph, node, constant)
        if chosen and branch is not None:
            groups[chosen].append(branch)
    for chosen, branches in groups.items():
        found = _mixture(graph, data, chosen, branches, constant)
        if found is not None:
            yield found


def _is_one(graph: Graph, node: Node) -> bool:
    """Return whether rows are of one expert, as a mask selects them."""
    return graph.values[node.operands[0]].type.shape[0] == 1


def _branch(graph: Graph, back: Node, constant: Mapping[str, bool]) -> _Branch | None:
    """Return what an expert computes before its rows go back."""
    local, todo = set[str](), [back.operands[0]]
    while todo:
        name = todo.pop()
        node = graph.producers.get(name)
        if name in local or name in constant or node is None or node.operator == "dispatch":
            continue
        local.add(name)
        todo += node.operands
    end, start = "", ""
    for node in graph.nodes:
        if node.name in local and any(constant.get(one) for one in node.operands):
            end = node.name
    todo = [end] if end else []
    seen = set[str]()
    while todo:
        node = graph.producers[todo.pop()]
        for name in node.operands:
            made = graph.producers.get(name)
            if made is not None and made.operator == "dispatch":
                if start not in ("", name):
                    return None
                start = name
            elif name in local and name not in seen:
                seen.add(name)
                todo.append(name)
    return _Branch(end, start, back.operands[1]) if start else None


def _mixture(
    graph: Graph,
    data: Mapping[str, Array],
    chosen: str,
    branches: Sequence[_Branch],
    constant: Mapping[str, bool],
) -> Mixture | None:
    x = tokens_of(graph, graph.producers[branches[0].start].operands[0], chosen)
    if not x:
        return None
    tokens = graph.values[x].type.elements // graph.values[x].type.shape[-1]
    order = _experts_of(graph, data, chosen, tokens, branches)
    if order is None:
        return None
    ordered = [branches[i] for i in np.argsort(order)]
    parts = [
        (branch.end, _rows_of(graph, branch.start), _expert(number, branch.mask))
        for number, branch in enumerate(ordered)
    ]
    lift = _lift(graph, ordered, constant)
    return Candidate(graph, data, chosen, len(branches), x, parts, lift).mixture()


def _rows_of(graph: Graph, start: str) -> str:
    return graph.producers[start].operands[0]


def _expert(number: int, mask: str) -> Callable[[Run], Array]:
    return lambda run: np.full(run.value(mask).shape, number)


def _experts_of(
    graph: Graph,
    data: Mapping[str, Array],
    chosen: str,
    tokens: int,
    branches: Sequence[_Branch],
) -> list[int] | None:
    """Return the expert of each branch: the one that as many tokens chose in every probe."""
    kind, counts = graph.values[chosen].type, list[tuple[list[int], Array]]()
    for probe in choices(tokens, len(branches), kind.elements // tokens):
        run = Run(graph, data, {chosen: probe.reshape(kind.shape)})
        try:
            found = [int((run.value(branch.mask) == 0).sum()) for branch in branches]
        except UnknownError:
            return None
        counts.append((found, np.bincount(probe.reshape(-1), minlength=len(branches))))
    order = []
    for number in range(len(branches)):
        fitting = [
            expert
            for expert in range(len(branches))
            if all(found[number] == count[expert] for found, count in counts)
            and expert not in order
        ]
        if not fitting:
            return None
        order.append(number if number in fitting else fitting[0])
    return order


def _lift(graph: Graph, branches: Sequence[_Branch], constant: Mapping[str, bool]) -> Lifted:
    starts = {branch.start for branch in branches}

    def lift(build: Builder, rows: Value) -> Value | None:
        experts = tuple(range(len(branches)))
        lifting = Lifting(graph, build, rows, starts, constant, experts)
        return lifting.lifted(tuple(branch.end for branch in branches))

    return lift
