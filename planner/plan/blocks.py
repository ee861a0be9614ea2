"""Blocks: what a pipeline can be cut between, and which stretches of blocks are equal.

A numbered cell (``blocks/0``) is a block; what is before, between and after is one each. Where a
model has too few of them for the stages, cuts are considered where the fewest bytes pass: between
any two operators of a small program.

Two stretches are equal if their operators (but for the random numbers that they draw), what passes
between their blocks, and what they receive and send are. They then have the same plans, so one
search serves all of them.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.dataflow.segments import block_of
from shardwright.dataflow.stretches import Line, Stretch
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node
from shardwright.operators.views import buffer_roots
from shardwright.planner.plan.equality import constants

_MOST_POINTS = 64  # where cuts are considered by the bytes that pass
_FEWEST = 2  # blocks for each stage, where numbered cells are blocks


def cut_points(line: Line, loop: MicroBatches, stages: int) -> tuple[int, ...]:
    """Return the places in line before which a stage may begin, ascending.

    Parameters
    ----------
    line : Line
        The operators.
    loop : MicroBatches
        The program in micro-batches; every stage has a part of the loop over them.
    stages : int
        Number of stages.

    Raises
    ------
    OptionError
        If there are fewer than the stages need.
    """
    places = _places_in_loop(line, loop)
    blocks = [block_of(node.scope) for node in line.operators]
    found = [i for i in places if blocks[i] != blocks[i - 1]]
    if len(found) + 1 < _FEWEST * stages or not _are_whole(blocks, found):
        found = _lightest(line, places)
    if len(found) + 1 < stages:
        raise OptionError(
            f"the model can be cut in {len(found) + 1} stages at most, not in {stages}",
            hint="use fewer stages or chunks",
        )
    return tuple(found)


def most_stages(graph: Graph) -> tuple[int, int]:
    """Return how many stages a program can be cut in at most, and in how many between its cells."""
    blocks = [block_of(node.scope) for node in Line(graph).operators]
    cells = 1 + sum(one != other for one, other in pairwise(blocks))
    return max(cells // _FEWEST, min(len(blocks), _MOST_POINTS + 1)), cells // _FEWEST


def most_between(blocks: "Blocks") -> int:
    """Return the number of stages up to which a program is cut between some blocks; 0 if never."""
    most = len(blocks) // _FEWEST
    known = most > 1 and cut_points(blocks.line, blocks.loop, most) == blocks.points
    return most if known else 0


def given_points(line: Line, loop: MicroBatches, cuts: Sequence[str]) -> tuple[int, ...]:
    """Return the places in line at which given stages begin.

    Raises
    ------
    OptionError
        If a stage has no operator in line before the end of the loop.
    """
    points = tuple(line.position.get(_next_in_line(line, cut), -1) for cut in cuts)
    places = _places_in_loop(line, loop)
    for cut, (before, after) in zip(cuts, pairwise((0, *points)), strict=True):
        if before >= after or not any(before < place <= after for place in places):
            raise OptionError(
                f"the pipeline stage that `{cut}` begins, or the one before it, has no operator "
                "that depends on parameters and on a micro-batch",
                hint="let it begin elsewhere",
            )
    return points


def _next_in_line(line: Line, cut: str) -> str:
    """Return the first operator from a cut on that has a place in line."""
    names = [node.name for node in line.graph.nodes]
    return next((n for n in names[names.index(cut) :] if n in line.position), "")


def _places_in_loop(line: Line, loop: MicroBatches) -> list[int]:
    """Return the places in line, after the first, of operators of the loop over micro-batches.

    A stage that begins there has an operator in the loop; others, that run once, it has after it.
    """
    names = [node.name for node in line.operators]
    inside = [i for i, name in enumerate(names) if loop.passes == 1 or loop.is_repeated(name)]
    return inside[1:]


def _are_whole(blocks: Sequence[str], points: Sequence[int]) -> bool:
    """Return whether every numbered cell is one stretch."""
    starts = [blocks[i] for i in (0, *points) if blocks[i]]
    return len(starts) == len(set(starts))


def _lightest(line: Line, places: Sequence[int]) -> list[int]:
    """Return the places at which the fewest bytes pass, or all of few."""
    if len(places) <= _MOST_POINTS:
        return list(places)
    sizes = line.crossing_bytes
    return sorted(sorted(places, key=lambda place: (sizes[place], place))[:_MOST_POINTS])


@dataclass(frozen=True)
class _Block:
    """A block by itself: its operators, and how it is linked to the others."""

    key: Hashable
    received: tuple[tuple[int, str], ...]  # the block that makes each value, or -1; the value
    sent: tuple[int, ...]  # the last block that reads each value


@dataclass
class Blocks:
    """The blocks of a program.

    Parameters
    ----------
    line : Line
        The operators.
    loop : MicroBatches
        The program in micro-batches.
    points : tuple of int
        Where the blocks after the first begin.
    pinned : mapping of str to object
        What the user decided about operators and inputs, by name.
    """

    line: Line
    loop: MicroBatches
    points: tuple[int, ...]
    pinned: Mapping[str, Hashable] = field(default_factory=dict)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The places at which blocks begin, and the end."""
        return (0, *self.points, len(self.line.operators))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def stretch(self, begin: int, end: int, *, alone: bool = False) -> Stretch:
        """Return the blocks from `begin` to before `end`, as a program; see `Line.stretch`."""
        return self.line.stretch(self.starts[begin], self.starts[end], alone=alone)

    def key(self, begin: int, end: int) -> Hashable:
        """Return what is equal for equal stretches of blocks."""
        outside: dict[str, int] = {}
        keys: list[Hashable] = []
        for number in range(begin, end):
            block = self._blocks[number]
            links = [
                (number - source, self._place[name])
                if source >= begin
                else (-1, outside.setdefault(name, len(outside)))
                for source, name in block.received
            ]
            keys.append((block.key, tuple(links), tuple(last >= end for last in block.sent)))
        return tuple(keys)

    def told(self, block: int) -> tuple[object, ...]:
        """Return all that the problem of a block depends on, without names, for another program."""
        common = self.common_places(block)
        return self._structure(self._parts[block]), common, self.loop.passes

    def values(self, block: int) -> list[str]:
        """Return the names of the values of a block, in an order that equal blocks share."""
        return _values(self._parts[block])

    def passed(self, block: int) -> list[str]:
        """Return the values of a micro-batch that the block before makes and this one reads."""
        received = self._parts[block].received
        return [n for n in self._parts[block - 1].sent if n in received and self.loop.is_split(n)]

    def is_differentiated(self, value: str, block: int) -> bool:
        """Return whether an operator of a block returns a gradient of a value."""
        part = self._parts[block]
        return any(
            part.flow.operands[node.name][position]
            for node, position in part.graph.uses[value]
            if node.name not in self.line.everywhere
        )

    def common(self, block: int) -> frozenset[str]:
        """Return the values of a block whose buffers other blocks hold, too."""
        return self._common[block]

    def common_places(self, block: int) -> tuple[int, ...]:
        """Return the places of these values in the block."""
        values, common = _values(self._parts[block]), self._common[block]
        return tuple(i for i, name in enumerate(values) if name in common)

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """For each block a number, equal for equal blocks that have the same buffers in common."""
        numbers: dict[Hashable, int] = {}
        keys = ((self.key(i, i + 1), self.common_places(i)) for i in range(len(self)))
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    @cached_property
    def _common(self) -> list[frozenset[str]]:
        roots = buffer_roots(self.line.graph.nodes)
        touched = [{*_values(part), *_read(part)} for part in self._parts]
        buffers = [{roots.get(name, name) for name in names} for names in touched]
        several = Counter(root for own in buffers for root in own)
        return [
            frozenset(name for name in names if several[roots.get(name, name)] > 1)
            for names in touched
        ]

    @cached_property
    def _place(self) -> dict[str, int]:
        """The position of every sent value among those that its block sends."""
        return {name: i for part in self._parts for i, name in enumerate(part.sent)}

    @cached_property
    def _parts(self) -> list[Stretch]:
        return [self.line.stretch(*pair) for pair in pairwise(self.starts)]

    @cached_property
    def _blocks(self) -> list[_Block]:
        made = {name: i for i, part in enumerate(self._parts) for name in part.sent}
        last: dict[str, int] = {}
        for number, part in enumerate(self._parts):
            last.update(dict.fromkeys(part.received, number))
        interned: dict[Hashable, int] = {}
        found = []
        for part in self._parts:
            key = interned.setdefault(self._structure(part), len(interned))
            names = [value.name for value in part.graph.inputs if value.name in part.received]
            received = [(made[name], name) for name in names]
            shared = [v.name for v in part.graph.inputs if v.name not in part.received]
            shared += [n.name for n in part.graph.nodes if n.name in self.line.everywhere]
            shared += [p.name for p in part.graph.parameters if self.line.home(p.name) is None]
            received += [(-1, name) for name in shared]
            found.append(_Block(key, tuple(received), tuple(last[name] for name in part.sent)))
        return found

    def _structure(self, part: Stretch) -> Hashable:
        """Return the operators of a block, with values numbered."""
        graph, number = part.graph, dict[str, int]()
        scopes: dict[str, int] = {}

        def of(name: str) -> int:
            return number.setdefault(name, len(number))

        def node_key(node: Node) -> Hashable:
            block = block_of(node.scope)
            return (
                node.operator,
                tuple(of(name) for name in node.operands),
                tuple((of(r.name), r.type, self._passing(r.name)) for r in node.results),
                _text(constants(node.attributes)),
                self.loop.is_repeated(node.name),
                part.flow.operands[node.name],
                node.name in graph.recomputed,
                node.name in graph.offloaded,
                scopes.setdefault(block, len(scopes)),
                bool(block),
                self.pinned.get(node.name),
            )

        inputs = tuple(
            (
                of(value.name),
                value.type,
                self._passing(value.name),
                value.name in part.received,
                value.name in part.flow.values,
                self.pinned.get(value.name),
            )
            for value in graph.inputs
        )
        parameters = tuple(
            (of(p.name), p.value.type, _decided(p.attributes), p.role, p.name in part.flow.values)
            for p in graph.parameters
        )
        nodes = tuple(node_key(node) for node in graph.nodes)
        outputs = tuple((of(name), name == part.loss) for name in graph.outputs)
        updates = tuple((of(p), of(new)) for p, new in graph.updates)
        sent = tuple((of(name), name in part.flow.values) for name in part.sent)
        return inputs, parameters, nodes, outputs, updates, sent

    def _passing(self, value: str) -> Hashable:
        return self.loop.layouts[value]

    def names(self, begin: int, other: int, count: int) -> dict[str, str]:
        """Return the names of values in one stretch by those in an equal one.

        Parameters
        ----------
        begin, other : int
            The first blocks of the two stretches; the keys are names of the first.
        count : int
            Number of blocks.
        """
        found: dict[str, str] = {}
        for i in range(count):
            one, two = (_values(self._parts[first + i]) for first in (begin, other))
            found.update(zip(one, two, strict=True))
        return found


def _values(part: Stretch) -> list[str]:
    graph = part.graph
    stored = [*(value.name for value in graph.inputs), *(p.name for p in graph.parameters)]
    return [*stored, *(result.name for node in graph.nodes for result in node.results)]


def _read(part: Stretch) -> list[str]:
    return [name for node in part.graph.nodes for name in node.operands]


def _decided(attributes: Attributes) -> str:
    """Return the attributes of a parameter that a plan depends on: not with what it begins."""
    return _text({name: value for name, value in attributes.items() if name != "initializer"})


def _text(attributes: Attributes) -> str:
    """Return attributes as something to compare: ``True`` is not ``1``."""
    return repr(sorted(attributes.items()))
