"""The incumbent keeps the best assignment and the best bound, and says when to stop."""

import math

import pytest

from shardwright.solver.incumbent import Incumbent
from shardwright.solver.work import Budget


def new_incumbent(**fields: object) -> Incumbent[str]:
    return Incumbent(Budget(60), **fields)  # type: ignore[arg-type]


def test_only_better_assignments_are_kept() -> None:
    incumbent = new_incumbent()
    assert incumbent.offer("first", 5.0)
    assert not incumbent.offer("equal", 5.0)
    assert incumbent.offer("better", 4.0)
    assert (incumbent.assignment, incumbent.cost) == ("better", 4.0)


def test_whole_costs_round_the_bound_up_and_the_constant_is_added() -> None:
    incumbent = new_incumbent(whole=True, constant=10, tolerance=0.0)
    incumbent.offer("a", 3.0)
    incumbent.raise_bound(1.2)
    assert (incumbent.cost, incumbent.target, incumbent.bound) == (13, 3, 12)
    assert not incumbent.closed
    incumbent.raise_bound(2.1)
    assert (incumbent.bound, incumbent.status) == (13, "optimal")


def test_the_bound_stays_below_assignments_set_aside() -> None:
    incumbent = new_incumbent()
    incumbent.offer("a", 8.0)
    incumbent.raise_bound(4.0)
    assert incumbent.cutoff_at(0.5) == 6.0
    incumbent.cutoff()
    incumbent.raise_bound(math.inf)
    assert incumbent.bound == pytest.approx(8.0)
    assert incumbent.status == "optimal"


@pytest.mark.parametrize(
    ("cost", "bound", "status"),
    [
        (math.inf, math.inf, "infeasible"),
        (math.inf, 1.0, "unknown"),
        (2.0, 1.0, "feasible"),
        (1.0, 1.0, "optimal"),
    ],
)
def test_status(cost: float, bound: float, status: str) -> None:
    incumbent = new_incumbent()
    if cost < math.inf:
        incumbent.offer("a", cost)
    incumbent.raise_bound(bound)
    assert incumbent.status == status
    assert incumbent.closed == (status in ("infeasible", "optimal"))


def test_progress_is_told_of_every_improvement() -> None:
    reports: list[tuple[float, float]] = []
    incumbent = new_incumbent(progress=lambda seconds, cost, bound: reports.append((cost, bound)))
    incumbent.raise_bound(1.0)
    incumbent.offer("a", 3.0)
    incumbent.offer("b", 4.0)
    incumbent.raise_bound(0.5)
    assert reports == [(math.inf, 1.0), (3.0, 1.0)]
