"""Where a model repeats itself: layers with equal operators and equal decisions.

Layers are found by structure: operators that are equal to those a fixed distance before them are
the *periods* of a *run*. Runs that read each other (layers, and a sum over all of them) have common
*places*: place 5 of both belongs to the sixth layer.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.dataflow.segments import block_of
from shardwright.ir.attributes import Attribute
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, Parameter
from shardwright.planner.plan.equality import constants

Overrides = Mapping[str, Mapping[str, Attribute]]
Layers = tuple[tuple[str, ...], ...]
Kept = tuple[int, int]
KEPT: Kept = (2, 2)
"""Places that stay at the ends of equal ones, if passes may make the outer ones other than others:
one has other neighbours, one is copied. With fewer of them the emitted program tells whether."""
_LENGTHS = 64
"""Lengths of a period that are tried at an operator: so many equal ones may begin the next.

Six layers of Gemma 3, of which five are alike, have 24. With half as many its periods are found;
with a quarter only the five alike are, and a sixth of the layers is left out in place of a half."""


def equal_layers(
    graph: Graph, decisions: Decisions, overrides: Overrides, kept: Kept = KEPT
) -> tuple[Layers, ...]:
    """Return the layers of a model that can be made of one of them.

    Parameters
    ----------
    graph : Graph
        The model, in canonical form.
    decisions : Decisions
        The decisions of a plan for it.
    overrides : mapping
        Settings of the optimizer for single parameters, by name.
    kept : (int, int)
        Places that stay at the begin and at the end of equal ones.

    Returns
    -------
    tuple
        For each stretch of equal layers the names of their values, in equal order, layer by layer:
        of one that others can be made of, of these, and of the one behind them. Nothing but their
        neighbours reads what they make, and each stores its own parameters.
    """
    return _Places(graph, decisions, overrides, kept).stretches()


@dataclass(frozen=True)
class _Run:
    """Equal stretches of operators, one behind the other.

    It has its first operator, the length of its periods, and the first operator behind it that does
    not repeat them: the last period may be a part of one.
    """

    begin: int
    length: int
    until: int

    @property
    def count(self) -> int:
        return (self.until - self.begin) // self.length

    @property
    def end(self) -> int:
        return self.begin + self.length * self.count

    def left_out(self, kept: Kept) -> int:
        """Return how many operators are left out of the run alone."""
        return (self.count - sum(kept)) * self.length

    def leaves_out_more(self, shorter: "_Run", kept: Kept) -> bool:
        """Return whether more is left out than of a shorter run, that may be in its periods."""
        is_within = shorter.end <= self.begin + self.length
        times = self.count - sum(kept) if is_within else 1
        return self.left_out(kept) > shorter.left_out(kept) * times


class _Keys:
    """A sequence of numbers, and where it repeats what is some places before.

    Parameters
    ----------
    keys : sequence of int
        The sequence.
    """

    def __init__(self, keys: Sequence[int]) -> None:
        self._keys, self._list = np.array(keys, np.int64), list(keys)
        self._ends: dict[int, NDArray[np.int64]] = {}
        self.places: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            self.places.setdefault(key, []).append(i)

    def repeated_until(self, at: int, length: int) -> int:
        """Return the end of what repeats, from a place on, what is so many places before it."""
        if length not in self._ends:
            count = len(self._keys)
            other = np.flatnonzero(self._keys[length:] != self._keys[:-length]) + length
            behind = np.searchsorted(other, np.arange(count))
            self._ends[length] = np.append(other, count)[behind]
        return int(self._ends[length][at])

    def runs(self, kept: Kept, aligned: Callable[[_Run], _Run]) -> Iterator[_Run]:
        """Yield the runs, each from its first period on, or aligned within that."""
        begin = 0
        while begin < len(self._keys):
            found = self._run_at(begin, self.places[int(self._keys[begin])], kept)
            if found is None:
                begin += 1
                continue
            own = aligned(found)
            yield own
            begin = max(found.end, own.end)

    def _run_at(self, begin: int, equal: Sequence[int], kept: Kept) -> _Run | None:
        """Return the run at a place whose periods leave out most; None where there is none."""
        best, first, few = None, bisect_right(equal, begin), max(sum(kept), 1)
        for second in equal[first : first + _LENGTHS]:
            length = second - begin
            last = second + few * length - 1  # up to here a run of more periods repeats
            if last >= len(self._list):
                break
            if self._list[last] != self._list[last - length]:
                continue
            found = _Run(begin, length, self.repeated_until(second, length))
            if found.count <= few:
                continue
            if best is None or found.leaves_out_more(best, kept):
                best = found
        return best


def _aligned(run: _Run, nodes: Sequence[Node], scopes: Sequence[str]) -> _Run:
    """Return a run whose periods begin where numbered cells do, if they can.

    Passes treat a cell as a whole: recomputation puts what it repeats before the cell's gradient.
    Without cells, periods begin where the fewest values pass to the next: then a layer has what is
    made of its own parameters, and passes name what they make of these alike in all layers.
    """
    inner = range(run.begin, run.begin + run.length)
    begin = next((i for i in inner if i and scopes[i] != scopes[i - 1]), None)
    if begin is None:
        begin = min(inner, key=lambda i: _passed(nodes, i, run.length))
    return replace(run, begin=begin)


def _is_shared(node: Node, graph: Graph) -> bool:
    """Return whether an operator makes a constant that several blocks read: it is of no layer."""
    blocks = {block_of(reader.scope) for reader, _ in graph.uses[node.name]}
    return not node.operands and len(blocks) > 1


def _passed(nodes: Sequence[Node], at: int, length: int) -> int:
    """Return how many values of a stretch before an operator one as long from it on reads."""
    made = {result.name for node in nodes[max(at - length, 0) : at] for result in node.results}
    return len(made.intersection(name for n in nodes[at : at + length] for name in n.operands))


def keys_of(
    graph: Graph, nodes: Sequence[Node], decisions: Decisions, overrides: Overrides
) -> list[int]:
    """Return what is equal for equal operators of a model with equal decisions, as numbers."""
    marks = (
        *(frozenset(names) for names in (graph.recomputed, graph.regathered, graph.offloaded)),
        *(decisions.regathered, decisions.recomputed, decisions.offloaded, frozenset(graph.cuts)),
    )
    of_stored = {p.name: _stored_key(p, decisions, overrides) for p in graph.parameters}
    shared = {**dict(graph.shared_layouts), **decisions.shared_layouts}
    numbers: dict[Hashable, int] = {}
    keys = []
    for node in nodes:
        key = (
            node.operator,
            repr(sorted(constants(node.attributes).items())),
            tuple([(r.type, shared.get(r.name)) for r in node.results]),
            tuple([of_stored.get(name) for name in node.operands]),
            decisions.strategies.get(node.name),
            decisions.stages.get(node.name),
            tuple([node.name in names for names in marks]),
        )
        keys.append(numbers.setdefault(key, len(numbers)))
    return keys


def _stored_key(parameter: Parameter, decisions: Decisions, overrides: Overrides) -> Hashable:
    name = parameter.name
    given = {k: v for k, v in parameter.attributes.items() if k != "initializer"}
    return (
        parameter.value.type,
        parameter.role,
        repr(sorted(given.items())),
        decisions.stored.get(name),
        decisions.shared_layouts.get(name),
        name in decisions.regathered,
        name in decisions.gathered_in_passes,
        name in decisions.reduced_in_passes,
        repr(sorted(overrides.get(name, {}).items())),
    )


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

    def equal(self, kept: Kept) -> Iterator[tuple[int, int]]:
        """Yield the first of equal places, and the first behind them; what is read stays."""
        for begin, end in pairwise(sorted(self.bounds)):
            inner = [place for place in self.read if begin + kept[0] <= place < end - kept[1]]
            yield from pairwise(sorted({begin, end, *inner, *(place + 1 for place in inner)}))


class _Places:
    """Where the operators of a model repeat."""

    def __init__(
        self, graph: Graph, decisions: Decisions, overrides: Overrides, kept: Kept
    ) -> None:
        self.graph, self.kept = graph, kept
        self.nodes = [node for node in graph.nodes if not _is_shared(node, graph)]
        scopes = [block_of(node.scope) for node in self.nodes]
        keys = _Keys(keys_of(graph, self.nodes, decisions, overrides))
        self.runs = [*keys.runs(kept, lambda run: _aligned(run, self.nodes, scopes))]
        self.groups = {number: _Group({number: 0}) for number in range(len(self.runs))}
        self.made: dict[str, tuple[_Slot, int]] = {}  # values: the slot, the period
        for number, run in enumerate(self.runs):
            for i, node in enumerate(self.nodes[run.begin : run.end]):
                for j, result in enumerate(node.results):
                    self.made[result.name] = (number, i % run.length, j), i // run.length
        self._find_groups()

    def _uses(self) -> Iterator[tuple[int, int, int, Node]]:
        """Yield the operators of runs: the run, the period, the place in it, and the operator."""
        for number, run in enumerate(self.runs):
            for i, node in enumerate(self.nodes[run.begin : run.end]):
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

    def stretches(self) -> tuple[Layers, ...]:
        """Return the values of equal places; see `equal_layers`."""
        self._find_bounds()
        names: dict[tuple[int, int], list[tuple[_Slot, str]]] = {}
        for name in self.made:
            placed = self._placed(name)
            assert placed is not None
            names.setdefault((id(placed[0]), placed[1]), []).append((placed[2], name))
        found = []
        for key, group in {id(group): group for group in self.groups.values()}.items():
            for begin, end in group.equal(self.kept):
                if end - begin > sum(self.kept):
                    inner = range(begin + self.kept[0] - 1, end - self.kept[1] + 1)
                    found.append(tuple(_in_order(names[key, place]) for place in inner))
        return tuple(found)


def _in_order(named: Iterable[tuple[_Slot, str]]) -> tuple[str, ...]:
    return tuple(name for _, name in sorted(named))
