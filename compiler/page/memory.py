"""Memory on the page: live bytes over the step by kind, and at the peak by layer.

A long series is shortened: of every part of the step the moment with the most bytes is drawn, so
the peak stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.compiler.page.model import scopes
from shardwright.compiler.plans.document import MemoryDocument
from shardwright.cost_model.buffers import KINDS, buffer_kinds, buffers
from shardwright.cost_model.events import Event, Timeline
from shardwright.cost_model.live_bytes import Floats, LiveRanges, present_names
from shardwright.ir.graph import Graph, Node

MOST_MOMENTS = 1500  # of a series
MOST_OF_ALL = 16_000  # of all series


def memory_document(
    source: Graph, program: Graph, timeline: Timeline, memory: MemoryDocument
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
    """
    groups, layers = _groups(source, program, timeline)
    return {
        "kinds": list(KINDS),
        "peak_bytes": memory.peak_bytes,
        "by_kind": dict(memory.by_kind),
        "at": memory.at,
        "limit_bytes": memory.limit,
        "by_group": list(memory.by_group),
        "host_bytes": memory.host_bytes,
        "series": [
            _series(*group, min(MOST_MOMENTS, MOST_OF_ALL // len(groups))) for group in groups
        ],
        "layers": layers,
    }


def _groups(
    source: Graph, program: Graph, timeline: Timeline
) -> tuple[list[tuple[Floats, Floats]], list[dict[str, Any]]]:
    """Return moments and bytes by kind of each device group, and the layers at the peak."""
    record = timeline.record
    if record.group_live_bytes:
        moments = [np.array([at for at, _ in live]) for live in record.group_live_bytes]
        return list(zip(moments, record.group_kinds, strict=True)), []
    account = _Account(program, record.simulated or record.events)
    moments_of_rank, by_kind = account.series()
    return [(moments_of_rank, by_kind)], account.layers(source)


def _series(moments: Floats, by_kind: Floats, most: int) -> dict[str, Any]:
    """Return a series, shortened to its highest moments."""
    totals = by_kind.sum(axis=1)
    kept = highest(totals, most)
    return {
        "moments": len(totals),
        "times": [float(f"{t:.8g}") for t in moments[kept]],
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
        self.program, self.held = program, buffers(program)
        self.kind_of = buffer_kinds(program)
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

    def at_peak(self) -> Mapping[str, float]:
        """Return the bytes of the buffers that are live at the peak."""
        live = {name: self.held.sizes[name] for name in present_names(self.program)}
        last = int(self.totals.argmax())
        for buffer, nbytes in zip(
            self.changes.buffers[:last].tolist(), self.changes.nbytes[:last].tolist(), strict=True
        ):
            name = self.names[buffer]
            live[name] = live.get(name, 0.0) + nbytes
        return live

    def layers(self, source: Graph) -> list[dict[str, Any]]:
        """Return the bytes of each layer at the peak, by kind, in the order of the model."""
        place = _Places(source, self.program)
        found: dict[str, dict[str, float]] = {}
        for name, nbytes in self.at_peak().items():
            if round(nbytes) > 0:
                own = found.setdefault(layer_of(place.scope(name)), {})
                kind = self.kind_of[name]
                own[kind] = own.get(kind, 0.0) + nbytes
        order = {layer: i for i, layer in enumerate(place.layers())}
        ordered = sorted(found.items(), key=lambda item: order.get(item[0], len(order)))
        return [{"layer": layer, "bytes": own} for layer, own in ordered]


class _Places:
    """Finds the scope of every buffer."""

    def __init__(self, source: Graph, program: Graph) -> None:
        self.scopes, self.producers = scopes(source), program.producers
        self.weights = {p.name: p.weight or p.name for p in program.parameters}

    def layers(self) -> Iterator[str]:
        """Yield the layers in the order of the model."""
        yield from dict.fromkeys(layer_of(scope) for scope in self.scopes.values())

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
    """Return the layer of a scope: its first part, with its number.

    Examples
    --------
    >>> layer_of("blocks/3/attention/query"), layer_of("embedding/table"), layer_of("")
    ('blocks/3', 'embedding', 'the rest')
    """
    parts = scope.split("/")
    numbered = len(parts) > 1 and parts[1].isdecimal()
    return "/".join(parts[: 1 + numbered]) or "the rest"
