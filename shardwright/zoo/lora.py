"""LoRA: the weights of a decoder are frozen, and narrow products beside them are trained.

References
----------
Hu et al., "LoRA: low-rank adaptation of large language models", 2021.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER
from shardwright.nn.experts import ExpertDense

_PARTS = ("attention", "feed_forward")


@dataclass(frozen=True)
class Lora:
    """Which products of a decoder get adapters, and of what size.

    Parameters
    ----------
    rank : int
        Features between the two products of an adapter.
    alpha : int
        What an adapter adds is multiplied by alpha / rank; 0 stands for the rank.
    targets : str
        Products by the names of their cells, joined by ``+``: ``query+value``, ``attention.gate``,
        or of a whole part, ``attention``. By default all of attention and of feed-forward.

    Raises
    ------
    OptionError
        If the rank is below 1, or alpha below 0.
    """

    rank: int
    alpha: int = 0
    targets: str = ""

    def __post_init__(self) -> None:
        POSITIVE_INTEGER.check("lora", self.rank)
        NOT_NEGATIVE_INTEGER.check("lora_alpha", self.alpha)

    def adapt(self, network: nn.Cell, blocks: nn.SequentialCell) -> None:
        """Freeze all parameters of a network, and give products of its blocks adapters.

        Parameters
        ----------
        network : Cell
            The network.
        blocks : SequentialCell
            Its blocks, with cells ``attention`` and ``feed_forward``.

        Raises
        ------
        ModelError
            If a target is no product, or is of routed experts.
        """
        products = [one for block in blocks for one in _products(block)]
        wanted = [name.strip() for name in (self.targets or "+".join(_PARTS)).split("+")]
        for target in wanted:
            if self.targets and not any(_is_in(path, target) for path, _ in products):
                names = ", ".join(dict.fromkeys(path for path, _ in products))
                raise ModelError(
                    f"`lora_targets` names `{target}`, which is no product of the model",
                    hint=f"its products are {names}",
                )
        for parameter in network.get_parameters():
            parameter.requires_grad = False
        for path, cell in products:
            if any(_is_in(path, target) for target in wanted):
                if not isinstance(cell, nn.Dense):
                    raise ModelError(
                        f"`lora` has no adapters for routed experts, and `{path}` is of experts",
                        hint="name other products, as `lora_targets=attention`",
                    )
                cell.adapt(self.rank, (self.alpha or self.rank) / self.rank)


def _products(block: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Return the products with weights of a block, with their paths in it."""
    for name, part in block.name_cells().items():
        for path, cell in part.cells_and_names(name) if name in _PARTS else ():
            if isinstance(cell, (nn.Dense, ExpertDense)):
                yield path, cell


def _is_in(path: str, target: str) -> bool:
    """Return whether a target is a product, or a part that it is of."""
    return f".{target}." in f".{path}."
