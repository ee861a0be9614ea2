"""How often a token is sent between ranks that divide its experts.

A plain all-to-all sends a token once for each of its choices. Software that sends it once to each
rank that has some of them, and over the network once to each node, sends the fewer the more of its
choices one rank has. Of ``n`` groups of the experts, ``k`` choices among all experts alike are in
``n (1 - C(E - E/n, k) / C(E, k))``. The gate of a benchmark that balances loads may choose
neighbours instead, ``k i .. k i + k - 1`` modulo E for token i: those are in few groups.

References
----------
Zhao et al., "DeepEP: an efficient expert-parallel communication library", 2025.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, gcd, lgamma
from typing import Literal

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication

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
    """

    experts: int
    chosen: int
    held: int = 1

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
    rest = experts - each
    if chosen > rest:
        return float(count)
    none = _log_choices(rest, chosen) - _log_choices(experts, chosen)
    return count * (1.0 - exp(none))


def _log_choices(size: float, chosen: int) -> float:
    return lgamma(size + 1) - lgamma(size - chosen + 1) - lgamma(chosen + 1)


def choices_sent(info: Communication, before: Layout, after: Layout, mesh: Mesh) -> Choices | None:
    """Return the choices of the tokens whose rows an all-to-all moves; None of other moves.

    Parameters
    ----------
    info : Communication
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
    return Choices(tensor.shape[marked.dimension], marked.filled, held)
