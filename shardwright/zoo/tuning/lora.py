"""LoRA: the weights of a decoder are frozen, and narrow products beside them are trained.

References
----------
Hu et al., "LoRA: low-rank adaptation of large language models", 2021.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright import nn
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, POSITIVE_INTEGER
from shardwright.nn.experts import ExpertDense

_PARTS = ("attention", "feed_forward")
_ALL = "all-linear"
# Products by the names that transformers and peft have for them: a part, and what it calls them.
_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "q_proj": ("attention", ("query",)),
    "k_proj": ("attention", ("key",)),
    "v_proj": ("attention", ("value",)),
    "o_proj": ("attention", ("projection",)),
    "q_a_proj": ("attention", ("query_down",)),
    "q_b_proj": ("attention", ("query",)),
    "kv_a_proj_with_mqa": ("attention", ("down",)),
    "kv_b_proj": ("attention", ("key_value",)),
    "gate_proj": ("feed_forward", ("gate",)),
    "up_proj": ("feed_forward", ("up", "mapping")),
    "down_proj": ("feed_forward", ("down", "projection")),
}


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
        or of a whole part, ``attention``; or by the names of peft: ``q_proj+v_proj``. By default,
        and as ``all-linear``, all of attention and feed-forward but routers.

    bits : int
        Bits of an element of the frozen weights of products: 4 as in QLoRA; 0 for their own type.

    Raises
    ------
    OptionError
        If the rank is below 1, or alpha below 0.
    ModelError
        If bits are neither 4 nor 0.
    """

    rank: int
    alpha: int = 0
    targets: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        POSITIVE_INTEGER.check("lora", self.rank)
        NOT_NEGATIVE_INTEGER.check("lora_alpha", self.alpha)
        if self.bits not in (0, 4):
            raise ModelError(
                f"`lora_bits` is {self.bits}, expected 4: bits of frozen weights",
                hint="leave it out for weights of their own type",
            )

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
            If a target is no product, or a weight cannot have 4 bits.
        """
        products = [one for block in blocks for one in _products(block)]
        wanted = [name.strip() for name in (self.targets or _ALL).split("+")]
        for target in wanted:
            if not any(_is_in(*one, target) for one in products):
                raise ModelError(
                    f"`lora_targets` names `{target}`, which is no product of the model",
                    hint=_known(products),
                )
        for parameter in network.get_parameters():
            parameter.requires_grad = False
        for path, cell in products:
            if any(_is_in(path, cell, target) for target in wanted):
                cell.adapt(self.rank, (self.alpha or self.rank) / self.rank)
        for path, cell in products if self.bits else ():
            if isinstance(cell, ExpertDense):
                raise ModelError(
                    f"`lora_bits` knows no weights of experts, and `{path}` is of experts",
                    hint="leave it out",
                )
            cell.pack()


def _known(products: Sequence[tuple[str, nn.Dense | ExpertDense]]) -> str:
    """Return what can be named."""
    paths = dict.fromkeys(path for path, _ in products)
    other = "q_proj" if "attention.query_down" in paths else "q_b_proj"
    names = [x for x in _NAMES if x != other and any(_is_in(*one, x) for one in products)]
    return f"its products are {', '.join(paths)}; also {', '.join([*names, _ALL])}"


def _products(block: nn.Cell) -> Iterator[tuple[str, nn.Dense | ExpertDense]]:
    """Return the products with weights of a block, with their paths in it."""
    for name, part in block.name_cells().items():
        for path, cell in part.cells_and_names(name) if name in _PARTS else ():
            if isinstance(cell, (nn.Dense, ExpertDense)):
                yield path, cell


def _is_in(path: str, cell: nn.Dense | ExpertDense, target: str) -> bool:
    """Return whether a target is a product, or a part that it is of."""
    if target == _ALL:
        return not path.endswith(".router")
    if target in _NAMES:
        part, names = _NAMES[target]
        weighs = cell.weight.shape[0] == 1  # the gate of shared experts, a number for each token
        return path.startswith(part) and path.rpartition(".")[2] in names and not weighs
    return f".{target}." in f".{path}."
