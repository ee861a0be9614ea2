"""The work of emitting a program, and of simulating its step."""

from collections.abc import Iterable

from shardwright.ir.graph import Graph
from shardwright.passes.manager import PassRecord
from shardwright.solver.work import Budget

_SECONDS_OF_PASS = 1.5e-5  # work for a node that a pass leaves, in seconds
_SECONDS_OF_SIMULATION = 9e-5  # work for a node whose step is simulated, in seconds


def charge_emission(budget: Budget, records: Iterable[PassRecord]) -> None:
    """Charge for the passes that emit a program, be it known or not."""
    budget.charge(_SECONDS_OF_PASS * sum(len(record.graph) for record in records))


def charge_simulation(budget: Budget, program: Graph) -> None:
    """Charge for the simulation of a program."""
    budget.charge(_SECONDS_OF_SIMULATION * len(program))
