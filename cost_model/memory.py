"""Peak memory of an emitted program on one rank, by kind of tensor."""

from collections.abc import Iterator, Mapping

from shardwright.cost_model.buffers import KINDS, Buffers, MemoryUseReport, buffers, told_kinds
from shardwright.cost_model.pipelines.stage_memory import pipeline_memory
from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.graph import Graph, Node


def peak_memory(graph: Graph, held: Buffers | None = None) -> MemoryUseReport:
    """Return the peak memory of one rank.

    Buffers are freed after their last use; views take no memory, and updates are in place. Of a
    pipeline, on the device group that takes most.

    Parameters
    ----------
    graph : Graph
        A program; without a mesh it runs whole on one device.
    held : Buffers, optional
        Its buffers, if they have other sizes.
    """
    if held is None:
        return graph.analysed("peak memory", lambda: _peak_memory(graph, buffers(graph)))
    return _peak_memory(graph, held)


def _peak_memory(graph: Graph, held: Buffers) -> MemoryUseReport:
    pipeline = pipeline_of(graph)
    if pipeline is not None:
        return pipeline_memory(pipeline, held)
    peak, at, best = -1.0, "the start", dict[str, float]()
    for node, total, now in live_memory(graph, held):
        if total > peak:
            peak, at, best = total, "the start" if node is None else node.name, dict(now)
    if held.workspaces.get(at):
        best[told_kinds(graph)[at]] += held.workspaces[at]
    return MemoryUseReport(peak, best, at, host_bytes=_host_peak(graph, held))


def live_memory(
    graph: Graph, held: Buffers
) -> Iterator[tuple[Node | None, float, Mapping[str, float]]]:
    """Yield the bytes that are live at the start and while each node runs, and those by kind.

    The second sum is without the workspace of the node, and changes with the next one.

    Parameters
    ----------
    graph : Graph
        A program without pipeline stages.
    held : Buffers
        Its buffers.
    """
    sizes, kinds = held.sizes, told_kinds(graph)
    now = dict.fromkeys(KINDS, 0.0)
    for name in (*(v.name for v in graph.inputs), *(p.name for p in graph.parameters)):
        now[kinds[name]] += sizes[name]
    dies, total = held.live.freed_after, sum(now.values())
    yield None, total, now
    for position, node in enumerate(graph.nodes):
        results = (r.name for r in node.results if not held.live.is_accumulator(r.name))
        for name in (*held.live.allocated_at(position), *results):
            now[kinds[name]] += sizes[name]
            total += sizes[name]
        yield node, total + held.workspaces.get(node.name, 0.0), now
        for name in dies.get(position, ()):
            now[kinds[name]] -= sizes[name]
            total -= sizes[name]


def _host_peak(graph: Graph, held: Buffers) -> float:
    """Return the peak bytes in host memory."""
    dies, now, peak = held.live.freed_after if held.hosted else {}, 0.0, 0.0
    for position, node in enumerate(graph.nodes if held.hosted else ()):
        now += sum(held.hosted.get(result.name, 0.0) for result in node.results)
        peak = max(peak, now)
        now -= sum(held.hosted.get(name, 0.0) for name in dies.get(position, ()))
    return peak
