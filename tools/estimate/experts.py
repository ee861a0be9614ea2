"""How many tokens the ranks of experts are expected to have, and what most could take."""

from math import inf

from shardwright.cost_model.memory import peak_memory
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text
from shardwright.passes.expect_imbalance import with_imbalance


def experts_text(program: Graph) -> str | None:
    """Return what is expected of the ranks that divide experts; None where none do.

    Parameters
    ----------
    program : Graph
        The program of a plan.
    """
    marked = (v for v in program.values.values() if v.type.ragged is not None and v.layout)
    divided = (
        v.type.ragged.imbalance
        for v in marked
        if v.type.ragged and v.layout and v.layout.splits[v.type.ragged.dimension]
    )
    imbalance = next(divided, None)
    if imbalance is None:
        return None
    most = peak_memory(with_imbalance(program, inf)).peak_bytes
    return (
        f"the expert rank that has most has {imbalance:g} times the tokens of the mean, as "
        f"`--imbalance` says; if one got all tokens, it would take {bytes_text(most)}"
    )
