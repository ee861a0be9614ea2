"""Linear recurrences that were unrolled: one operator again.

The loop over positions of a state space model (Mamba) is traced as a chain of products and sums,
h = a h' + b, of slices of two tensors. It becomes a `linear_recurrence`; what every step makes of
its state, where it is stacked again, becomes one computation of all steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardwright.frontends.common.patterns.matches import attribute_of
from shardwright.frontends.common.patterns.steps import OfSteps, Steps
from shardwright.ir.graph import Graph, Node, Value, renamed_result
from shardwright.operators.builder import Builder

_FEWEST = 3  # steps of a recurrence


@dataclass
class _Chain:
    """Steps h = a h' + b, each of the state before.

    Parameters
    ----------
    initial : str
        The state before the first.
    states, factors, terms : list of str
        The states, and a and b of each step.
    """

    initial: str
    states: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)

    def add(self, state: str, factor: str, term: str) -> None:
        """Add a step."""
        self.states.append(state)
        self.factors.append(factor)
        self.terms.append(term)


def rerolled(graph: Graph) -> Graph:
    """Return the graph with unrolled linear recurrences as operators; dead nodes are not removed.

    Parameters
    ----------
    graph : Graph
        The imported program.
    """
    chains = _chosen(graph)
    if not chains:
        return graph
    rolls = _Rolls(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        rolls.build.nodes, rolls.build.scope = [], node.scope
        if node.name in chains:
            rolls.roll(chains[node.name])
        nodes.extend(rolls.replacement(node))
    return replace(graph, nodes=tuple(nodes)) if rolls.places else graph


def _chosen(graph: Graph) -> dict[str, _Chain]:
    """Return chains that share no states, longest first, by their first state."""
    ends: dict[tuple[str, int, int], _Chain] = {}
    found: list[_Chain] = []
    for node in graph.nodes:
        for before, factor, term, place in _readings(graph, node):
            chain = ends.pop((before, *place), None)
            if chain is None:
                chain = _Chain(before)
                found.append(chain)
            chain.add(node.name, factor, term)
            ends[node.name, *place] = chain
    chosen: dict[str, _Chain] = {}
    taken: set[str] = set()
    for chain in sorted(found, key=lambda one: -len(one.states)):
        if len(chain.states) >= _FEWEST and taken.isdisjoint(chain.states):
            chosen[chain.states[0]] = chain
            taken.update(chain.states)
    return chosen


def _readings(graph: Graph, node: Node) -> Iterator[tuple[str, str, str, tuple[int, int]]]:
    """Yield what may be h', a and b of a sum, and where h' stands."""
    if node.operator != "add":
        return
    for i, j in ((0, 1), (1, 0)):
        product = graph.producers.get(node.operands[i])
        if product is None or product.operator != "mul":
            continue
        for k in (0, 1):
            yield product.operands[k], product.operands[1 - k], node.operands[j], (i, k)


class _Rolls:
    """Emits recurrences, and takes the states of every step from them."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.build = graph, Builder(graph=graph)
        self.steps = Steps(graph, self.build)
        self.places: dict[str, tuple[Value, int, int]] = {}  # of states

    def roll(self, chain: _Chain) -> None:
        """Emit a recurrence; nothing if its factors or terms are not alike in all steps."""
        pending = frozenset(chain.states)
        for reverse in (False, True):
            turn = slice(None, None, -1 if reverse else 1)
            a = self.steps.of(tuple(chain.factors[turn]), pending)
            b = self.steps.of(tuple(chain.terms[turn]), pending)
            if a is not None and b is not None:
                self._emit(chain, a, b, reverse)
                return

    def _emit(self, chain: _Chain, a: OfSteps, b: OfSteps, reverse: bool) -> None:
        shape, count = self.graph.values[chain.states[0]].type.shape, len(chain.states)
        a, b = (self.steps.broadcast(x, shape, count) for x in (a, b))
        assert a.axis is not None
        operands = [a.value, self.steps.moved(b, a.axis)]
        if not self._is_zero(chain.initial):
            initial = self.graph.values[chain.initial]
            same = initial.type.shape == shape
            operands.append(
                initial if same else self.build.emit("broadcast_to", initial, shape=shape)
            )
        found = self.build.emit("linear_recurrence", *operands, axis=a.axis, reverse=reverse)
        order = chain.states[::-1] if reverse else chain.states
        self.steps.known[tuple(order)] = OfSteps(found, a.axis)
        self.places.update((name, (found, a.axis, step)) for step, name in enumerate(order))

    def _is_zero(self, name: str) -> bool:
        node = self.graph.producers.get(name)
        while node is not None and node.operator in ("cast", "broadcast_to", "reshape"):
            node = self.graph.producers.get(node.operands[0])
        return node is not None and node.operator == "fill" and attribute_of(node, "value") == 0

    def replacement(self, node: Node) -> list[Node]:
        """Return the nodes that take the place of one, and what was emitted before it."""
        if node.name in self.places:
            return self._named(self._state(node), node)
        if node.operator == "stack" and self.places and len(set(node.operands)) > 1:
            made = self.steps.of(node.operands)
            axis = attribute_of(node, "axis")
            if made is not None and made.axis is not None and isinstance(axis, int):
                return self._named(self.steps.moved(made, axis % node.results[0].type.rank), node)
        return [*self.build.nodes, node]

    def _state(self, node: Node) -> Value:
        """Return the state of a step."""
        states, axis, step = self.places[node.name]
        begin, size = [0] * states.type.rank, list(states.type.shape)
        begin[axis], size[axis] = step, 1
        part = self.build.emit("slice", states, begin=tuple(begin), size=tuple(size))
        return self.build.emit("reshape", part, shape=node.results[0].type.shape)

    def _named(self, made: Value, node: Node) -> list[Node]:
        """Return what was emitted, its end under the name of the node that it replaces."""
        name = node.name
        if any(made in emitted.results for emitted in self.build.nodes):
            self.steps.rename(made, name)
            return [renamed_result(emitted, made.name, name) for emitted in self.build.nodes]
        copy = Node("identity", (made.name,), node.results, {}, node.scope)
        return [*self.build.nodes, copy]
