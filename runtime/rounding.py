"""How much rounding can change what a program computes: the same steps with shorter numbers.

Two programs that add the same terms in another order differ by rounding, and where the terms
cancel, by more than the result itself: a gradient that is mathematically zero is nothing but
rounding. So the magnitude of a result does not tell how far two right programs may differ; the
magnitude of its terms does. Running a program once more with every real number rounded to fewer
bits shows it: each term then has a known relative error, and what these errors make of a result is
the difference between the two runs, through every operator and every update.

Rounding to fewer bits is used, rather than random errors, because it is a function of the number
alone, and rounding twice is rounding once. Equal numbers stay equal, an element that an operator
only selects (a maximum, a slice) stays what it was, and integers and small fractions are exact, as
they are in the full precision. So comparisons and ties come out as before.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.ir.graph import Graph
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator
from shardwright.runtime.executor import Environment, Executor, Instruction
from shardwright.runtime.state import State

_STORED = 52  # bits of the fraction of a double


def rounded(array: Array, bits: int) -> Array:
    """Return an array of doubles, each rounded to the nearest that has a fraction of some bits.

    Arrays of other types are returned as they are, and so are numbers that would overflow.

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
    """Runs a program in which every real number is rounded to fewer bits.

    Parameters
    ----------
    graph : Graph
        The program.
    communicator : Communicator
        Hosts ranks of the graph's mesh.
    bits : int
        Bits of the fraction that are left of the 52 of a double.
    """

    def __init__(self, graph: Graph, communicator: Communicator, bits: int) -> None:
        super().__init__(graph, communicator, float_dtype="float64")
        self.bits = bits

    def _bind(self, inputs: Mapping[str, Array], state: State) -> Environment:
        values = super()._bind(inputs, state)
        return {name: self._rounded(parts) for name, parts in values.items()}

    def _run(self, instruction: Instruction, values: Environment) -> None:
        super()._run(instruction, values)
        for local in instruction.results:
            values[local.name] = self._rounded(values[local.name])

    def _rounded(self, parts: Mapping[int, Array]) -> dict[int, Array]:
        return {rank: rounded(part, self.bits) for rank, part in parts.items()}


def largest_change(exact: Array, others: Sequence[Array]) -> float:
    """Return the largest difference between an array and others; 0 where it is not a number."""
    if not np.issubdtype(exact.dtype, np.floating):
        return 0.0
    largest = 0.0
    for other in others:
        finite = np.isfinite(exact) & np.isfinite(other)
        change = np.abs(exact[finite] - other[finite])
        largest = max(largest, float(np.max(change, initial=0.0)))
    return largest
