"""Documents that share a row of tokens, as fine-tuning packs them."""

from dataclasses import dataclass

from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.tracing import InputSpec

IGNORED = -100
"""The label of a token that the loss leaves out, as PyTorch and transformers have it."""


@dataclass(frozen=True)
class Documents:
    """How long the documents are that rows of tokens are packed with.

    Parameters
    ----------
    mean : int
        Their length in the mean, in tokens.
    spread : float
        The standard deviation of their lengths over the mean: 0 where all are as long, 1 where
        lengths are distributed exponentially.
    row : int
        Tokens of a row.

    Raises
    ------
    ModelError
        If a document in the mean is longer than a row, or the spread is negative.
    """

    mean: int
    spread: float
    row: int

    def __post_init__(self) -> None:
        if self.mean > self.row:
            raise ModelError(
                f"`documents` have {self.mean:,} tokens in the mean, and a row has {self.row:,}",
                hint=f"give at most {self.row}, or a longer `sequence`",
            )
        if self.spread < 0:
            raise ModelError(
                f"`document_spread` is {self.spread}, expected 0 or more: the standard deviation "
                "of lengths over their mean"
            )

    @property
    def of_a_token(self) -> int:
        """The length of the document that a token is of, in the mean over tokens.

        A document of n tokens is that of n tokens, so it is E[n^2] / E[n] = mean (1 + spread^2), at
        most a row. Attention costs as where all documents are so long: a token of one of n reads
        (n + 1) / 2 keys in the mean.

        Examples
        --------
        >>> Documents(512, 1.0, 4096).of_a_token, Documents(512, 0.0, 4096).of_a_token
        (1024, 512)
        """
        return min(self.row, round(self.mean * (1 + self.spread**2)))

    def positions(self, batch: int) -> InputSpec:
        """Return the input that has the position of every token in its document, from 0."""
        return InputSpec("positions", TensorType("int32", (batch, self.row)), self.row)
