"""Ragged tensors: of many entries along one dimension, a few are filled for each row."""

from dataclasses import dataclass

from shardwright.ir.errors import IRError


@dataclass(frozen=True)
class Ragged:
    """Which entries of a tensor are filled: a few along one dimension, for each index of others.

    A tensor ``[expert, token, feature]`` behind a `dispatch` has an entry for every expert and
    token. The entries of experts that a token did not choose are read by nothing, so devices
    neither compute nor hold them. The shape of the tensor bounds what may be filled, and
    `expected` counts what is, on the rank that has most.

    Parameters
    ----------
    dimension : int
        The dimension of which few entries are filled: the experts.
    rows : tuple of int
        The dimensions, for each index of which so few are: the tokens.
    filled : int
        How many entries are filled for each row, at most.
    imbalance : float
        Rows of the rank that has most over their mean, where ranks divide the dimension; at
        twice its value the busiest rank computes twice as many rows.

    Raises
    ------
    IRError
        If a number is out of range.
    """

    dimension: int
    rows: tuple[int, ...]
    filled: int
    imbalance: float = 1.0

    def __post_init__(self) -> None:
        if self.filled < 1:
            raise IRError(f"{self.filled} entries are filled for each row, expected at least 1")
        if not 1.0 <= self.imbalance <= 1e6:
            raise IRError(f"the imbalance is {self.imbalance}, expected a number of at least 1")

    def expected(self, size: int, local: int) -> float:
        """Return how many of `local` entries, of `size` in all, are filled for each row.

        For a row of the rank that has most: ``filled local / size imbalance``, at most all.
        """
        share = self.filled * local / size
        return min(share * (self.imbalance if local < size else 1.0), self.bound(local))

    def bound(self, local: int) -> float:
        """Return how many of `local` entries may be filled for each row."""
        return min(self.filled, local)

    def within(self, shape: tuple[int, ...]) -> "Ragged | None":
        """Return what is filled of a slice; None where all of it may be."""
        local = shape[self.dimension]
        return None if local <= self.filled else self

    def size_text(self, dimension: int, size: int) -> str:
        """Return the text of a size: ``2/8`` or ``2/8*1.5`` of the few, ``16~`` of rows."""
        if dimension == self.dimension:
            imbalance = "" if self.imbalance == 1.0 else f"*{self.imbalance!r}"
            return f"{self.filled}/{size}{imbalance}"
        return f"{size}~" if dimension in self.rows else f"{size}"
