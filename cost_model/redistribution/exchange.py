"""How often a token is sent between ranks that divide its experts.

A plain all-to-all sends a token once for each of its choices. Software that sends it once to each
rank that has some of them, and over the network once to each node, sends the fewer the more of its
choices one rank has. Of ``n`` groups of the experts, ``k`` choices among all experts alike are in
``n (1 - C(E - E/n, k) / C(E, k))``. A router may first choose a few equal parts of the experts
(DeepSeek-V3 4 of 8, one on each node), and experts of these alone: then parts are chosen alike,
and experts alike among theirs. The gate of a benchmark that balances loads may choose neighbours
instead, ``k i .. k i + k - 1`` modulo E for token i: those are in few groups.

References
----------
Zhao et al., "DeepEP: an efficient expert-parallel communication library", 2025.
DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.1.2.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, gcd, lgamma
from typing import Literal

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.info import OperatorInfo

Sent = Literal["choices", "ranks"]
Gate = Literal["alike", "neighbours"]


@dataclass(frozen=True)
class Choices:
    """How many experts there are, and how many a token chooses.

    Parameters
    ----------
    experts : int
        Experts in all.
    chosen : int
        How many of them a token chooses.
    held : int
        Ranks that divide the experts before the exchange, and go on to.
    parts : tuple of (int, int)
        In how many of how many equal parts of the experts a token's choices are.
    """

    experts: int
    chosen: int
    held: int = 1
    parts: tuple[int, int] = (1, 1)

    def copies(self, count: int, gate: Gate) -> float:
        """Return the copies of a token for `count` ranks over the rows of its choices."""
        return self.groups(count * self.held, gate) / self.chosen

    def groups(self, count: int, gate: Gate) -> float:
        """Return in how many of `count` groups of consecutive experts a token's choices are."""
        return _groups(self, count, gate)


@lru_cache(maxsize=1024)
def _groups(choices: Choices, count: int, gate: Gate) -> float:
    experts, chosen = choices.experts, choices.chosen
    each = experts / count
    if gate == "neighbours":
        step = gcd(chosen, experts)  # the first choices of all tokens are its multiples
        starts = range(0, experts, step)
        found = (
            len({int((start + i) % experts // each) for i in range(chosen)}) for start in starts
        )
        return sum(found) / len(starts)
    return count * (1.0 - _share_without(choices, count))


def _share_without(choices: Choices, count: int) -> float:
    """Return the share of tokens without a choice among those of one of `count` groups."""
    (few, parts), each = choices.parts, choices.experts / count
    if max(count, parts) % min(count, parts):  # no part is of whole groups, nor a group of parts
        few, parts = 1, 1
    allowed = choices.experts * few / parts
    if count >= parts:  # a group is within one part
        return 1 - few / parts + few / parts * _share_beside(allowed, each, choices.chosen)
    own, size = parts // count, choices.experts / parts
    found = 0.0
    for taken in range(min(own, few) + 1):  # of the parts of the group
        share = comb(own, taken) * comb(parts - own, few - taken) / comb(parts, few)
        found += share * _share_beside(allowed, taken * size, choices.chosen)
    return found


def _share_beside(experts: float, some: float, chosen: int) -> float:
    """Return the share of choices among experts that have none of some of them."""
    if chosen > experts - some:
        return 0.0
    return exp(_log_choices(experts - some, chosen) - _log_choices(experts, chosen))


def _log_choices(size: float, chosen: int) -> float:
    return lgamma(size + 1) - lgamma(size - chosen + 1) - lgamma(chosen + 1)


def choices_sent(info: OperatorInfo, before: Layout, after: Layout, mesh: Mesh) -> Choices | None:
    """Return the choices of the tokens whose rows an all-to-all moves; None of other moves.

    Parameters
    ----------
    info : OperatorInfo
        The move.
    before, after : Layout
        The layouts of its operand and result.
    mesh : Mesh
        The mesh.
    """
    tensor = info.operand_types[0]
    marked = tensor.ragged
    if info.name != "all_to_all" or marked is None:
        return None
    if marked.dimension not in (
        info.attributes["split_dimension"],
        info.attributes["concat_dimension"],
    ):
        return None
    held = min(mesh.extent(layout.splits[marked.dimension]) for layout in (before, after))
    return Choices(tensor.shape[marked.dimension], marked.filled, held, marked.parts)
