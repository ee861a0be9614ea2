"""How many tokens the ranks of experts are expected to have, and what most could take."""

from math import inf

from shardwright.cost_model.memory import peak_memory
from shardwright.ir.graph import Graph
from shardwright.ir.units import bytes_text
from shardwright.operators.models.routing import IMBALANCE
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
    source = ", as published of a selection bias; `--imbalance` sets it"
    return (
        f"the busiest expert rank has {imbalance:g} times the tokens of the mean"
        f"{source if imbalance == IMBALANCE else ''}; if it got all, it would take "
        f"{bytes_text(most)}"
    )
