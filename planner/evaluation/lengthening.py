"""Layers put into the program of a model that was emitted without them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.provenance import Provenance
from shardwright.planner.evaluation.repeats import Layers
from shardwright.planner.plan.equality import RANDOM, constants

T = TypeVar("T")


class NotRepeatedError(Exception):
    """What the passes emitted does not repeat as the model does."""


def lengthened(whole: Graph, program: Graph, layers: Layers) -> Graph:
    """Return a program with the layers of one stretch that are not in it.

    Parameters
    ----------
    whole : Graph
        The whole model.
    program : Graph
        What passes made of the model without the layers but the first and the last.
    layers : tuple
        The layers; see `repeats.equal_layers`.

    Raises
    ------
    NotRepeatedError
        If the program does not repeat as the model does.
    """
    return _Lengthening(whole, program, layers).program()


class _Read(NamedTuple):
    """What an operator of a layer reads: of which layer, and the value in the layer that stays.

    A step of -1 is the layer before, 1 the next one, None something outside of them all.
    """

    step: int | None
    name: str


class _Lengthening:
    """A program into which the layers of one stretch are put.

    Of two layers that stay, the others are put between the first and the second. What they are is
    told by both: what the second one reads of the first, each reads of the one before, and what the
    first reads of the second, of the next.
    """

    def __init__(self, whole: Graph, program: Graph, layers: Layers) -> None:
        self.whole, self.short = whole, program
        self.sides = dict.fromkeys(layers[0], 1) | dict.fromkeys(layers[-1], 2)
        sides = [self._of_node(node) for node in program.nodes]
        self.nodes = _Between(program.nodes, sides)
        self.stored = _Between(program.parameters, [self._of_stored(p) for p in program.parameters])
        self.second = dict(zip(layers[0], layers[-1], strict=True))
        self.second.update((one.name, two.name) for one, two in self.stored.pairs)
        for one, two in self.nodes.pairs:
            _check(len(one.results) == len(two.results) and len(one.operands) == len(two.operands))
            names = zip(one.results, two.results, strict=True)
            self.second.update((mine.name, its.name) for mine, its in names)
        self.first = {two: one for one, two in self.second.items()}
        taken = {*program.values, *whole.values}
        self.names: list[dict[str, str]] = []
        self.scopes: list[dict[str, str]] = []
        for layer in layers[1:-1]:
            source = dict(zip(layers[0], layer, strict=True))
            self.names.append(self._names_of(source, len(self.names), taken))
            made = [(one, source[one]) for one in layers[0] if one in whole.producers]
            scopes = {whole.producers[a].scope: whole.producers[b].scope for a, b in made}
            self.scopes.append(scopes)
        self.own = {name: name for name in self.second}
        self.around = {
            at: tuple(self._names_in(at + step) for step in (0, 1, -1))
            for at in range(-1, len(layers) - 1)
        }

    def _of_stored(self, parameter: Parameter) -> int:
        return self.sides.get(parameter.weight or parameter.name, 0)

    def _of_node(self, node: Node) -> int:
        origin = node.provenance
        return self.sides.get(origin.operator or origin.tensor, 0)

    def _names_of(self, source: Mapping[str, str], number: int, taken: set[str]) -> dict[str, str]:
        """Return the names of values in a layer that is put, by those in the first."""
        names = dict(source)
        for name in self.second:
            if name in source:
                continue
            model = name
            while model not in source and "." in model:
                model = model.rpartition(".")[0]
            own = source[model] + name[len(model) :] if model in source else name
            while own in taken:
                own = f"{own}.{number}"
            taken.add(own)
            names[name] = own
        return names

    def _names_in(self, number: int) -> Mapping[str, str]:
        """Return the names in a layer of the values of the first: -1 is the first itself."""
        if number < 0:
            return self.own
        return self.names[number] if number < len(self.names) else self.second

    def program(self) -> Graph:
        """Return the program with the layers."""
        short, count = self.short, len(self.names)
        ends: dict[str, Node] = {}
        read: dict[str, list[_Read]] = {}
        for one, two in self.nodes.pairs:
            _check(one.operator == two.operator)
            _check(constants(one.attributes) == constants(two.attributes))
            _check(one.strategy == two.strategy and all(map(_are_alike, one.results, two.results)))
            _check(one.provenance.role == two.provenance.role)
            reads = read[one.name] = list(map(self._reading, _named(one), _named(two)))
            further = [r.step == 1 for r in reads], [r.step == -1 for r in reads]
            ends[one.name] = self._reads(one, reads, -1, further[0])
            ends[two.name] = self._reads(two, reads, count, further[1])
        for p, q in self.stored.pairs:
            _check(_are_alike(p.value, q.value) and p.role == q.role)
        updates = _Between(short.updates, [self._side(name) for name, _ in short.updates])
        _check(not any(map(self._side, short.outputs)))
        nodes = self.nodes.filled(count, lambda one, number: self._put(one, read[one.name], number))
        kept = {node.name: ends.get(node.name) or self._outside(node) for node in short.nodes}
        return replace(
            short,
            parameters=self.stored.filled(count, self._put_parameter),
            nodes=tuple([kept.get(node.name, node) for node in nodes]),
            updates=updates.filled(count, self._put_update),
        )

    def _side(self, name: str) -> int:
        return 1 if name in self.second else 2 if name in self.first else 0

    def _reading(self, one: str, two: str) -> _Read:
        """Return what the layers read where the first reads one value and the second another."""
        if self.second.get(one) == two and one != two:
            return _Read(0, one)
        if two in self.second:
            return _Read(-1, two)
        if one in self.first:
            return _Read(1, self.first[one])
        _check(one == two)
        return _Read(None, one)

    def _reads(
        self, node: Node, reads: Sequence[_Read], number: int, others: Sequence[bool]
    ) -> Node:
        """Return an operator that stays: at some places it reads other layers than now."""
        around, now = self.around[number], _named(node)
        operator, tensor, target, *operands = (
            around[one.step][one.name] if other and one.step is not None else old
            for one, old, other in zip(reads, now, others, strict=True)
        )
        provenance = Provenance(operator, node.provenance.role, tensor, target)
        return replace(node, operands=tuple(operands), provenance=provenance)

    def _put(self, node: Node, reads: Sequence[_Read], number: int) -> Node:
        """Return an operator of a layer that is put, by that of the first layer."""
        around, attributes = self.around[number], node.attributes
        own = around[0]
        operator, tensor, target, *operands = [
            name if step is None else around[step][name] for step, name in reads
        ]
        if RANDOM in attributes:
            model = self.whole.producers[own[node.provenance.operator]]
            attributes = {**attributes, RANDOM: model.attributes[RANDOM]}
        return Node(
            node.operator,
            tuple(operands),
            tuple([Value(own[r.name], r.type, r.layout) for r in node.results]),
            attributes,
            self.scopes[number].get(node.scope, node.scope),
            node.strategy,
            Provenance(operator, node.provenance.role, tensor, target),
        )

    def _put_update(self, update: tuple[str, str], number: int) -> tuple[str, str]:
        names = self.names[number]
        return names[update[0]], names[update[1]]

    def _put_parameter(self, parameter: Parameter, number: int) -> Parameter:
        names = self.names[number]
        name, weight = names[parameter.name], names.get(parameter.weight, parameter.weight)
        attributes = parameter.attributes
        if parameter.name in self.sides:
            attributes = self.whole.parameter(name).attributes
        value = replace(parameter.value, name=name)
        return replace(parameter, value=value, attributes=attributes, weight=weight)

    def _outside(self, node: Node) -> Node:
        """Return an operator of no layer: one that reads all layers, as a sum may, reads more."""
        sides = [self._side(name) for name in node.operands]
        if not {1, 2} <= set(sides):
            return node
        operands = _Between(node.operands, sides)
        _check(all(self.second[one] == two for one, two in operands.pairs))
        names = operands.filled(len(self.names), lambda name, number: self.names[number][name])
        return replace(node, operands=names)


def _named(node: Node) -> tuple[str, ...]:
    """Return the names that a node mentions: of its provenance, and its operands."""
    origin = node.provenance
    return origin.operator, origin.tensor, origin.target, *node.operands


def _are_alike(one: Value, two: Value) -> bool:
    return one.type == two.type and one.layout == two.layout


def _check(repeats: bool) -> None:
    if not repeats:
        raise NotRepeatedError


class _Between(Generic[T]):
    """A sequence in which layers are put between two of them.

    Parameters
    ----------
    items : sequence
        The sequence; stretches of both layers are side by side, in either order.
    sides : sequence of int
        1 for what belongs to the first layer, 2 for the second, 0 for neither.
    """

    def __init__(self, items: Sequence[T], sides: Sequence[int]) -> None:
        parts = [
            (side, [item for _, item in part])
            for side, part in groupby(zip(sides, items, strict=True), key=itemgetter(0))
        ]
        self._parts: list[tuple[int, list[T], list[T]]] = []
        at = 0
        while at < len(parts):
            side, part = parts[at]
            other, beside = parts[at + 1] if side and at + 1 < len(parts) else (0, [])
            _check(not side or (side + other == 3 and len(part) == len(beside)))
            self._parts.append((side, part, beside))
            at += 2 if side else 1

    @property
    def pairs(self) -> Iterator[tuple[T, T]]:
        """What the first layer has, with that of the second."""
        for side, part, beside in self._parts:
            if side:
                yield from zip(*((part, beside) if side == 1 else (beside, part)), strict=True)

    def filled(self, count: int, put: Callable[[T, int], T]) -> tuple[T, ...]:
        """Return the sequence with so many layers more; `put` makes their items of the first's."""
        found: list[T] = []
        for side, part, beside in self._parts:
            found += part
            numbers = range(count) if side == 1 else range(count - 1, -1, -1)
            for number in numbers if side else ():
                found += [put(item, number) for item in (part if side == 1 else beside)]
            found += beside
        return tuple(found)
