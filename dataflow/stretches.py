"""Stretches: consecutive operators of a program, as a program of their own.

A pipeline stage computes a stretch. Operators that depend on inputs and on parameters are in line;
those that depend on inputs, constants and untrained parameters alone (`placement`) run wherever
they are read; those that depend on parameters alone (a cast) go with the next operator in line. A
parameter belongs to the stretch that reads it first, or to all that read it. Operators that nothing
depends on are in no stretch. What a stretch reads of others it receives, what others read of it it
sends; both may carry cotangents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from shardwright.dataflow.cotangents import CotangentFlow, cotangent_flow
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.dataflow.placement import Placement
from shardwright.ir.graph import Graph, Node
from shardwright.ir.reachability import live


@dataclass(frozen=True, eq=False)
class Stretch:
    """Consecutive operators of a program, as a program of their own.

    Parameters
    ----------
    graph : Graph
        The operators, with their names in the whole program; received values are inputs.
    flow : CotangentFlow
        The cotangents in the whole program.
    loss : str
        The loss of the whole program.
    received : frozenset of str
        Inputs that another stretch computes, or whose parameter it owns.
    sent : tuple of str
        Values that another stretch reads, in the order of the program.
    """

    graph: Graph
    flow: CotangentFlow
    loss: str
    received: frozenset[str]
    sent: tuple[str, ...]

    def in_micro_batches(self, whole: MicroBatches) -> MicroBatches:
        """Return the stretch in the micro-batches of the whole program."""
        return replace(whole, whole=self.graph)


@dataclass(frozen=True, eq=False)
class Line:
    """The operators of a program in the order in which stages are cut.

    Parameters
    ----------
    graph : Graph
        The whole program, in canonical form.
    """

    graph: Graph

    @cached_property
    def flow(self) -> CotangentFlow:
        """The cotangents of the program."""
        return cotangent_flow(self.graph)

    @cached_property
    def operators(self) -> tuple[Node, ...]:
        """The operators in line: those that depend on inputs and on parameters."""
        return tuple(n for n in self.graph.nodes if self._kinds[n.name] == (True, True))

    @cached_property
    def everywhere(self) -> frozenset[str]:
        """The operators that every stretch computes that reads them."""
        return frozenset(n.name for n in self.graph.nodes if not self._kinds[n.name][1])

    @cached_property
    def _free(self) -> frozenset[str]:
        return Placement(self.graph).free

    @cached_property
    def _kinds(self) -> dict[str, tuple[bool, bool]]:
        """For each operator, whether it depends on inputs, and on parameters."""
        made = {value.name: (True, False) for value in self.graph.inputs}
        made.update((p.name, (False, p.name not in self._free)) for p in self.graph.parameters)
        found: dict[str, tuple[bool, bool]] = {}
        for node in self.graph.nodes:
            kinds = [made[name] for name in node.operands]
            kind = (any(fed for fed, _ in kinds), any(stored for _, stored in kinds))
            found[node.name] = kind
            made.update((result.name, kind) for result in node.results)
        return found

    @cached_property
    def position(self) -> Mapping[str, int]:
        """The place in line of each operator that depends on parameters.

        One that depends on parameters alone goes with the next operator in line.
        """
        found: dict[str, int] = {}
        place = 0
        for node in self.graph.nodes:
            if node.name not in self.everywhere:
                found[node.name] = min(place, len(self.operators) - 1)
            place += self._kinds[node.name] == (True, True)
        return found

    @cached_property
    def firsts(self) -> tuple[str, ...]:
        """The first operator of the program that goes with each place in line."""
        names: list[str] = []
        before = ""
        for node in self.graph.nodes:
            before = before or node.name
            if self._kinds[node.name] == (True, True):
                names.append(before)
                before = ""
        return tuple(names)

    def stages(self, cuts: Sequence[int]) -> dict[str, int]:
        """Return the stage of every operator, ascending in program order.

        Parameters
        ----------
        cuts : sequence of int
            The places in line at which the stages after the first begin.
        """
        starts = {self.firsts[cut] for cut in cuts}
        found: dict[str, int] = {}
        stage = 0
        for node in self.graph.nodes:
            stage += node.name in starts
            found[node.name] = stage
        return found

    def home(self, value: str) -> int | None:
        """Return the place in line at which a value is made; None for one that is everywhere.

        A parameter is at home where it is read first; one that is free, everywhere.
        """
        producer = self.graph.producers.get(value)
        if producer is not None:
            return self.position.get(producer.name)
        if value not in self._stored or value in self._free:
            return None
        places = [self.position.get(reader.name) for reader, _ in self.graph.uses[value]]
        return min((place for place in places if place is not None), default=0)

    @cached_property
    def _stored(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.graph.parameters)

    def stretch(self, begin: int, end: int, *, alone: bool = False) -> Stretch:
        """Return the operators at the places from `begin` to before `end`, as a program.

        With `alone`, those that run wherever they are read are left out, and received.
        """
        own, graph = range(begin, end), self.graph
        chosen = [n for place in own for n in self._at[place]]
        chosen = chosen if alone else self._with_everywhere(chosen)
        names = {node.name for node in chosen}
        read = dict.fromkeys(name for node in chosen for name in node.operands)
        stored = dict.fromkeys(name for place in own for name in self._owned[place])
        stored.update(dict.fromkeys(n for n in read if n in self._stored and n in self._free))
        here = {result.name for node in chosen for result in node.results} | set(stored)
        received = [name for name in read if name not in here and name not in self._fed]
        fed = [name for name in self._fed if name in read]
        part = replace(
            graph,
            inputs=tuple(graph.values[name] for name in (*fed, *received)),
            parameters=tuple(graph.parameter(name) for name in stored),
            nodes=tuple(chosen),
            outputs=tuple(
                name for name in graph.outputs if self._is_own(name, own, begin == 0 and not alone)
            ),
            updates=tuple((p, new) for p, new in graph.updates if new in here and p in here),
            recomputed=tuple(name for name in graph.recomputed if name in names),
            offloaded=tuple(name for name in graph.offloaded if name in names),
        )
        sent = tuple(name for place in own for name, last in self._last[place] if last >= end)
        return Stretch(part, self.flow, graph.outputs[0], frozenset(received), sent)

    @cached_property
    def _fed(self) -> dict[str, None]:
        return dict.fromkeys(value.name for value in self.graph.inputs)

    @cached_property
    def _at(self) -> list[list[Node]]:
        """The operators that go with each place in line."""
        found: list[list[Node]] = [[] for _ in self.operators]
        for node in self.graph.nodes:
            if node.name in self.position and node.name in self._live:
                found[self.position[node.name]].append(node)
        return found

    @cached_property
    def _live(self) -> frozenset[str]:
        """The operators that an output or an update depends on; no program has the others."""
        nodes = live(self.graph.nodes, self.graph.kept()).nodes
        return frozenset(node.name for node in nodes)

    def _readers(self, value: str) -> Iterator[int]:
        """Yield the places of the operators that read a value and are live."""
        for node, _ in self.graph.uses[value]:
            if node.name in self._live and node.name in self.position:
                yield self.position[node.name]

    @cached_property
    def _owned(self) -> list[list[str]]:
        """The parameters that are at home at each place."""
        found: list[list[str]] = [[] for _ in self.operators]
        for parameter in self.graph.parameters:
            home = self.home(parameter.name)
            if home is None:
                continue
            found[home].append(parameter.name)
        return found

    @cached_property
    def _last(self) -> list[list[tuple[str, int]]]:
        """The values that are made at each place, with the last place that reads them."""
        found: list[list[tuple[str, int]]] = [[] for _ in self.operators]
        for name in self.graph.values:
            home = self.home(name)
            if home is None:
                continue
            found[home].append((name, max(self._readers(name), default=-1)))
        return found

    def _is_own(self, output: str, own: range, has_everywhere: bool) -> bool:
        """Return whether a stretch returns an output; the first those that are everywhere."""
        home = self.home(output)
        return has_everywhere and output in self.graph.producers if home is None else home in own

    @cached_property
    def _order(self) -> dict[str, int]:
        return {node.name: i for i, node in enumerate(self.graph.nodes)}

    def _with_everywhere(self, chosen: list[Node]) -> list[Node]:
        """Return some operators with those computed everywhere that they depend on."""
        found = {node.name: node for node in chosen}
        names = [name for node in chosen for name in node.operands]
        while names:
            node = self.graph.producers.get(names.pop())
            if node is not None and node.name in self.everywhere and node.name not in found:
                found[node.name] = node
                names += node.operands
        return sorted(found.values(), key=lambda node: self._order[node.name])

    @cached_property
    def crossing_bytes(self) -> tuple[int, ...]:
        """The bytes of the loop's values that cross a cut before each place in line."""
        change = [0] * (len(self.operators) + 1)
        for home, made in enumerate(self._last):
            for name, last in made:
                producer = self.graph.producers.get(name)
                if producer is None or self._kinds[producer.name] != (True, True):
                    continue
                if last > home:
                    nbytes = self.graph.values[name].type.nbytes
                    change[home + 1] += nbytes
                    change[last + 1] -= nbytes
        return tuple(accumulate(change[:-1]))
