"""Stretches: consecutive operators of a program, as a program of their own.

A pipeline stage computes a stretch. Operators that depend on inputs and on parameters are in line;
those that depend on inputs or constants alone run wherever they are read; those that depend on
parameters alone (a cast) go with the next operator in line. A parameter belongs to the stretch that
reads it first. What a stretch reads of others it receives, what others read of it it
sends; both may carry cotangents.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.dataflow.cotangents import CotangentFlow, cotangent_flow
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.ir.graph import Graph, Node, Value


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
        """The operators that depend on no parameter: each stretch that reads one computes it."""
        return frozenset(n.name for n in self.graph.nodes if not self._kinds[n.name][1])

    @cached_property
    def _kinds(self) -> dict[str, tuple[bool, bool]]:
        """For each operator, whether it depends on inputs, and on parameters."""
        made = {value.name: (True, False) for value in self.graph.inputs}
        made.update((parameter.name, (False, True)) for parameter in self.graph.parameters)
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

        A parameter is at home where it is read first.
        """
        producer = self.graph.producers.get(value)
        if producer is not None:
            return self.position.get(producer.name)
        if value not in self._stored:
            return None
        places = [self.position.get(reader.name) for reader, _ in self.graph.uses[value]]
        return min((place for place in places if place is not None), default=0)

    @cached_property
    def _stored(self) -> frozenset[str]:
        return frozenset(parameter.name for parameter in self.graph.parameters)

    def stretch(self, begin: int, end: int) -> Stretch:
        """Return the operators at the places from `begin` to before `end`, as a program."""
        own = range(begin, end)
        chosen = [n for n in self.graph.nodes if self.position.get(n.name, -1) in own]
        chosen = self._with_everywhere(chosen)
        names = {node.name for node in chosen}
        made = {result.name for node in chosen for result in node.results}
        parameters = tuple(p for p in self.graph.parameters if self.home(p.name) in own)
        here = made | {parameter.name for parameter in parameters}
        read = dict.fromkeys(name for node in chosen for name in node.operands)
        fed = {value.name for value in self.graph.inputs}
        received = [name for name in read if name not in here and name not in fed]
        graph = replace(
            self.graph,
            inputs=(
                *(value for value in self.graph.inputs if value.name in read),
                *(self.graph.values[name] for name in received),
            ),
            parameters=parameters,
            nodes=tuple(chosen),
            outputs=tuple(name for name in self.graph.outputs if self._is_own(name, own, begin)),
            updates=tuple((p, new) for p, new in self.graph.updates if new in here and p in here),
            recomputed=tuple(name for name in self.graph.recomputed if name in names),
        )
        sent = tuple(name for name in self.graph.values if self._is_sent(name, here, own))
        return Stretch(graph, self.flow, self.graph.outputs[0], frozenset(received), sent)

    def _is_own(self, output: str, own: range, begin: int) -> bool:
        """Return whether a stretch returns an output; the first those that are everywhere."""
        home = self.home(output)
        return begin == 0 and output in self.graph.producers if home is None else home in own

    def _is_sent(self, value: str, here: set[str], own: range) -> bool:
        if value not in here or self.home(value) not in own:
            return False
        places = (self.position.get(reader.name) for reader, _ in self.graph.uses[value])
        return any(place is not None and place not in own for place in places)

    def _with_everywhere(self, chosen: Sequence[Node]) -> list[Node]:
        """Return some operators with those that are computed everywhere, as far as read."""
        names = {node.name for node in chosen}
        wanted = {name for node in chosen for name in node.operands}
        for node in reversed(self.graph.nodes):
            read = any(result.name in wanted for result in node.results)
            if node.name in self.everywhere and read:
                names.add(node.name)
                wanted.update(node.operands)
        return [node for node in self.graph.nodes if node.name in names]

    def crossing(self, place: int) -> Iterable[Value]:
        """Return the values of the loop that cross a cut before a place in line."""
        for name, value in self.graph.values.items():
            home = self.home(name)
            if home is None or home >= place or name in self._stored:
                continue
            if self._kinds[self.graph.producers[name].name] != (True, True):
                continue
            readers = (self.position.get(n.name) for n, _ in self.graph.uses[name])
            if any(at is not None and at >= place for at in readers):
                yield value
