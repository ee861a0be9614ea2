"""The decisions of a pipeline, put together from those of its stages."""

from collections.abc import Mapping, Sequence

from shardwright.dataflow.stretches import Stretch
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, SharedLayout, Strategy


def assembled(graph: Graph, parts: Sequence[Stretch], plans: Sequence[Decisions]) -> Decisions:
    """Return the decisions of a whole program, from those of all of its stages.

    What several stages compute or are fed is decided by the first of them. The layout that the
    readers of a tensor share is that of its own stage, if it has readers there.

    Parameters
    ----------
    graph : Graph
        The whole program.
    parts : sequence of Stretch
        The stages.
    plans : sequence of Decisions
        The decisions of each.
    """
    strategies: dict[str, Strategy] = {}
    stored: dict[str, Layout] = {}
    shared: dict[str, SharedLayout] = {}
    for part, plan in reversed(list(zip(parts, plans, strict=True))):
        strategies.update(plan.strategies)
        kept = (name for name in plan.stored if name not in part.received)
        stored.update((name, plan.stored[name]) for name in kept)
        shared.update(plan.shared_layouts)
    names = [node.name for node in graph.nodes]
    values = [value.name for value in graph.inputs] + [p.name for p in graph.parameters]
    return Decisions(
        plans[0].mesh,
        {name: strategies.get(name, Strategy()) for name in names},
        {name: _stored(graph, name, stored) for name in values},
        {name: shared[name] for name in graph.values if name in shared},
        frozenset(name for plan in plans for name in plan.regathered),
        frozenset(name for plan in plans for name in plan.recomputed),
        frozenset(name for plan in plans for name in plan.gathered_in_passes),
        frozenset(name for plan in plans for name in plan.reduced_in_passes),
        offloaded=frozenset(name for plan in plans for name in plan.offloaded),
    )


def _stored(graph: Graph, name: str, stored: Mapping[str, Layout]) -> Layout:
    """Return how an input or parameter is stored; one that nothing reads, whole."""
    return stored.get(name) or Layout.replicated(graph.values[name].type.rank)
