"""Layers put into the program of a model that was emitted without them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from shardwright.ir.attributes import Attributes
from shardwright.ir.graph import Graph, Node, Parameter, Value
from shardwright.ir.layout import Layout
from shardwright.ir.provenance import Provenance
from shardwright.planner.evaluation.repeats import Layers
from shardwright.planner.plan.equality import RANDOM, constants

T = TypeVar("T")
_MOVES, _STAGE = "transfer", "stage"  # the operator between stages, and its attribute


class NotRepeatedError(Exception):
    """What the passes emitted does not repeat as the model does."""


def lengthened(whole: Graph, program: Graph, stretches: Sequence[Layers]) -> Graph:
    """Return a program with the layers of some stretches that are not in it.

    Parameters
    ----------
    whole : Graph
        The whole model.
    program : Graph
        What passes made of the model without the layers but the first and the last.
    stretches : sequence of Layers
        The layers of each; see `repeats.equal_layers`.

    Raises
    ------
    NotRepeatedError
        If the program does not repeat as the model does.
    """
    return _Lengthening(whole, program, stretches).program()


def check_repeats(whole: Graph, program: Graph, stretches: Sequence[Layers]) -> None:
    """Raise an error if layers can not be put into a program; see `lengthened`."""
    _Lengthening(whole, program, stretches).check()


class _Read(NamedTuple):
    """What an operator of a layer reads: of which layer, and the value in the layer that stays.

    A step of -1 is the layer before, 1 the next one, None something outside of them all.
    """

    step: int | None
    name: str


class _Stages:
    """The stages of a pipeline into which layers are put that may have stages of their own.

    Where the last layer of a stretch is some stages behind the first, so is each behind the one
    before it, and all that follows them is as much later as there are more layers.

    Parameters
    ----------
    pairs : sequence of (int, Node, Node)
        What the first layer of a stretch runs, and the last: the number of the stretch, and both.
    counts : sequence of int
        How many layers are put between them.
    """

    def __init__(self, pairs: Sequence[tuple[int, Node, Node]], counts: Sequence[int]) -> None:
        self.distance, self._counts = [0] * len(counts), counts
        # By the identity of a layout, which is kept beside, so that no other one ever has it.
        self._layouts: dict[tuple[int, int, int], tuple[Layout, Layout]] = {}
        self._begin = [0] * len(counts)  # the first stage of the last layer
        for number in range(len(counts)):
            first = _first_stage([one for of, one, _ in pairs if of == number])
            last = _first_stage([other for of, _, other in pairs if of == number])
            self.distance[number], self._begin[number] = last - first, last

    def are_alike(self, number: int, one: Value, two: Value) -> bool:
        """Return whether a value of the first layer is what another is in the last."""
        layout, distance = one.layout, self.distance[number]
        if distance and layout is not None and layout.stage is not None:
            layout = layout.at(layout.stage + distance)
        return one.type == two.type and layout == two.layout

    def layout(self, layout: Layout | None, of: int, place: int) -> Layout | None:
        """Return a layout of a layer at a place of a stretch, behind the first; of none is -1."""
        if layout is None or layout.stage is None:
            return layout
        key = id(layout), of, place
        if key not in self._layouts:
            stage = layout.stage
            for number, distance in enumerate(self.distance):
                if number == of:
                    stage += distance * place
                elif layout.stage >= self._begin[number]:
                    stage += distance * self._counts[number]
            self._layouts[key] = layout, layout.at(stage)
        return self._layouts[key][1]

    def are_other(self, node: Node) -> bool:
        """Return whether layers have stages of their own, and a node is in one."""
        return any(self.distance) and _stage_of(node) is not None

    def moved(self, node: Node, of: int, place: int) -> Node:
        """Return a node in the stage that it is in now; see `layout`."""
        if not self.are_other(node):
            return node
        results = tuple(
            replace(value, layout=self.layout(value.layout, of, place)) for value in node.results
        )
        node = replace(node, results=results)
        if node.operator != _MOVES:
            return node
        return replace(node, attributes={**node.attributes, _STAGE: _stage_of(node)})


def _first_stage(nodes: Sequence[Node]) -> int:
    """Return the first stage that runs nodes forward; 0 without stages."""
    forward = (_stage_of(node) for node in nodes if node.provenance.phase == "forward")
    return min((stage for stage in forward if stage is not None), default=0)


def _stage_of(node: Node) -> int | None:
    layout = node.results[0].layout
    return None if layout is None else layout.stage


class _Stretch:
    """The layers of one stretch: what values are called in each, by their names in the first.

    Parameters
    ----------
    number : int
        Which stretch it is.
    layers : Layers
        The layers, of which the first and the last stay.
    """

    def __init__(self, number: int, layers: Layers) -> None:
        self.number, self.layers, self.count = number, layers, len(layers) - 2
        self.second = dict(zip(layers[0], layers[-1], strict=True))
        self.first: dict[str, str] = {}
        self.names: list[dict[str, str]] = []
        self.scopes: list[dict[str, str]] = []
        self.around: dict[int, tuple[Mapping[str, str], ...]] = {}

    def name_all(self, whole: Graph, taken: set[str]) -> None:
        """Name the values of the layers that are put, once those of both that stay are known."""
        first, *inner, _ = self.layers
        self.first = {two: one for one, two in self.second.items()}
        for number, layer in enumerate(inner):
            source = dict(zip(first, layer, strict=True))
            self.names.append(self._names_of(source, number, taken))
            made = [(one, source[one]) for one in first if one in whole.producers]
            scopes = {whole.producers[a].scope: whole.producers[b].scope for a, b in made}
            self.scopes.append(scopes)
        of_each = [{name: name for name in self.second}, *self.names, self.second]
        for at in range(-1, self.count + 1):
            steps = (at, min(at + 1, self.count), max(at - 1, -1))
            self.around[at] = tuple(of_each[1 + place] for place in steps)

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

    def reading(self, one: str, two: str) -> _Read:
        """Return what the layers read where the first reads one value and the last another."""
        if self.second.get(one) == two and one != two:
            return _Read(0, one)
        if two in self.second:
            _check(not self._has(one))
            return _Read(-1, two)
        if one in self.first:
            _check(not self._has(two))
            return _Read(1, self.first[one])
        _check(one == two and not self._has(one))
        return _Read(None, one)

    def _has(self, name: str) -> bool:
        return name in self.second or name in self.first

    def reads(
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


class _Lengthening:
    """A program into which the layers of stretches are put.

    Of two layers that stay, the others are put between the first and the second. What they are is
    told by both: what the second one reads of the first, each reads of the one before, and what the
    first reads of the second, of the next.
    """

    def __init__(self, whole: Graph, program: Graph, stretches: Sequence[Layers]) -> None:
        self.whole, self.short = whole, program
        self.stretches = [_Stretch(number, layers) for number, layers in enumerate(stretches)]
        self.counts = [one.count for one in self.stretches]
        self.sides: dict[str, int] = {}
        for number, layers in enumerate(stretches):
            self.sides |= dict.fromkeys(layers[0], _side_of(number, 0))
            self.sides |= dict.fromkeys(layers[-1], _side_of(number, 1))
        self.nodes = _Between(program.nodes, self._sides_around(), self._is_constant)
        self.stages = _Stages([*self.nodes.pairs], self.counts)
        self.stored = _Between(program.parameters, [self._of_stored(p) for p in program.parameters])
        for number, first, last in self.stored.pairs:
            self._name(number, first.name, last.name)
        for number, mine, its in self.nodes.pairs:
            _check(len(mine.results) == len(its.results))
            _check(len(mine.operands) == len(its.operands))
            for one, two in zip(mine.results, its.results, strict=True):
                self._name(number, one.name, two.name)
        taken = {*program.values, *whole.values}
        for stretch in self.stretches:
            stretch.name_all(whole, taken)

    def _name(self, number: int, one: str, two: str) -> None:
        """Let a value of the last layer of a stretch be what another is in the first."""
        self.stretches[number].second[one] = two
        self.sides[one], self.sides[two] = _side_of(number, 0), _side_of(number, 1)

    def _of_stored(self, parameter: Parameter) -> int:
        return self.sides.get(parameter.weight or parameter.name, 0)

    def _sides_around(self) -> list[int]:
        """Return the sides of operators; of a constant within a layer that of those around it."""
        found, nodes = [self._of_node(node) for node in self.short.nodes], self.short.nodes
        behind = 0
        for i in range(len(nodes) - 1, -1, -1):
            behind = found[i] = behind if self._is_constant(nodes[i]) else found[i]
        for i, before in enumerate(found[:-1], 1):
            if self._is_constant(nodes[i]) and found[i] != before:
                found[i] = 0
        return found

    def _is_constant(self, node: Node) -> bool:
        """Return whether an operator makes a constant that is of no layer."""
        return not node.operands and not self._of_node(node)

    def _of_node(self, node: Node) -> int:
        origin = node.provenance
        return self.sides.get(origin.operator or origin.tensor, 0)

    def check(self) -> dict[str, list[_Read]]:
        """Return what the operators of the first layers read, once the last ones are equal."""
        for number, p, q in self.stored.pairs:
            _check(self.stages.are_alike(number, p.value, q.value) and p.role == q.role)
        _check(not any(self.stages.distance) or not self._sums_over_layers())
        _check(not any(map(self.sides.get, self.short.outputs)))
        return {
            one.name: self._reads_of(self.stretches[number], one, two)
            for number, one, two in self.nodes.pairs
        }

    def program(self) -> Graph:
        """Return the program with the layers."""
        short, read, ends = self.short, self.check(), dict[str, Node]()
        for number, one, two in self.nodes.pairs:
            stretch, reads = self.stretches[number], read[one.name]
            further = [r.step == 1 for r in reads], [r.step == -1 for r in reads]
            first = stretch.reads(one, reads, -1, further[0])
            last = stretch.reads(two, reads, stretch.count, further[1])
            ends[one.name] = self.stages.moved(first, number, 0)
            ends[two.name] = self.stages.moved(last, number, stretch.count)
        updates = _Between(short.updates, [self.sides.get(name, 0) for name, _ in short.updates])
        nodes = self.nodes.filled(
            self.counts, lambda one, of, number: self._put(one, read[one.name], of, number)
        )
        kept = {node.name: ends.get(node.name) or self._outside(node) for node in short.nodes}
        parameters = self.stored.filled(self.counts, self._put_parameter)
        return replace(
            short,
            parameters=tuple(map(self._kept_parameter, parameters)),
            nodes=tuple([kept.get(node.name, node) for node in nodes]),
            updates=updates.filled(self.counts, self._put_update),
        )

    def _reads_of(self, stretch: _Stretch, one: Node, two: Node) -> list[_Read]:
        """Return what an operator of a stretch reads, once it is equal in both layers."""
        _check(one.operator == two.operator)
        _check(_constants(one) == _constants(two))
        pairs = zip(one.results, two.results, strict=True)
        _check(one.strategy == two.strategy)
        _check(all(self.stages.are_alike(stretch.number, *pair) for pair in pairs))
        _check(one.provenance.role == two.provenance.role)
        reads = list(map(stretch.reading, _named(one), _named(two)))
        outside = {self.sides.get(read.name, 0) for read in reads if read.step is None} - {0}
        _check(not any(_other(side) in outside for side in outside))
        return reads

    def _put(self, node: Node, reads: Sequence[_Read], of: int, number: int) -> Node:
        """Return an operator of a layer that is put, by that of the first layer."""
        stretch = self.stretches[of]
        around, attributes = stretch.around[number], node.attributes
        own = around[0]
        operator, tensor, target, *operands = [
            name if step is None else around[step][name] for step, name in reads
        ]
        if RANDOM in attributes:
            model = self.whole.producers[own[node.provenance.operator]]
            attributes = {**attributes, RANDOM: model.attributes[RANDOM]}
        layouts = [r.layout for r in node.results]
        if self.stages.are_other(node):
            layouts = [self.stages.layout(layout, of, number + 1) for layout in layouts]
            if node.operator == _MOVES and layouts[0] is not None:
                attributes = {**attributes, _STAGE: layouts[0].stage}
        pairs = zip(node.results, layouts, strict=True)
        return Node(
            node.operator,
            tuple(operands),
            tuple([Value(own[r.name], r.type, layout) for r, layout in pairs]),
            attributes,
            stretch.scopes[number].get(node.scope, node.scope),
            node.strategy,
            Provenance(operator, node.provenance.role, tensor, target),
        )

    def _put_update(self, update: tuple[str, str], of: int, number: int) -> tuple[str, str]:
        names = self.stretches[of].names[number]
        return names[update[0]], names[update[1]]

    def _put_parameter(self, parameter: Parameter, of: int, number: int) -> Parameter:
        names = self.stretches[of].names[number]
        name, weight = names[parameter.name], names.get(parameter.weight, parameter.weight)
        attributes = parameter.attributes
        if parameter.name in self.stretches[of].layers[0]:
            attributes = self.whole.parameter(name).attributes
        layout = self.stages.layout(parameter.value.layout, of, number + 1)
        value = replace(parameter.value, name=name, layout=layout)
        return replace(parameter, value=value, attributes=attributes, weight=weight)

    def _kept_parameter(self, parameter: Parameter) -> Parameter:
        """Return a parameter that stays, in the stage that it is in now; or one that was put."""
        if not any(self.stages.distance) or parameter.name not in self.short.values:
            return parameter
        number, last = divmod(self._of_stored(parameter) - 1, 2)
        where = (number, last * self.counts[number]) if number >= 0 else (-1, 0)
        layout = self.stages.layout(parameter.value.layout, *where)
        return replace(parameter, value=replace(parameter.value, layout=layout))

    def _sums_over_layers(self) -> bool:
        """Return whether other operators read what the first layers make and what the last ones do.

        What is made of all layers may be by stages, of which there are more. Before the layers only
        gradients are read, and after them only what has none yet.
        """
        outside = (node for node in self.short.nodes if not self._of_node(node))
        names = {name for node in outside for name in node.operands if self.sides.get(name)}
        made = self.short.producers
        read = {
            (made[name].provenance.phase if name in made else "", self.sides[name])
            for name in names
        }
        return any((phase, _other(side)) in read for phase, side in read)

    def _outside(self, node: Node) -> Node:
        """Return an operator of no layer: one that reads all layers, as a sum may, reads more."""
        node = self.stages.moved(node, -1, 0)
        sides = [self.sides.get(name, 0) for name in node.operands]
        both = {side for side in sides if side and _other(side) in sides}
        if not both:
            return node
        operands = _Between(node.operands, [side if side in both else 0 for side in sides])
        _check(all(self.stretches[n].second[one] == two for n, one, two in operands.pairs))
        names = operands.filled(
            self.counts, lambda name, of, number: self.stretches[of].names[number][name]
        )
        return replace(node, operands=names)


def _named(node: Node) -> tuple[str, ...]:
    """Return the names that a node mentions: of its provenance, and its operands."""
    origin = node.provenance
    return origin.operator, origin.tensor, origin.target, *node.operands


def _constants(node: Node) -> Attributes:
    """Return what is equal of equal operators; a transfer names the stage of its result."""
    found = constants(node.attributes)
    return {k: v for k, v in found.items() if k != _STAGE} if node.operator == _MOVES else found


def _check(repeats: bool) -> None:
    if not repeats:
        raise NotRepeatedError


def _side_of(number: int, last: int) -> int:
    """Return the side of what belongs to the first or the last layer of a stretch; 0 is neither."""
    return 1 + 2 * number + last


def _other(side: int) -> int:
    """Return the side of the other layer of the same stretch."""
    return ((side - 1) ^ 1) + 1


class _Between(Generic[T]):
    """A sequence in which layers are put between two of them.

    Parameters
    ----------
    items : sequence
        The sequence; those of both layers of a stretch are side by side, in either order.
    sides : sequence of int
        The side of each; see `_side_of`.
    is_alone : callable, optional
        Returns whether an item within a layer is in no other one; by default none is.
    """

    def __init__(
        self,
        items: Sequence[T],
        sides: Sequence[int],
        is_alone: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self._is_alone = is_alone
        parts = [
            (side, [item for _, item in part])
            for side, part in groupby(zip(sides, items, strict=True), key=itemgetter(0))
        ]
        self._parts: list[tuple[int, list[T], list[T]]] = []
        at = 0
        while at < len(parts):
            side, part = parts[at]
            other, beside = parts[at + 1] if side and at + 1 < len(parts) else (0, [])
            counts = len(self._repeated(part)), len(self._repeated(beside))
            _check(not side or (other == _other(side) and counts[0] == counts[1]))
            self._parts.append((side, part, beside))
            at += 2 if side else 1

    def _repeated(self, part: Sequence[T]) -> list[T]:
        return [item for item in part if not self._is_alone(item)]

    @property
    def pairs(self) -> Iterator[tuple[int, T, T]]:
        """What the first layer of a stretch has, with that of the last; and which stretch it is."""
        for side, part, beside in self._parts:
            if side:
                number, last = divmod(side - 1, 2)
                both = (beside, part) if last else (part, beside)
                yield from (
                    (number, *pair) for pair in zip(*map(self._repeated, both), strict=True)
                )

    def filled(self, counts: Sequence[int], put: Callable[[T, int, int], T]) -> tuple[T, ...]:
        """Return the sequence with so many layers more of each stretch.

        `put` makes their items of the first layer's, with the number of the stretch and the layer.
        """
        found: list[T] = []
        for side, part, beside in self._parts:
            found += part
            if side:
                of, last = divmod(side - 1, 2)
                numbers = range(counts[of])
                first = self._repeated(beside if last else part)
                for number in reversed(numbers) if last else numbers:
                    found += [put(item, of, number) for item in first]
            found += beside
        return tuple(found)
