"""Bound calls: a node with its kernel, its view and the places of its values.

A call takes its operands from slots and puts its results into slots, so that a step looks nothing
up. It checks what a kernel returns, as `kernels.settled` does.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import getrefcount
from typing import Any

import numpy as np

from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array
from shardwright.operators.models.optimizer import Update
from shardwright.runtime.accumulators import add_part, begun
from shardwright.runtime.faults import STANDING
from shardwright.runtime.instructions import Instruction, Local
from shardwright.runtime.kernels import run_kernel, settled
from shardwright.runtime.updates import overwrites, overwriting, update_in_place

Slots = list[Any]  # the array of each value of one rank; None where it is not alive
Call = Callable[[], float]  # returns the bytes that it held meanwhile, beside operands and results
Runner = Callable[[Instruction, dict[str, dict[int, Array]]], float]


def computing(
    instruction: Instruction, places: Mapping[str, int], slots: Slots, rank: int, low: bool
) -> Call:
    """Return the call of a kernel.

    Parameters
    ----------
    instruction : Instruction
        The node.
    places : mapping of str to int
        The slot of each value.
    slots : list of array
        The values.
    rank : int
        The rank.
    low : bool
        Whether operands have 16 bits.
    """
    info, view = instruction.info, instruction.views[0][rank]
    kernel: Callable[..., Any] = partial(run_kernel, info) if low else info.kernel
    operands = [places[name] for name in instruction.node.operands]
    if len(instruction.results) > 1 or isinstance(info, Update):
        return _several(instruction, partial(kernel, view), operands, places, slots, rank)
    put = _putting(instruction, instruction.results[0], places, slots, rank)
    if len(operands) == 1:
        (a,) = operands
        return lambda: put(kernel(view, slots[a]))
    if len(operands) == 2:
        a, b = operands
        return lambda: put(kernel(view, slots[a], slots[b]))
    return lambda: put(kernel(view, *[slots[i] for i in operands]))


def _putting(
    instruction: Instruction, local: Local, places: Mapping[str, int], slots: Slots, rank: int
) -> Callable[[Array], float]:
    """Return what puts a result of a kernel into its slot; in its declared type, if it is not."""
    shape, dtype, place = local.shapes[rank], local.dtype, places[local.name]

    def put(array: Array) -> float:
        fits = type(array) is np.ndarray and array.dtype is dtype and array.shape == shape
        if not fits or array.base is not None:
            array = settled(array, local, rank, instruction)
        slots[place] = array
        return 0.0

    return put


def constant(place: int, array: Array, slots: Slots) -> Call:
    """Return the call of a node whose result is the same array in every step."""

    def call() -> float:
        slots[place] = array
        return 0.0

    return call


def _several(
    instruction: Instruction,
    kernel: Callable[..., Any],
    operands: Sequence[int],
    places: Mapping[str, int],
    slots: Slots,
    rank: int,
) -> Call:
    """Return the call of a kernel with several results, in a tuple."""
    puts = [_putting(instruction, x, places, slots, rank) for x in instruction.results]

    def call() -> float:
        found = kernel(*[slots[i] for i in operands])
        arrays = found if isinstance(found, tuple) else (found,)
        for put, array in zip(puts, arrays, strict=True):
            put(array)
        return 0.0

    return call


def updating(
    instruction: Instruction,
    places: Mapping[str, int],
    slots: Slots,
    rank: int,
    dying: Sequence[str],
) -> Call:
    """Return the call of an update that overwrites its operands.

    Parameters
    ----------
    instruction, places, slots, rank
        As of `computing`.
    dying : sequence of str
        The operands that no node reads any more.
    """
    info = instruction.info
    if overwrites(info, instruction.replaced):
        return _overwriting(info, instruction, places, slots, dying)
    kernel, views = partial(run_kernel, info), {rank: instruction.views[0][rank]}
    operands = [places[name] for name in instruction.node.operands]
    results = [places[local.name] for local in instruction.results]
    replaced = instruction.replaced

    def call() -> float:
        parts = [{rank: slots[i]} for i in operands]
        for place, made in zip(
            results, update_in_place(kernel, views, parts, replaced), strict=True
        ):
            slots[place] = made[rank]
        return 0.0

    return call


def _overwriting(
    update: Update,
    instruction: Instruction,
    places: Mapping[str, int],
    slots: Slots,
    dying: Sequence[str],
) -> Call:
    """Return the call of an update that writes its results where the operands are."""
    operands = [places[name] for name in instruction.node.operands]
    results = [places[local.name] for local in instruction.results]
    replaced, gradient = instruction.replaced, operands[1]
    dies, overwrite = instruction.node.operands[1] in dying, overwriting(update, replaced)

    def call() -> float:
        spends = dies and is_alone(slots, gradient)
        arrays = [slots[i] for i in operands]
        overwrite(arrays, spends_gradient=spends)
        for place, i in zip(results, replaced, strict=True):
            slots[place] = arrays[i]
        return 0.0

    return call


def accumulating(
    instruction: Instruction,
    number: int,
    passes: int,
    places: Mapping[str, int],
    slots: Slots,
    rank: int,
) -> Call:
    """Return the call that adds the part of a pass to its result, or writes it there.

    Parameters
    ----------
    number, passes : int
        The pass, and how many there are.
    instruction, places, slots, rank
        As of `computing`.
    """
    info, result = instruction.info, places[instruction.results[0].name]
    operand = places[instruction.node.operands[0]]
    assert isinstance(info, Communication)

    def begin() -> float:
        slots[result] = begun(info, slots[operand], passes)
        return 0.0

    def add() -> float:
        add_part(info, slots[result], slots[operand], number)
        return 0.0

    if number:
        return add
    return begin if info.reduces else lambda: begin() + add()


def exchanging(
    instruction: Instruction,
    places: Mapping[str, int],
    slots: Slots,
    rank: int,
    exchange: Callable[[Array], Array],
) -> Call:
    """Return the call of a collective whose group and form are known."""
    local, operand = instruction.results[0], places[instruction.node.operands[0]]
    result = places[local.name]

    def call() -> float:
        STANDING.value = local.name
        part = exchange(np.asarray(slots[operand], order="C"))
        slots[result] = settled(part, local, rank, instruction)
        return 0.0

    return call


def cutting(
    instruction: Instruction, places: Mapping[str, int], slots: Slots, rank: int, mesh: Mesh
) -> Call:
    """Return the call of a communication operator of which every rank does its part alone."""
    info, local = instruction.info, instruction.results[0]
    assert isinstance(info, Communication)
    operand, own_part = places[instruction.node.operands[0]], info.own_part
    put = _putting(instruction, local, places, slots, rank)
    index, extents = info.place(rank, instruction.axes, mesh)

    def call() -> float:
        STANDING.value = local.name
        return put(own_part(slots[operand], index, extents))

    return call


def running(
    instruction: Instruction, places: Mapping[str, int], slots: Slots, rank: int, run: Runner
) -> Call:
    """Return the call of any other node, by the executor."""
    operands = [(name, places[name]) for name in instruction.node.operands]
    results = [(local.name, places[local.name]) for local in instruction.results]

    def call() -> float:
        values = {name: {rank: slots[place]} for name, place in operands}
        held = run(instruction, values)
        for name, place in results:
            slots[place] = values[name][rank]
        return held

    return call


def _references(slots: Slots, place: int) -> int:
    return getrefcount(slots[place])


_ONE = _references([np.empty(1)], 0)  # of an array that its slot alone refers to


def is_alone(slots: Slots, place: int) -> bool:
    """Return whether nothing but its slot refers to an array, and it has a buffer of its own."""
    array = slots[place]
    owns = array.base is None and array.flags.c_contiguous and array.flags.writeable
    del array
    return owns and _references(slots, place) == _ONE
