"""What the ranks of a session get of every batch.

A batch is whole, and every rank takes its slice by the layout of the input; or every rank has a
batch of its own, and the whole is all of them in the order of the ranks, or as a strategy says.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np

from shardwright.communication import processes
from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array
from shardwright.runtime import Communicator
from shardwright.runtime.agreement import Agreement
from shardwright.runtime.communicator import Parts
from shardwright.runtime.state import region

Kind = Literal["whole", "own", "stacked"]


class Trained(Protocol):
    """A session that can take over the state of another."""

    def continue_from(self, other: Any) -> None:
        """Begin with the state of another session."""


Session = TypeVar("Session", bound=Trained)


class ByShape(Generic[Session]):
    """A session for every shape of a batch, each with the state of the one that ran before.

    The last batch of an epoch may be smaller; the program for it is another one.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[tuple[int, ...], ...], Session] = {}
        self.current: Session | None = None

    def session(self, batch: Sequence[Array], begin: Callable[[], Session]) -> Session:
        """Return the session for a batch, begun if there is none yet."""
        key = tuple(array.shape for array in batch)
        before = self.current
        if key not in self._found:
            self._found[key] = begin()
        self.current = self._found[key]
        if before is not None and before is not self.current:
            self.current.continue_from(before)
        return self.current


class Feed:
    """The inputs of every step of a session.

    Parameters
    ----------
    graph : Graph
        The program.
    communicator : Communicator
        The communicator, which hosts ranks of the graph's mesh.
    kind : str
        ``whole``: a batch is the whole batch; ``own``: it is that of this process's rank;
        ``stacked``: those of all ranks one behind the other, of which each gets its own.
    counts : mapping of str to tuple of int, optional
        Of own batches, by input: how many parts along each dimension the ranks have. Rank i has
        part i, in rows.
    in_turn : bool
        Whether, where there are fewer parts than ranks, the next ranks have them again; else ranks
        that follow each other have the same part.
    """

    def __init__(
        self,
        graph: Graph,
        communicator: Communicator,
        kind: Kind,
        counts: Mapping[str, tuple[int, ...]] | None = None,
        in_turn: bool = True,
    ) -> None:
        self.graph, self.communicator, self.kind = graph, communicator, kind
        self._counts, self._in_turn = counts or {}, in_turn
        together = kind == "whole" and processes() is not None
        self._agreement = Agreement() if together else None
        mesh = communicator.mesh
        self._own = {value.name for value in graph.inputs if _is_by_rank(value, mesh)}

    def inputs(self, batch: Sequence[Array]) -> Mapping[str, Array | Parts]:
        """Return the inputs of a step.

        Raises
        ------
        ExecutionError
            If the processes read different batches of the step before.
        """
        arrays = [np.asarray(array) for array in batch]
        if self._agreement is not None:
            self._agreement.note(arrays)
        pairs = zip(self.graph.inputs, arrays, strict=True)
        return {value.name: self._fed(value, array) for value, array in pairs}

    def _fed(self, value: Value, array: Array) -> Array | Parts:
        if self.kind == "whole" or not array.ndim:
            return array
        if self.kind == "stacked":
            ranks = self.communicator.ranks
            return dict(zip(ranks, np.split(array, len(ranks)), strict=True))
        rank = self.communicator.ranks[0]
        if value.name in self._counts:
            parts = self.communicator.collect({rank: array})
            return _joined(value.name, parts, self._counts[value.name], self._in_turn)
        if value.name in self._own:
            return {rank: array}
        parts = self.communicator.collect({rank: array})
        shapes = {part.shape for part in parts.values()}
        if len(shapes) > 1:
            raise ExecutionError(
                f"the batches of the processes have the shapes {sorted(shapes)}, expected one",
                hint="drop the remainder of the samples: `batch(size, drop_remainder=True)`",
            )
        return np.concatenate([parts[i] for i in sorted(parts)])


def _joined(name: str, parts: Parts, counts: tuple[int, ...], in_turn: bool) -> Array:
    """Return the whole input that ranks have parts of.

    Raises
    ------
    ExecutionError
        If ranks that are to have one part have different ones.
    """
    number = prod(counts)
    places = {rank: rank % number if in_turn else rank * number // len(parts) for rank in parts}
    owners = {place: rank for rank, place in sorted(places.items(), reverse=True)}
    for rank, part in parts.items():
        owner = owners[places[rank]]
        first = parts[owner]
        if part.shape != first.shape or not np.array_equal(part, first, equal_nan=True):
            raise ExecutionError(
                f"the input `{name}` has {number} parts, and the ranks {owner} and {rank} "
                f"have different ones, expected one",
                hint="let both read the same samples",
            )
    whole = np.empty(counts, object)
    for place in range(number):
        whole[np.unravel_index(place, counts)] = parts[owners[place]]
    joined: Array = np.block(whole.tolist())
    return joined


def _is_by_rank(value: Value, mesh: Mesh) -> bool:
    """Return whether a rank's own batch is its part: without a layout, or in the order of ranks."""
    if value.layout is None:
        return True
    if mesh.passes > 1 or not value.type.shape:
        return False
    rows, *others = value.type.shape
    part = rows // mesh.size
    for rank in range(mesh.size):
        held, *rest = region(value, mesh, rank)
        whole = all((s.start, s.stop) == (0, n) for s, n in zip(rest, others, strict=True))
        if not whole or (held.start, held.stop) != (rank * part, (rank + 1) * part):
            return False
    return True
