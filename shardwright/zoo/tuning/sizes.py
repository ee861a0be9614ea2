"""How a decoder is trained, where not all of it is, or not on whole rows of text."""

from dataclasses import dataclass

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.zoo.tuning.documents import Documents
from shardwright.zoo.tuning.lora import Lora


@dataclass(frozen=True)
class Tuning:
    """The sizes of fine-tuning, which every decoder has; by default all is trained on whole rows.

    Parameters
    ----------
    lora, lora_alpha, lora_targets, lora_bits
        Rank, alpha, targets and bits of `Lora`; a rank of 0 trains all parameters.
    documents, document_spread
        Mean and spread of `Documents`: a row has several, whose tokens read and count by
        themselves, the model takes their ``positions``, and labels of -100 do not count. 0 where a
        row is one.
    """

    lora: int = 0
    lora_alpha: int = 0
    lora_targets: str = ""
    lora_bits: int = 0
    documents: int = 0
    document_spread: float = 1.0

    def packed(self, row: int) -> Documents | None:
        """Return the documents of rows of so many tokens, where there are several in a row.

        Raises
        ------
        ModelError
            If a document in the mean is longer than a row, the spread is negative, or given alone.
        """
        if self.documents:
            return Documents(self.documents, self.document_spread, row)
        if self.document_spread != 1:
            raise ModelError(
                "`document_spread` is given without a length", hint="write `documents=512`"
            )
        return None

    def adapt(self, network: nn.Cell, blocks: nn.SequentialCell) -> None:
        """Give a network adapters, where asked for.

        Raises
        ------
        ModelError
            If there is alpha or a target and no rank, or a target is no product.
        OptionError
            If the rank or alpha is negative.
        """
        if self.lora:
            own = Lora(self.lora, self.lora_alpha, self.lora_targets, self.lora_bits)
            own.adapt(network, blocks)
            return
        if self.lora_bits:
            raise ModelError(
                f"`lora_bits` is {self.lora_bits}, and all weights are trained: one of 4 bits "
                "cannot be",
                hint="write `lora=16`, which trains adapters beside frozen weights",
            )
        if self.lora_alpha or self.lora_targets:
            name = "lora_alpha" if self.lora_alpha else "lora_targets"
            raise ModelError(f"`{name}` is given without a rank", hint="write `lora=16`")


WHOLE = Tuning()
"""All parameters, on whole rows of text."""
