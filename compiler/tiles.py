"""Programs of repeated layers: emitted with few of them, and made whole from these.

A large model repeats its layers, and a plan gives most of them the same decisions. So the model
goes through the passes without most of its equal layers, and they are put into the program
afterwards, as copies of what two neighbours became. The result is the program of the whole model,
but for names that passes make.

Layers are found by structure: operators that are equal to those a fixed distance before them, with
equal decisions, are the *periods* of a *run*. Runs that read each other (layers, and the casts of
their parameters) have common *places*: place 5 of both belongs to the sixth layer. Places are left
out together. What does not repeat in the emitted program as it does in the model makes
`NotRepeatedError`, and the model is emitted whole.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Generic, TypeVar

from shardwright.ir.attributes import ordered
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, Parameter, Value, renamed
from shardwright.ir.provenance import Provenance

T = TypeVar("T")
_KEPT = 2  # places that stay at both ends of equal ones: one has other neighbours, one is copied
_FEWEST = 2 * _KEPT + 1  # periods of a run of which one can be left out
_LENGTHS = 16  # lengths of a period that are tried at an operator
_WORTHWHILE = 0.7  # share of the operators that stays at most; else the model is emitted whole


class NotRepeatedError(Exception):
    """What the passes emitted does not repeat as the model does."""


@dataclass(frozen=True)
class Shortened:
    """A model without some of its equal layers.

    Parameters
    ----------
    whole : Graph
        The whole model.
    graph : Graph
        The model with few layers.
    decisions : Decisions
        Its decisions.
    stretches : tuple of tuple of (tuple of str)
        Of each stretch of equal layers the values, place by place: of the layer that is copied, of
        those that are left out, and of the one behind them.
    """

    whole: Graph
    graph: Graph
    decisions: Decisions
    stretches: tuple[tuple[tuple[str, ...], ...], ...]

    def lengthened(self, program: Graph) -> Graph:
        """Return the program of the whole model.

        Parameters
        ----------
        program : Graph
            What passes made of the model with few layers; its nodes have provenance.

        Raises
        ------
        NotRepeatedError
            If it does not repeat as the model does.
        """
        program = self._with_own_names(program)
        for layers in self.stretches:
            program = _Lengthening(self.whole, program, layers).program()
        return program


    def _with_own_names(self, program: Graph) -> Graph:
        """Return the program with other names where passes took those of layers left out."""
        free = self.whole.values.keys() - self.graph.values.keys()
        names = {name: f"{name}.made" for name in program.values if name in free}
        nodes = [
            replace(
                renamed(node, names),
                results=tuple(replace(r, name=names.get(r.name, r.name)) for r in node.results),
                provenance=_renamed(node.provenance, names),
            )
            for node in program.nodes
        ]
        return replace(
            program,
            nodes=tuple(nodes),
            outputs=tuple(names.get(name, name) for name in program.outputs),
            updates=tuple((p, names.get(new, new)) for p, new in program.updates),
        )


def _renamed(origin: Provenance, names: Mapping[str, str]) -> Provenance:
    return replace(origin, target=names.get(origin.target, origin.target))


def shortened(graph: Graph, decisions: Decisions) -> Shortened | None:
    """Return a model with few of its equal layers; None where too little repeats.

    Parameters
    ----------
    graph : Graph
        The model, in canonical form.
    decisions : Decisions
        The decisions of a plan for it.
    """
    stretches = _Places(graph, decisions).stretches()
    gone = {name for layers in stretches for layer in layers[1:-1] for name in layer}
    if len(gone) < (1 - _WORTHWHILE) * len(graph.values):
        return None
    behind = {a: b for layers in stretches for a, b in zip(layers[-2], layers[0], strict=True)}
    nodes = tuple(renamed(node, behind) for node in graph.nodes if node.name not in gone)
    if any(name in gone for node in nodes for name in node.operands):
        return None
    few = replace(
        graph,
        parameters=tuple(p for p in graph.parameters if p.name not in gone),
        nodes=nodes,
        updates=tuple((p, new) for p, new in graph.updates if p not in gone),
        recomputed=tuple(name for name in graph.recomputed if name not in gone),
        regathered=tuple(name for name in graph.regathered if name not in gone),
        offloaded=tuple(name for name in graph.offloaded if name not in gone),
        shared_layouts=tuple(pair for pair in graph.shared_layouts if pair[0] not in gone),
    )
    return Shortened(graph, few, _without(decisions, gone), stretches)


def _without(decisions: Decisions, gone: set[str]) -> Decisions:
    """Return the decisions of a model without some values."""

    def kept(mapping: Mapping[str, T]) -> dict[str, T]:
        return {name: item for name, item in mapping.items() if name not in gone}

    return replace(
        decisions,
        strategies=kept(decisions.strategies),
        stored=kept(decisions.stored),
        shared_layouts=kept(decisions.shared_layouts),
        stages=kept(decisions.stages),
        regathered=decisions.regathered - gone,
        recomputed=decisions.recomputed - gone,
        offloaded=decisions.offloaded - gone,
        gathered_in_passes=decisions.gathered_in_passes - gone,
        reduced_in_passes=decisions.reduced_in_passes - gone,
    )


@dataclass(frozen=True)
class _Run:
    """Equal stretches of operators, one behind the other: its first operator, and its periods."""

    begin: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.begin + self.length * self.count


def _runs(keys: Sequence[int]) -> Iterator[_Run]:
    """Yield the runs of a sequence, each from its first period on, with the shortest periods."""
    places: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    begin = 0
    while begin < len(keys):
        found = _run_at(keys, begin, places[keys[begin]])
        if found is not None:
            yield found
        begin = begin + 1 if found is None else found.end


def _run_at(keys: Sequence[int], begin: int, equal: Sequence[int]) -> _Run | None:
    """Return the run that begins at an operator; None where there is none."""
    first = bisect_right(equal, begin)
    for second in equal[first : first + _LENGTHS]:
        length, end = second - begin, second
        if keys[begin:second] != keys[second : second + length]:
            continue
        while end < len(keys) and keys[end] == keys[end - length]:
            end += 1
        if (count := (end - begin) // length) >= _FEWEST:
            return _Run(begin, length, count)
    return None


_Slot = tuple[int, int, int]  # of a run: the operator of its period, and the result or operand


@dataclass
class _Group:
    """Runs with common places: 0 is that of the first period of the first run.

    Parameters
    ----------
    runs : dict of int to int
        The place of the first period, by the number of the run.
    bounds : set of int
        Places where something is other than at the place before.
    read : set of int
        Places of which something elsewhere reads a value.
    """

    runs: dict[int, int]
    bounds: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)

    @property
    def equal(self) -> Iterator[tuple[int, int]]:
        """The first of equal places, and the first behind them; what is read is near an end."""
        for begin, end in pairwise(sorted(self.bounds)):
            inner = [place for place in self.read if begin + _KEPT <= place < end - _KEPT]
            yield from pairwise(sorted({begin, end, *inner, *(place + 1 for place in inner)}))


class _Places:
    """Where the operators of a model repeat."""

    def __init__(self, graph: Graph, decisions: Decisions) -> None:
        self.graph, self.decisions = graph, decisions
        self.runs = list(_runs(self._keys()))
        self.groups = {number: _Group({number: 0}) for number in range(len(self.runs))}
        self.made: dict[str, tuple[_Slot, int]] = {}  # values: the slot, the period
        for number, run in enumerate(self.runs):
            for i, node in enumerate(graph.nodes[run.begin : run.end]):
                for j, result in enumerate(node.results):
                    self.made[result.name] = (number, i % run.length, j), i // run.length
        self._find_groups()

    def _keys(self) -> list[int]:
        """Return what is equal for equal operators with equal decisions, as numbers."""
        graph, plan = self.graph, self.decisions
        marks = (
            *(frozenset(names) for names in (graph.recomputed, graph.regathered, graph.offloaded)),
            *(plan.regathered, plan.recomputed, plan.offloaded, frozenset(graph.cuts)),
        )
        of_stored = {p.name: self._stored_key(p) for p in graph.parameters}
        shared = {**dict(graph.shared_layouts), **plan.shared_layouts}
        numbers: dict[Hashable, int] = {}
        keys = []
        for node in graph.nodes:
            key = (
                node.operator,
                repr(ordered(node.attributes)),
                tuple([(r.type, shared.get(r.name)) for r in node.results]),
                tuple([of_stored.get(name) for name in node.operands]),
                plan.strategies.get(node.name),
                plan.stages.get(node.name),
                tuple([node.name in names for names in marks]),
            )
            keys.append(numbers.setdefault(key, len(numbers)))
        return keys

    def _stored_key(self, parameter: Parameter) -> Hashable:
        plan, name = self.decisions, parameter.name
        given = {k: v for k, v in parameter.attributes.items() if k != "initializer"}
        return (
            parameter.value.type,
            parameter.role,
            repr(sorted(given.items())),
            plan.stored.get(name),
            plan.shared_layouts.get(name),
            name in plan.regathered,
            name in plan.gathered_in_passes,
            name in plan.reduced_in_passes,
        )

    def _uses(self) -> Iterator[tuple[int, int, int, Node]]:
        """Yield the operators of runs: the run, the period, the place in it, and the operator."""
        for number, run in enumerate(self.runs):
            for i, node in enumerate(self.graph.nodes[run.begin : run.end]):
                yield number, i // run.length, i % run.length, node

    def _find_groups(self) -> None:
        """Give common places to runs that read each other, and to what they store."""
        stored = {p.name for p in self.graph.parameters}
        readers: dict[str, list[tuple[int, int, _Slot]]] = {}
        for number, period, at, node in self._uses():
            for position, name in enumerate(node.operands):
                if name in stored:
                    slot = number, at, len(node.results) + position
                    readers.setdefault(name, []).append((number, period, slot))
                elif name in self.made and period > 1:
                    (other, *_), place = self.made[name]
                    self._join(number, other, period - place)
        for several in readers.values():
            for (one, period, _), (other, place, _) in pairwise(several):
                self._join(one, other, period - place)
        for name, several in readers.items():
            places = {(id(self.groups[n]), self._place(n, period)) for n, period, _ in several}
            if len(places) == 1 and len(several) == len(self.graph.uses[name]):
                _, period, slot = several[0]
                self.made[name] = slot, period

    def _join(self, one: int, other: int, distance: int) -> None:
        """Let two runs have common places: a period of one is that of another, and a distance."""
        mine, theirs = self.groups[one], self.groups[other]
        if mine is theirs:
            return
        by = mine.runs[one] + distance - theirs.runs[other]
        for number, place in theirs.runs.items():
            mine.runs[number] = place + by
            self.groups[number] = mine

    def _place(self, run: int, period: int) -> int:
        return self.groups[run].runs[run] + period

    def _placed(self, name: str) -> tuple[_Group, int, _Slot] | None:
        """Return the group, the place and the slot of a value; None where it has none."""
        if name not in self.made:
            return None
        slot, period = self.made[name]
        return self.groups[slot[0]], self._place(slot[0], period), slot

    def _find_bounds(self) -> None:
        """Find the places at which something is other than at the place before."""
        groups = {id(group): group for group in self.groups.values()}.values()
        for group in groups:
            for number, place in group.runs.items():
                group.bounds |= {place, place + self.runs[number].count}
        in_runs: set[str] = set()
        before: dict[tuple[int, int], Node] = {}
        for number, period, at, node in self._uses():
            in_runs.add(node.name)
            place, group = self._place(number, period), self.groups[number]
            if period and not self._follows(group, before[number, at], node, first=period == 1):
                group.bounds.add(place)
            before[number, at] = node
            for name in node.operands:
                found = self._placed(name)
                if found is not None and found[0] is not group:
                    self._keep(name)
        for node in self.graph.nodes:
            for name in node.operands if node.name not in in_runs else ():
                self._keep(name)
        for name in self.graph.outputs:
            self._keep(name)
        for parameter, new in self.graph.updates:
            one, two = self._placed(parameter), self._placed(new)
            if one is None or two is None or one[:2] != two[:2]:
                self._keep(parameter)
                self._keep(new)

    def _keep(self, name: str) -> None:
        """Let the place of a value stay, since something elsewhere reads it."""
        found = self._placed(name)
        if found is not None:
            found[0].read.add(found[1])

    def _follows(self, group: _Group, one: Node, two: Node, *, first: bool) -> bool:
        """Return whether an operator reads what the one a place before reads, a place further."""
        for before, name in zip(one.operands, two.operands, strict=True):
            placed, now = self._placed(before), self._placed(name)
            if now is None and placed is None and before == name:
                continue
            if first and now is not None and now[0] is group and placed is None:
                continue  # the first layer reads what is before all of them
            if now is None or placed is None or now[0] is not group or placed[0] is not group:
                return False
            if placed[2] != now[2] or placed[1] + 1 != now[1]:
                return False
        return True

    def stretches(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Return the values of equal places, as `Shortened` has them."""
        self._find_bounds()
        names: dict[tuple[int, int], list[tuple[_Slot, str]]] = {}
        for name in self.made:
            placed = self._placed(name)
            assert placed is not None
            names.setdefault((id(placed[0]), placed[1]), []).append((placed[2], name))
        found = []
        for key, group in {id(group): group for group in self.groups.values()}.items():
            for begin, end in group.equal:
                if end - begin >= _FEWEST:
                    inner = range(begin + _KEPT - 1, end - _KEPT + 1)
                    found.append(tuple(_in_order(names[key, place]) for place in inner))
        return tuple(found)


def _in_order(named: Iterable[tuple[_Slot, str]]) -> tuple[str, ...]:
    return tuple(name for _, name in sorted(named))


@dataclass(frozen=True)
class _Read:
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

    def __init__(self, whole: Graph, program: Graph, layers: Sequence[tuple[str, ...]]) -> None:
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

    def _name(self, name: str, number: int) -> str:
        """Return the name of a value of the first layer in another: -1 is the first itself."""
        if number < 0:
            return name
        return self.names[number][name] if number < len(self.names) else self.second[name]

    def program(self) -> Graph:
        """Return the program with the layers."""
        short, count = self.short, len(self.names)
        ends: dict[str, Node] = {}
        read: dict[str, list[_Read]] = {}
        for one, two in self.nodes.pairs:
            _check(one.operator == two.operator and one.attributes == two.attributes)
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
        return replace(
            short,
            parameters=self.stored.filled(count, self._put_parameter),
            nodes=tuple(ends.get(node.name) or self._outside(node) for node in nodes),
            updates=updates.filled(
                count, lambda pair, number: tuple(self._name(name, number) for name in pair)
            ),
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
        self, node: Node, reads: Sequence[_Read], number: int, others: Sequence[bool] = ()
    ) -> Node:
        """Return an operator of a layer, by number, that reads what its place lets it read.

        Of an operator that stays, `others` are the places at which it reads other layers than now.
        """
        names = [
            one.name if one.step is None else self._name(one.name, number + one.step)
            for one in reads
        ]
        if others:
            now = _named(node)
            names = [new if other else old for new, old, other in zip(names, now, others, strict=True)]
        operator, tensor, target, *operands = names
        provenance = Provenance(operator, node.provenance.role, tensor, target)
        return replace(node, operands=tuple(operands), provenance=provenance)

    def _put(self, node: Node, read: Sequence[_Read], number: int) -> Node:
        """Return an operator of a layer that is put, by that of the first layer."""
        results = tuple(replace(r, name=self.names[number][r.name]) for r in node.results)
        scope = self.scopes[number].get(node.scope, node.scope)
        return self._reads(replace(node, results=results, scope=scope), read, number)

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
        return replace(node, operands=operands.filled(len(self.names), self._name))


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
