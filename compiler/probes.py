"""Searches by weights as the search for the least overlapped step meets them.

Often the bound and the loads of a plan are all that matters: of a large program, the loads are
computed by the account of the search (`search.loads`), so that a plan that exceeds the memory limit
or has too great a load is never emitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwright.compiler.attempts import Probe
from shardwright.compiler.fitting import Attempt, check_cost
from shardwright.cost_model.weighted.loads import Loads
from shardwright.search.space.memory_shares import parameter_bytes


@dataclass(frozen=True)
class Probed:
    """A search by weights whose plan is emitted only where the bound leaves a gap.

    Parameters
    ----------
    lower_bound : float
        Proven: no plan has a shorter overlapped step.
    attempts : callable
        Emits the plan, whose program may not fit, then others.
    unlimited : bool
        Whether memory does not matter to the plan.
    loads : callable
        Returns the loads of the plan without its program; None where they are not known so.
    memory_bytes : float
        The memory of the plan by the account of the search: its program takes no less.
    parameter_bytes : callable
        Returns the bytes that its parameters take.
    """

    lower_bound: float
    attempts: Callable[[], Sequence[Attempt]]
    unlimited: bool = True
    loads: Callable[[], Loads | None] = lambda: None
    memory_bytes: float = 0.0
    parameter_bytes: Callable[[], float] = lambda: 0.0


def probed(
    probe: Probe,
    *,
    is_large: bool,
    unlimited: bool = True,
    attempts: Callable[[], Sequence[Attempt]] | None = None,
) -> Probed:
    """Return a search by weights that was made.

    Parameters
    ----------
    probe : Probe
        The search.
    is_large : bool
        Whether the program is large, so that emitting it takes long.
    unlimited : bool
        Whether memory does not matter to the plan.
    attempts : callable, optional
        Emits the plan, then others; by default the plan alone.
    """

    def loads() -> Loads | None:
        searches = probe.attempts
        if not is_large or searches.is_fine:  # where the plan does not fit, others are searched
            return None
        return searches.request.loads(searches.space, probe.result.assignment)

    return Probed(
        probe.result.lower_bound,
        attempts or (lambda: [emitted_as_priced(probe)]),
        unlimited,
        loads,
        probe.result.memory_bytes,
        lambda: parameter_bytes(probe.attempts.space, probe.result.assignment),
    )


def emitted_as_priced(probe: Probe) -> Attempt:
    """Return the plan of a search with its program, if that costs as the search said."""
    found = probe.emit()
    check_cost(found, probe.attempts.request.profile)
    return found


def as_unlimited(probe: Probe) -> Attempt:
    """Return the plan of a search without the memory limit, with its program."""
    found = emitted_as_priced(probe)
    return replace(found, result=replace(found.result, unlimited=True))
