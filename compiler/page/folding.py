"""Folding the model by scope: equal layers that follow each other are one box with a count."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardwright.ir.units import pattern


@dataclass(frozen=True)
class Read:
    """An operand of an operator.

    Parameters
    ----------
    tensor : str
        The tensor of the model.
    type : str
        Its whole type.
    made, taken : str
        Its layout as it is made or stored, and as the operator takes it.
    position : int or None
        Position of the operator that makes it; None for parameters and inputs.
    kind : str
        ``tensor``, ``parameter`` or ``input``.
    """

    tensor: str
    type: str
    made: str
    taken: str
    position: int | None
    kind: str


@dataclass(frozen=True)
class OperatorBox:
    """An operator of the model, or equal ones of equal layers.

    Parameters
    ----------
    name, operator, scope : str
        Name, kind and scope of the first.
    strategy, split_counts : str
        How it is split: mesh axes of its factors, and slices of each operand.
    seconds : float
        Time of all that the box stands for: forward, backward and communication.
    reads : tuple of Read
        Its operands.
    makes : tuple of (str, str, str)
        Name, type and layout of each result.
    positions : tuple of int
        The operators that the box stands for, by position in the model.
    stages : frozenset of int
        Their pipeline stages.
    """

    name: str
    operator: str
    scope: str
    strategy: str
    split_counts: str
    seconds: float
    reads: tuple[Read, ...]
    makes: tuple[tuple[str, str, str], ...]
    positions: tuple[int, ...]
    stages: frozenset[int]

    @property
    def size(self) -> int:
        """Operators of one of the equal layers."""
        return 1


@dataclass(frozen=True)
class ScopeBox:
    """The operators of a scope, or of equal scopes that follow each other.

    Parameters
    ----------
    label, last : str
        The last part of the scope, and of the last one.
    children : tuple of boxes
        What is in it.
    count : int
        Number of equal scopes.
    """

    label: str
    last: str
    children: "tuple[OperatorBox | ScopeBox, ...]"
    count: int = 1

    @property
    def seconds(self) -> float:
        """Time of all operators in it."""
        return sum(child.seconds for child in self.children)

    @property
    def positions(self) -> tuple[int, ...]:
        """The operators in it, by position in the model."""
        return tuple(sorted(p for child in self.children for p in child.positions))

    @property
    def stages(self) -> frozenset[int]:
        """The pipeline stages of its operators."""
        return frozenset().union(*(child.stages for child in self.children))

    @property
    def size(self) -> int:
        """Operators of one of the equal layers, each fold within it counted once."""
        return sum(child.size for child in self.children)


Box = OperatorBox | ScopeBox


def folded(operators: Sequence[OperatorBox]) -> tuple[Box, ...]:
    """Return the boxes of a model whose operators are in program order."""
    return _merged(_by_scope(operators, 0))


def _by_scope(operators: Sequence[OperatorBox], depth: int) -> tuple[Box, ...]:
    """Put the operators in a row that share a part of the scope into a box."""
    found: list[Box] = []
    row: list[OperatorBox] = []

    def close() -> None:
        if row:
            label = _part(row[0], depth)
            found.append(ScopeBox(label, label, _by_scope(row, depth + 1)))
            row.clear()

    for box in operators:
        part = _part(box, depth)
        if row and part != _part(row[0], depth):
            close()
        if part:
            row.append(box)
        else:
            found.append(box)
    close()
    return tuple(found)


def _part(box: OperatorBox, depth: int) -> str:
    parts = box.scope.split("/") if box.scope else []
    return parts[depth] if depth < len(parts) else ""


def _merged(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Merge equal scopes that follow each other, the innermost last."""
    runs: list[list[ScopeBox]] = []
    found: list[Box | list[ScopeBox]] = []
    keys: list[object] = []
    for box in boxes:
        if isinstance(box, OperatorBox):
            found.append(box)
            keys.append(None)
            continue
        key = _key(box)
        if key is not None and keys and keys[-1] == key:
            runs[-1].append(box)
            continue
        runs.append([box])
        found.append(runs[-1])
        keys.append(key)
    return tuple(_of_run(item) if isinstance(item, list) else item for item in found)


def _of_run(run: Sequence[ScopeBox]) -> ScopeBox:
    first, last = run[0], run[-1]
    inner = [_merged(box.children) for box in run] if len(run) == 1 else None
    if inner is not None:
        return replace(first, children=inner[0])
    together = tuple(_united(children) for children in zip(*(b.children for b in run), strict=True))
    return ScopeBox(first.label, last.label, _merged(together), len(run))


def _united(boxes: Sequence[Box]) -> Box:
    """Return the box that stands for equal boxes."""
    first = boxes[0]
    if isinstance(first, OperatorBox):
        own = [box for box in boxes if isinstance(box, OperatorBox)]
        return replace(
            first,
            seconds=sum(box.seconds for box in own),
            positions=tuple(p for box in own for p in box.positions),
            stages=frozenset().union(*(box.stages for box in own)),
        )
    scopes = [box.children for box in boxes if isinstance(box, ScopeBox)]
    children = tuple(_united(column) for column in zip(*scopes, strict=True))
    return replace(first, children=children)


def _key(box: ScopeBox) -> object:
    """Return what equal layers share; None where the scope is not one of several by number."""
    if not box.label.isdecimal():
        return None
    positions = box.positions
    start, stop = positions[0], positions[-1] + 1
    return tuple(_keys(box.children, start, stop))


def _keys(boxes: Sequence[Box], start: int, stop: int) -> Iterator[object]:
    for box in boxes:
        if isinstance(box, ScopeBox):
            yield box.label, tuple(_keys(box.children, start, stop))
            continue
        reads = tuple((r.type, r.made, r.taken, r.kind, _source(r, start, stop)) for r in box.reads)
        made = tuple((kind, layout) for _, kind, layout in box.makes)
        yield box.operator, box.strategy, box.split_counts, reads, made


def _source(read: Read, start: int, stop: int) -> object:
    """Return where an operand comes from, seen from a layer: equal for equal layers."""
    if read.position is None:
        return pattern(read.tensor)
    distance = start - read.position
    return distance if distance <= stop - start else read.tensor


# Numbers for boxes


@dataclass
class Numbering:
    """Numbers for the boxes, and the number of the box of every operator.

    Parameters
    ----------
    boxes : tuple of boxes
        The boxes of the model.
    """

    boxes: tuple[Box, ...]
    of_operator: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = 0
        for box in walk(self.boxes):
            if isinstance(box, OperatorBox):
                self.of_operator |= dict.fromkeys(box.positions, count)
                count += 1


def walk(boxes: Sequence[Box]) -> Iterator[Box]:
    """Yield all boxes, each before those in it."""
    for box in boxes:
        yield box
        if isinstance(box, ScopeBox):
            yield from walk(box.children)


def document(boxes: Sequence[Box], write: Callable[[OperatorBox], object]) -> list[object]:
    """Return the boxes as a document, operators as `write` says."""
    return [
        write(box)
        if isinstance(box, OperatorBox)
        else {
            "scope": box.label if box.count == 1 else f"{box.label} to {box.last}",
            "count": box.count,
            "seconds": box.seconds,
            "stages": sorted(box.stages),
            "children": document(box.children, write),
        }
        for box in boxes
    ]
