"""Communication on the page: each redistribution with its reason, equal layers folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.reasons import Collective, collectives
from shardwright.cost_model.pipelines.mixed import AnyCluster, groups_on
from shardwright.cost_model.streams import placements
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import MOST_NAMES, pattern


def communication_document(
    compiled: Compiled, cluster: AnyCluster, lines: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the redistributions of a step, most seconds first; equal ones of layers are one row.

    Parameters
    ----------
    compiled : Compiled
        The compiled model.
    cluster : Cluster or MixedCluster
        The devices that times are predicted for.
    lines : mapping of str to str, optional
        The line of the model's own code that applies each operator, by name.
    """
    moves: dict[str, list[Collective]] = {}
    for item in collectives(compiled, cluster):
        moves.setdefault(item.move, []).append(item)
    facts = _Facts(compiled.program, cluster, lines or {})
    folds: dict[object, list[list[Collective]]] = {}
    for steps in moves.values():
        key = facts.steps(steps), pattern(steps[0].reason), facts.queue(steps[0])
        folds.setdefault(key, []).append(steps)
    rows = [facts.row(fold) for fold in folds.values()]
    return sorted(rows, key=lambda row: -row["seconds"])


class _Facts:
    """What is known of the nodes of a program, by name."""

    def __init__(self, program: Graph, cluster: AnyCluster, lines: Mapping[str, str]) -> None:
        nodes = program.nodes
        self.times = {n.name: t for n, t in zip(nodes, times_run(program), strict=True)}
        self.lines = lines
        groups = groups_on(cluster, program.mesh or Mesh(()))
        self.placed = {
            node.name: placements(program, groups.of_node(node, program))[i]
            for i, node in enumerate(nodes)
        }

    def steps(self, steps: Sequence[Collective]) -> str:
        """Return the collectives of a redistribution, in words."""
        return ", ".join(f"{item.node.operator} over {' '.join(item.axes)}" for item in steps)

    def queue(self, item: Collective) -> str:
        """Return the queue in which a collective waits."""
        return self.placed[item.node.name].queue

    def _lines(self, items: Sequence[Collective]) -> list[str]:
        """Return the lines of the model that the operators of collectives are from."""
        found = (self.lines.get(item.operator) for item in items)
        return list(dict.fromkeys(line for line in found if line))[:MOST_NAMES]

    def _links(self, items: Sequence[Collective]) -> list[str]:
        """Return the links of collectives: equal layers may be on devices of several kinds."""
        return list(dict.fromkeys(link for i in items for link in self.placed[i.node.name].levels))

    def row(self, fold: Sequence[Sequence[Collective]]) -> dict[str, Any]:
        """Return the row of a redistribution in equal layers."""
        items = [item for steps in fold for item in steps]
        times = [self.times[item.node.name] for item in items]
        first, reason = fold[0][0], fold[0][0].reason
        return {
            "collectives": self.steps(fold[0]),
            "layers": len(fold),
            "count": sum(times),
            "bytes": sum(n * item.nbytes for n, item in zip(times, items, strict=True)),
            "seconds": sum(n * item.seconds for n, item in zip(times, items, strict=True)),
            "links": self._links(items),
            "queue": self.queue(first),
            "phase": first.node.provenance.phase,
            "reason": reason if len(fold) == 1 else pattern(reason),
            "operator": first.operator,
            "lines": self._lines(items),
        }
