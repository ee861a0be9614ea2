"""Memory on the page: live bytes over the step by kind, and at the peak by layer and kind.

A long series is shortened: of every part of the step the moment with the most bytes is drawn, so
the peak stays.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.compiler.page.page_model import scopes
from shardwright.compiler.page.timelines import MOST_DRAWN, MOST_OF_ROW, rounded
from shardwright.compiler.plans.document import MemoryDocument
from shardwright.cost_model.buffers import KINDS, buffers, told_kinds
from shardwright.cost_model.events import Event, Timeline
from shardwright.cost_model.live_bytes import Floats, LiveRanges, present_names
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.pipelines.stage_memory import Columns
from shardwright.cost_model.pipelines.step import group_peaks
from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.graph import Graph, Node


def memory_document(
    source: Graph,
    program: Graph,
    timeline: Timeline,
    memory: MemoryDocument,
    cluster: AnyCluster,
) -> dict[str, Any]:
    """Return the memory of a step.

    Parameters
    ----------
    source, program : Graph
        The model, and the program of a rank.
    timeline : Timeline
        The timeline of a step.
    memory : MemoryDocument
        The memory that the plan states.
    cluster : Cluster or MixedCluster
        The devices that the timeline is for.
    """
    groups, peaks = _groups(source, program, timeline, cluster)
    limits = memory.limit_by_group or (memory.limit,) * len(groups)
    most = min(MOST_OF_ROW, MOST_DRAWN // len(groups))
    return {
        "kinds": list(KINDS),
        "peak_bytes": memory.peak_bytes,
        "by_kind": dict(memory.by_kind),
        "at": memory.at,
        "limit_bytes": memory.limit,
        "by_group": list(memory.by_group),
        "host_bytes": memory.host_bytes,
        "series": [
            _series(*group, most) | {"limit_bytes": limit}
            for group, limit in zip(groups, limits, strict=True)
        ],
        "peaks": peaks,
    }


def peaks_by_layer(
    source: Graph, program: Graph, timeline: Timeline, cluster: AnyCluster
) -> list[dict[str, Any]]:
    """Return the peak of each device group by layer and kind: ``at``, and ``layers``."""
    return _groups(source, program, timeline, cluster)[1]


def _groups(
    source: Graph, program: Graph, timeline: Timeline, cluster: AnyCluster
) -> tuple[list[tuple[Floats, Floats]], list[dict[str, Any]]]:
    """Return moments and bytes by kind of each device group, and its peak by layer and kind."""
    record, places = timeline.record, _Places(source, program)
    if record.group_live_bytes:
        moments = [np.array([at for at, _ in live]) for live in record.group_live_bytes]
        peaks = _peaks_of_groups(places, program, timeline.window_bytes, cluster)
        return list(zip(moments, record.group_kinds, strict=True)), peaks
    account = _Account(program, record.simulated or record.events)
    moments_of_rank, by_kind = account.series()
    return [(moments_of_rank, by_kind)], [account.peak(places)]


def _peaks_of_groups(
    places: "_Places", program: Graph, window: float, cluster: AnyCluster
) -> list[dict[str, Any]]:
    """Return the peak of every device group of a pipeline, by layer and kind."""
    pipeline = pipeline_of(program)
    assert pipeline is not None
    kinds = told_kinds(program)
    parts = {name: (layer_of(places.scope(name)), kinds[name]) for name in program.values}
    position = {part: i for i, part in enumerate(dict.fromkeys(parts.values()))}
    columns = Columns(len(position), {name: position[part] for name, part in parts.items()})
    return [
        {
            "at": rise.at,
            "layers": places.listed(zip(position, rise.peak.tolist(), strict=True)),
        }
        for rise in group_peaks(pipeline, cluster, window, columns)
    ]


def _series(moments: Floats, by_kind: Floats, most: int) -> dict[str, Any]:
    """Return a series, shortened to its highest moments."""
    totals = by_kind.sum(axis=1)
    kept = highest(totals, most)
    return {
        "moments": len(totals),
        "times": [rounded(float(t)) for t in moments[kept]],
        "bytes": [[round(float(x)) for x in row] for row in by_kind[kept]],
        "peak_bytes": float(totals.max(initial=0.0)),
    }


def highest(totals: Floats, most: int) -> Sequence[int]:
    """Return the positions of the highest moments of equal parts of a series, in order."""
    if len(totals) <= most:
        return range(len(totals))
    parts = np.array_split(np.arange(len(totals)), most)
    return [int(part[totals[part].argmax()]) for part in parts]


class _Account:
    """The buffers of a program over the time of a step."""

    def __init__(self, program: Graph, events: Sequence[Event]) -> None:
        self.program, self.held, self.events = program, buffers(program), events
        self.kind_of = told_kinds(program)
        position = {node.name: i for i, node in enumerate(program.nodes)}
        ranges = LiveRanges(program, self.held, [position[e.node.name] for e in events])
        self.changes = ranges.changes(
            np.array([event.start for event in events]), np.array([event.end for event in events])
        )
        self.names = ranges.names
        self.totals = ranges.totals(self.changes)

    def series(self) -> tuple[Floats, Floats]:
        """Return the moments, and the live bytes by kind from each on."""
        place = {kind: i for i, kind in enumerate(KINDS)}
        kinds = np.array([place[self.kind_of[name]] for name in self.names], np.intp)
        count = len(self.changes.moments)
        changed = np.zeros((count + 1, len(KINDS)))
        for name in present_names(self.program):
            changed[0, place[self.kind_of[name]]] += self.held.sizes[name]
        changed[np.arange(1, count + 1), kinds[self.changes.buffers]] = self.changes.nbytes
        return np.concatenate([[0.0], self.changes.moments]), changed.cumsum(axis=0)

    def at_peak(self) -> tuple[str, Mapping[str, float]]:
        """Return the node during which the peak is reached, and the bytes of the live buffers."""
        live = {name: self.held.sizes[name] for name in present_names(self.program)}
        last = int(self.totals.argmax())
        for buffer, nbytes in zip(
            self.changes.buffers[:last].tolist(), self.changes.nbytes[:last].tolist(), strict=True
        ):
            name = self.names[buffer]
            live[name] = live.get(name, 0.0) + nbytes
        at = self.events[self.changes.executions[last - 1]].node.name if last else "the start"
        return at, live

    def peak(self, places: "_Places") -> dict[str, Any]:
        """Return the peak by layer and kind."""
        at, live = self.at_peak()
        parts = (
            ((layer_of(places.scope(name)), self.kind_of[name]), nbytes)
            for name, nbytes in live.items()
            if round(nbytes) > 0
        )
        return {"at": at, "layers": places.listed(parts)}


class _Places:
    """Finds the scope of every buffer."""

    def __init__(self, source: Graph, program: Graph) -> None:
        self.scopes, self.producers = scopes(source), program.producers
        self.weights = {p.name: p.weight or p.name for p in program.parameters}

    def listed(self, parts: Iterable[tuple[tuple[str, str], float]]) -> list[dict[str, Any]]:
        """Return the bytes of layers by kind, in the order of the model.

        Parameters
        ----------
        parts : iterable of ((str, str), float)
            Layer and kind, and bytes of them.
        """
        found: dict[str, dict[str, float]] = {}
        for (layer, kind), nbytes in parts:
            if round(nbytes) > 0:
                own = found.setdefault(layer, {})
                own[kind] = own.get(kind, 0.0) + nbytes
        layers = dict.fromkeys(layer_of(scope) for scope in self.scopes.values())
        order = {layer: i for i, layer in enumerate(layers)}
        ordered = sorted(found.items(), key=lambda item: order.get(item[0], len(order)))
        return [{"layer": layer, "bytes": own} for layer, own in ordered]

    def scope(self, name: str) -> str:
        """Return the scope of a buffer."""
        if name in self.weights:
            return self._of_parameter(self.weights[name])
        node = self.producers.get(name)
        return "" if node is None else self._of_node(node)

    def _of_node(self, node: Node) -> str:
        if node.scope:
            return node.scope
        origin = node.provenance
        if origin.operator in self.scopes:
            return self.scopes[origin.operator]
        tensor = origin.tensor
        return self._of_parameter(tensor) if tensor in self.weights else ""

    def _of_parameter(self, name: str) -> str:
        return name.replace(".", "/").rpartition("/")[0]


def layer_of(scope: str) -> str:
    """Return the layer of a scope: its parts up to the first number, or else the first.

    Examples
    --------
    >>> layer_of("blocks/3/attention/query"), layer_of("decoder/blocks/3/norm/0/weight")
    ('blocks/3', 'decoder/blocks/3')
    >>> layer_of("embedding/table"), layer_of("decoder/head"), layer_of("")
    ('embedding', 'decoder', 'the rest')
    """
    parts = scope.split("/")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return "/".join(parts[: 1 + (numbers[0] if numbers else 0)]) or "the rest"
