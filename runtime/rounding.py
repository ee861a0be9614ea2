"""The effect of rounding on the results of a program: the same steps in lower precision.

Two programs that add the same terms in another order differ by rounding; where the terms cancel, by
more than the result itself: a gradient that is mathematically zero is pure rounding error. So the
tolerance depends on the magnitude of the terms, not of the result. Running a program again with
every number rounded to fewer bits measures it: each term then has a known relative error, and the
difference between the two runs is the effect of these errors through every operator and update.

Rounding to fewer bits is used, rather than random errors, because it is a function of the number
alone, and rounding twice is rounding once. Equal numbers stay equal, selected elements (a maximum,
a slice) are unchanged, and integers and small fractions are exact, as in full precision. So
comparisons and ties have the same results.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.ir.graph import Graph
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator, Parts
from shardwright.runtime.executor import Environment, Executor, Values
from shardwright.runtime.instructions import Instruction
from shardwright.runtime.state import State

_STORED = int(np.finfo(np.float64).nmant)  # bits of the fraction of a double


def rounded(array: Array, bits: int) -> Array:
    """Return an array of doubles, each rounded to the nearest that has a fraction of some bits.

    Arrays of other types are unchanged, and so are numbers that would overflow.

    Examples
    --------
    >>> rounded(np.array([1.0, 1.3, 1.8]), 1)
    array([1. , 1.5, 2. ])
    """
    if array.dtype != np.float64:
        return array
    dropped = _STORED - bits
    pattern = np.ascontiguousarray(array).view(np.int64)
    with np.errstate(over="ignore"):
        pattern = (pattern + (1 << (dropped - 1))) & -(1 << dropped)
    short = pattern.view(np.float64).reshape(array.shape)
    return np.where(np.isfinite(short), short, array)


class RoundedExecutor(Executor):
    """An executor that rounds every floating-point number to fewer bits.

    Parameters
    ----------
    graph : Graph
        The program.
    communicator : Communicator
        The communicator, which hosts ranks of the graph's mesh.
    bits : int
        Bits of the fraction, of the 52 of a double.
    """

    steps_are_equal = False  # values are rounded between the nodes

    def __init__(self, graph: Graph, communicator: Communicator, bits: int) -> None:
        super().__init__(graph, communicator, float_dtype="float64")
        self.bits = bits

    def _bind(self, inputs: Mapping[str, Array | Parts], state: State) -> Environment:
        values = super()._bind(inputs, state)
        return {name: self._rounded(parts) for name, parts in values.items()}

    def _run(self, instruction: Instruction, values: Values, number: int = 0) -> float:
        held = super()._run(instruction, values, number)
        for local in instruction.results:
            values[local.name] = self._rounded(values[local.name])
        return held

    def _rounded(self, parts: Mapping[int, Array]) -> dict[int, Array]:
        return {rank: rounded(part, self.bits) for rank, part in parts.items()}


def largest_change(exact: Array, others: Sequence[Array]) -> float:
    """Return the largest difference between an array and others; 0 for NaN."""
    if not np.issubdtype(exact.dtype, np.floating):
        return 0.0
    largest = 0.0
    for other in others:
        finite = np.isfinite(exact) & np.isfinite(other)
        change = np.abs(exact[finite] - other[finite])
        largest = max(largest, float(np.max(change, initial=0.0)))
    return largest
