"""Plans of stages, and lower bounds of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.ir.decisions import Decisions


@dataclass(frozen=True)
class StageBound:
    """Lower bounds of every plan of a stage within the memory limit.

    Parameters
    ----------
    pass_seconds : float
        Of one pass over one micro-batch, forward and backward.
    step_seconds : float
        Of all passes and what is done once; infinite where no plan fits.
    """

    pass_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class StagePlan:
    """A plan of a stage.

    Parameters
    ----------
    decisions : Decisions
        What it decides, on the program of one micro-batch.
    step_seconds : float
        Seconds of all passes and of what is done once, by the search.
    memory_bytes : float
        Peak memory by the account of the search.
    unlimited : bool
        Whether it is the best plan without a memory limit, too.
    """

    decisions: Decisions
    step_seconds: float
    memory_bytes: float
    unlimited: bool


def renamed(decisions: Decisions, names: Mapping[str, str]) -> Decisions:
    """Return decisions for a program with other names."""
    return decisions.about(lambda name: (names[name],))
