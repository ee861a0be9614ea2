"""Operators that hold memory of their own while they run."""

from collections.abc import Sequence

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo


class WithWorkspace(OperatorInfo):
    """An operator that holds tensors beside its operands and results while it runs."""

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the bytes that a rank holds at most beside its slices of operands and results."""
        raise NotImplementedError

    def bytes_between(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the bytes that a rank writes and reads of such tensors.

        Parameters
        ----------
        shapes : sequence of tuple of int
            The shapes of the rank's slices of the operands.
        """
        return 0.0

    def launches(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return how many kernels a rank launches, one after another."""
        return 1
