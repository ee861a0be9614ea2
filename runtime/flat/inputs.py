"""What a step of one rank begins with: the slices of its inputs, and its parameters."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from weakref import ref

import numpy as np

from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import Array
from shardwright.runtime.binding import Binding
from shardwright.runtime.communicator import Parts
from shardwright.runtime.flat.calls import Call, Slots
from shardwright.runtime.instructions import Local
from shardwright.runtime.state import Region, State, region


class _Input(NamedTuple):
    value: Value
    place: int
    local: Local
    region: Region


class Inputs:
    """The inputs and parameters of one rank.

    What fits as it is, is used as it is; everything else goes through the checks and copies of the
    executor. So does every input of the first step, and where a result of the step may share the
    caller's memory.

    Parameters
    ----------
    graph : Graph
        The program.
    locals_ : mapping of str to Local
        The storage of every value.
    places : mapping of str to int
        The slot of each value.
    mesh : Mesh
        The mesh of the program.
    rank : int
        The rank.
    binding : Binding
        Checks an input, which it copies, or a parameter.

    Attributes
    ----------
    slices : mapping of int to sequence of array
        Of the inputs that are split over micro-batches the part of each pass, by slot.
    """

    def __init__(
        self,
        graph: Graph,
        locals_: Mapping[str, Local],
        places: Mapping[str, int],
        mesh: Mesh,
        rank: int,
        binding: Binding,
    ) -> None:
        self._rank, self._binding = rank, binding
        self._copies = True
        self._first: list[ref[Array]] = []  # the inputs of the first step
        self.slices: dict[int, Sequence[Array]] = {}
        self._is_split = any(
            value.layout is not None and value.layout.mentions(mesh.in_time)
            for value in graph.inputs
        )

        def own(value: Value) -> bool:
            return rank in locals_[value.name].shapes

        self._inputs = [
            _Input(value, places[value.name], locals_[value.name], region(value, mesh, rank))
            for value in filter(own, graph.inputs)
        ]
        self._parameters = [
            (name, places[name], locals_[name].dtype, locals_[name].shapes[rank], value)
            for name, value in ((p.name, p.value) for p in graph.parameters if own(p.value))
        ]

    def into(self, slots: Slots, inputs: Mapping[str, Array | Parts], state: State) -> None:
        """Put the inputs and the parameters of a step into their slots.

        Raises
        ------
        ExecutionError
            If one does not fit.
        """
        for value, place, local, part in self._inputs:
            slots[place] = self._input(value, local, part, inputs[value.name])
        places = [stored.place for stored in self._inputs] if self._copies else []
        self._first = [ref(slots[place]) for place in places]
        rank = self._rank
        for name, place, dtype, shape, value in self._parameters:
            parts = state.get(name)
            array = None if parts is None else parts.get(rank)
            if array is None or array.dtype is not dtype or array.shape != shape:
                array = self._binding.held(value, state)[rank]
            slots[place] = array
        if self._is_split:
            self.slices = self._of_passes(slots, inputs)

    def _of_passes(
        self, slots: Slots, inputs: Mapping[str, Array | Parts]
    ) -> dict[int, Sequence[Array]]:
        places = {value.name: place for value, place, _, _ in self._inputs}
        first = {name: {self._rank: slots[place]} for name, place in places.items()}
        parts_of = self._binding.slices(inputs, first)
        return {places[name]: [p[self._rank] for p in parts] for name, parts in parts_of.items()}

    def turning(self, slots: Slots, number: int) -> Call:
        """Return the call that puts the parts of a pass into the slots."""

        def call() -> float:
            for place, parts in self.slices.items():
                slots[place] = parts[number]
            return 0.0

        return call

    def _input(self, value: Value, local: Local, part: Region, given: Array | Parts) -> Array:
        found = given.get(self._rank) if isinstance(given, Mapping) else given
        expected = local.shapes[self._rank] if isinstance(given, Mapping) else value.type.shape
        if (
            self._copies
            or type(found) is not np.ndarray
            or found.dtype is not local.dtype
            or found.shape != expected
        ):
            return self._binding.input(value, given)[self._rank]
        own = found if isinstance(given, Mapping) else found[part]
        return own if own.flags.c_contiguous else np.ascontiguousarray(own)

    def settle(self, results: Iterable[Array]) -> None:
        """Decide by the results of the first step whether inputs have to be copied."""
        if self._first:
            kept, alive = list(results), [found() for found in self._first]
            pairs = [(a, b) for a in alive if a is not None for b in kept]
            self._copies = any(np.may_share_memory(a, b) for a, b in pairs)
            self._first.clear()
