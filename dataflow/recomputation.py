"""Recomputation: forward values that the gradient reads, and that are not saved for backward.

A value is computed again at the first gradient that reads it; the copy serves all later ones. Its
operands are computed again first, unless they are saved: inputs, parameters, and what is not marked
as recomputed. Redistributions and halo exchanges of a recomputed tensor are emitted again with it;
what came from another pipeline stage is saved. Of a regathered tensor they alone are emitted again:
it is saved as its operator leaves it. So is an offloaded tensor, in host memory: it is copied there
when its operator has run, and back at the first gradient that reads it.
Random operators draw the same numbers again: these are a function of the key and the step.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.provenance import COPIES, Provenance
from shardwright.operators.builder import Builder


@dataclass
class Recomputation:
    """Emits the forward nodes whose results are not saved for backward again.

    Parameters
    ----------
    graph : Graph
        The forward program.
    build : Builder
        Where they are emitted.
    """

    graph: Graph
    build: Builder
    _copies: dict[str, str] = field(default_factory=dict)
    _hosted: dict[str, Node] = field(default_factory=dict)  # copies to host memory, by tensor

    @cached_property
    def _remade(self) -> frozenset[str]:
        """The nodes that are emitted again where their results are read."""
        marked = frozenset(self.graph.recomputed)
        some = marked or self.graph.regathered or self.graph.offloaded
        nodes = (n for n in self.graph.nodes if some or n.attributes.get("recompute"))
        return frozenset(node.name for node in nodes if self._is_marked(node, marked))

    @cached_property
    def _position(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.graph.nodes)}

    def _is_marked(self, node: Node, marked: frozenset[str]) -> bool:
        """Return whether a node computes, or moves, a tensor that is not saved."""
        if node.operator == "mirror" or self.graph.changes_stage(node):
            return False
        origin = node.provenance
        if origin.role not in COPIES:
            return origin.operator in marked or self._is_offloaded(node)
        producer = self.graph.producers.get(origin.tensor)
        if node.attributes.get("recompute"):
            return True
        if producer is None:
            return False
        operator = producer.provenance.operator
        return operator in marked or (operator in self._saved_at_home and _at_home(node, producer))

    @cached_property
    def _saved_at_home(self) -> frozenset[str]:
        """The operators whose result is saved as they leave it."""
        return frozenset((*self.graph.regathered, *self.graph.offloaded))

    @cached_property
    def _offloaded(self) -> frozenset[str]:
        return frozenset(self.graph.offloaded)

    def _is_offloaded(self, node: Node) -> bool:
        """Return whether a node is an offloaded operator itself."""
        origin = node.provenance
        return origin.role == "forward" and origin.operator in self._offloaded

    def is_recomputed(self, name: str) -> bool:
        """Return whether a value is computed again where a gradient reads it."""
        producer = self._producer(name)
        return producer is not None and producer.name in self._remade

    def values(self, names: Iterable[str]) -> dict[str, str]:
        """Return the recomputed values among `names`, each with its copy, emitted if it is new."""
        wanted = [name for name in names if self.is_recomputed(name)]
        needed = self._needed(wanted)
        scope, provenance = self.build.scope, self.build.provenance
        for name in sorted(needed, key=self._position.__getitem__):
            self._emit(self.graph.producers[name])
        self.build.scope, self.build.provenance = scope, provenance
        return {name: self._copy(name) for name in wanted}

    def _producer(self, name: str) -> Node | None:
        """Return the node that computes a value, before any mirror."""
        return self.graph.producers.get(self._before_mirrors(name))

    def _before_mirrors(self, name: str) -> str:
        node = self.graph.producers.get(name)
        while node is not None and node.operator == "mirror":
            name = node.operands[0]
            node = self.graph.producers.get(name)
        return name

    def _copy(self, name: str) -> str:
        """Return the name under which the backward pass reads a forward value."""
        if not self.is_recomputed(name):
            return name
        return self._copies[self._before_mirrors(name)]

    def _needed(self, names: Iterable[str]) -> frozenset[str]:
        """Return the nodes that have to be emitted for some values, and are not yet."""
        needed: set[str] = set()
        rest = list(names)
        while rest:
            node = self._producer(rest.pop())
            if node is None or node.name in needed or node.name not in self._remade:
                continue
            if node.name not in self._copies:
                needed.add(node.name)
                rest += () if self._is_offloaded(node) else node.operands
        return frozenset(needed)

    def _emit(self, node: Node) -> None:
        """Emit a node again, or copy its results from host memory."""
        if self._is_offloaded(node):
            self._reload(node)
            return
        operands = tuple(map(self._copy, node.operands))
        origin, values, build = node.provenance, self.graph.values, self.build
        tensor = origin.tensor if origin.role in COPIES else node.name
        build.scope = node.scope
        build.provenance = Provenance(origin.operator, "recompute", tensor)
        if node.operator == "redistribute":
            layout = node.results[0].layout
            assert layout is not None
            source = replace(values[node.operands[0]], name=operands[0])
            self._copies[node.name] = build.redistribute(source, layout).name
            return
        results = tuple(
            replace(result, name=build.unique_name(f"{result.name}.again"))
            for result in node.results
        )
        build.append(replace(node, operands=operands, results=results, provenance=build.provenance))
        for result, copy in zip(node.results, results, strict=True):
            self._copies[result.name] = copy.name

    def _reload(self, node: Node) -> None:
        """Copy the results of an operator from host memory, where they are copied after it."""
        build, origin = self.build, node.provenance
        build.scope = node.scope
        for result in node.results:
            moved = Provenance(origin.operator, "offload", result.name)
            build.provenance = replace(moved, role="reload")
            hosted = Value(
                build.unique_name(f"{result.name}.host"),
                replace(result.type, in_host=True),
                result.layout,
            )
            self._hosted[result.name] = Node(
                "to_host", (result.name,), (hosted,), {}, node.scope, None, moved
            )
            copy = build.emit("from_host", hosted, name=f"{result.name}.back")
            self._copies[result.name] = copy.name

    def with_host_copies(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Yield nodes, and after the operators of offloaded tensors the copies to host memory."""
        for node in nodes:
            yield node
            for result in node.results:
                if result.name in self._hosted:
                    yield self._hosted[result.name]


def _at_home(node: Node, producer: Node) -> bool:
    """Return whether a copy of a tensor is in the pipeline stage that computes the tensor."""
    copy, made = node.results[0].layout, producer.results[0].layout
    return copy is not None and made is not None and copy.stage == made.stage
