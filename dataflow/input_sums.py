"""Sums over the samples of a batch that depend on inputs alone, known before any micro-batch.

A mean over the labels that are not ignored divides by their number, which every micro-batch needs
for its gradients and no one knows. Inputs tell it: such sums are computed once of the whole inputs,
before the loop, and every pass takes its own samples of these inputs.
"""

from dataclasses import replace

from shardwright.dataflow.samples import OWN_SAMPLES, own_samples, samples_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.provenance import Provenance
from shardwright.operators.builder import Builder

_OF_MICRO_BATCHES = ("channel_mean", "channel_variance")  # of normalizations: each has its own


def with_input_sums(graph: Graph, statistics: frozenset[str]) -> Graph:
    """Return a program whose passes need no sums over samples that inputs alone determine.

    Before::

        count = reduce_sum(kept)
        loss = div(total, count)

    After::

        labels.own = own_samples(labels)
        kept.all = not_equal(labels, ignored)
        count.all = reduce_sum(kept.all)
        loss = div(total, count.all)

    Parameters
    ----------
    graph : Graph
        A forward program of whole tensors.
    statistics : frozenset of str
        The statistics of its batch (`micro_batches.batch_statistics`).

    Returns
    -------
    Graph
        The same program where it has no such sums.
    """
    sums = _of_inputs(graph, statistics)
    if not sums or own_samples(graph):
        return graph
    needed = _needed(graph, sums)
    return _Copies(graph, sums, needed).graph()


def _of_inputs(graph: Graph, values: frozenset[str]) -> frozenset[str]:
    """Return those of some values that depend on no trained parameter and no own statistics."""
    other = {p.name for p in graph.parameters if p.trainable}
    for node in graph.nodes:
        if node.operator in _OF_MICRO_BATCHES or not other.isdisjoint(node.operands):
            other.update(result.name for result in node.results)
    return values - other


def _needed(graph: Graph, values: frozenset[str]) -> frozenset[str]:
    """Return the values that some values are computed of, and themselves."""
    needed = set(values)
    for node in reversed(graph.nodes):
        if any(result.name in needed for result in node.results):
            needed.update(node.operands)
    return frozenset(needed)


class _Copies:
    """A walk over a program that computes sums of whole inputs, and the rest of own samples."""

    def __init__(self, graph: Graph, sums: frozenset[str], needed: frozenset[str]) -> None:
        self.whole, self.sums, self.needed = graph, sums, needed
        self.build = Builder.rewriting(graph)
        self.own: dict[str, str] = {}  # what passes read, by names of inputs and sums
        self.copies: dict[str, str] = {}

    def graph(self) -> Graph:
        """Return the program."""
        self._take_samples()
        for node in self.whole.nodes:
            self.build.append(_reading(node, self.own))
            if any(result.name in self.needed for result in node.results):
                self._copy(node)
        outputs = tuple(self._kept(name) for name in self.whole.outputs)
        self.build.updates = [(old, self._kept(new)) for old, new in self.whole.updates]
        graph = self.build.graph(self.whole.name, outputs)
        marked = self.whole.recomputed, self.whole.offloaded
        return replace(graph, recomputed=marked[0], offloaded=marked[1], cuts=self.whole.cuts)

    def _take_samples(self) -> None:
        batch = samples_of(self.whole)
        for value in self.whole.inputs:
            if value.name in self.needed and value.type.shape[:1] == (batch,):
                name = self.build.unique_name(f"{value.name}.own")
                own = self.build.emit(OWN_SAMPLES, value, name=name, size=batch)
                self.own[value.name] = own.name

    def _copy(self, node: Node) -> None:
        """Emit a node again that reads whole inputs, if it depends on any."""
        if not any(name in self.own or name in self.copies for name in node.operands):
            return
        results = tuple(self._copied(result) for result in node.results)
        copy = replace(_reading(node, self.copies), results=results, provenance=Provenance())
        self.build.append(copy)

    def _copied(self, result: Value) -> Value:
        name = self.build.unique_name(f"{result.name}.all")
        self.copies[result.name] = name
        if result.name in self.sums:
            self.own[result.name] = name
        return replace(result, name=name)

    def _kept(self, name: str) -> str:
        return self.own.get(name, name) if name in self.sums else name


def _reading(node: Node, names: dict[str, str]) -> Node:
    return replace(node, operands=tuple(names.get(name, name) for name in node.operands))
