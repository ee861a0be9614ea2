"""The work of emitting a program, and of simulating its step."""

from collections.abc import Iterable

from shardwright.ir.graph import Graph
from shardwright.passes.manager import PassRecord
from shardwright.solver.work import SECONDS_OF, Budget


def charge_emission(budget: Budget, records: Iterable[PassRecord]) -> None:
    """Charge for the passes that emit a program, be it known or not."""
    budget.charge(SECONDS_OF.pass_node * sum(len(record.graph) for record in records))


def charge_simulation(budget: Budget, program: Graph) -> None:
    """Charge for the simulation of a program."""
    budget.charge(SECONDS_OF.simulated_node * len(program))
