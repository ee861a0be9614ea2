"""The search over configurations against all of them, with judges whose bounds and costs are drawn.

Bounds are true. Wrong estimates and slow plans of blocks cost time, and nothing else.
"""

from math import inf

import pytest

from shardwright.compiler.outer.run import check_bounds
from shardwright.ir.errors import (
    InfeasibleError,
    ModelError,
    NotFoundError,
    OptionError,
    PassError,
    TimeLimitError,
)
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.planner.choice.best_first import BestFirst
from shardwright.planner.choice.configuration import Configuration
from shardwright.planner.choice.questions import NotFasterError
from shardwright.planner.choice.trace import Tried
from shardwright.solver.work import Budget
from tests.extent import first
from tests.planner.choice.drawn import (
    FINER,
    FLOOR,
    Drawn,
    DrawnJudge,
    drawn_judge,
    one_axis,
    searched,
)


def account(entries):
    return [(e.outcome, e.bound, e.proof, e.found and e.found.cost, str(e.error)) for e in entries]


@pytest.mark.parametrize("seed", range(100))
def test_the_best_of_all_configurations_is_found_and_the_bound_is_below_it(seed):
    judge = drawn_judge(seed)
    search, entries = searched(judge)
    costs = [d.searched for d in judge.drawn.values() if isinstance(d.searched, float)]
    for entry in entries:
        assert entry.bound <= judge.drawn[entry.configuration].within
        assert entry.outcome is not None
    if not costs:
        assert search.best is None
        assert {e.outcome for e in entries} <= {"infeasible", "not found", "refused"}
        return
    assert search.best.cost == min(costs)
    assert min(entry.tried().lower_bound for entry in entries) <= min(costs)
    kinds = [e.outcome for e in entries if e.bound >= min(costs) and e.found is None]
    assert set(kinds) <= {"cut", "infeasible", "not found", "refused"}


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_the_account_does_not_depend_on_the_number_of_processes(seed):
    one = account(searched(drawn_judge(seed))[1])
    assert account(searched(drawn_judge(seed), 3)[1]) == one


@pytest.mark.parametrize("seed", first(10, range(30)))
def test_where_the_budget_is_spent_the_bound_is_honest_and_the_search_ends(seed):
    judge = drawn_judge(seed)
    judge.seconds = 1.0
    search, entries = searched(judge, seconds=5.0)
    assert search.budget.spent <= 5.0 + 4.0  # what a round takes longer
    for entry in entries:
        assert entry.bound <= judge.drawn[entry.configuration].within
    if any(entry.outcome is None for entry in entries):
        assert search.is_cut_short


def test_a_configuration_whose_bound_exceeds_a_plan_is_asked_nothing_more():
    one, two = (Configuration(one_axis(size)) for size in (4, 8))
    judge = DrawnJudge({one: Drawn(1.0, 1.1, 1.2, 1.1), two: Drawn(1.5, 1.6, 1.7, 1.6)})
    search, entries = searched(judge)
    assert search.best.configuration == one
    assert ("search", two) not in judge.asked
    assert [entry.outcome for entry in entries] == ["compiled", "cut"]


def test_a_bound_holds_for_more_micro_batches_and_says_whose_it_is():
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    judge = DrawnJudge({one: Drawn(1.2, 1.2, 1.2, 1.2), two: Drawn(1.2, 1.2, 1.2, 9.0)})
    judge.seconds = 1.0
    _, entries = searched(judge)
    judge.drawn[two] = Drawn(1.3, 1.3, 1.3, 9.0)
    assert entries[1].outcome == "cut"
    assert ("search", two) not in judge.asked


@pytest.mark.parametrize("blocks", [True, False])
def test_a_finer_mesh_is_looked_at_once_the_others_are_done(blocks):
    merged, finer = (Configuration(mesh) for mesh in (one_axis(), FINER))
    other = Configuration(one_axis(4), 1, 2, 1, "1f1b")
    judge = DrawnJudge(
        {
            finer: Drawn(1.0, 1.0, 1.2, 1.1, 1.2),
            merged: Drawn(1.0, 1.1, 1.21, 1.2, 1.21),
            other: Drawn(1.0, 1.19, 1.3, 1.19, 1.3),
        },
        blocks=blocks,
    )
    search, _ = searched(judge)
    of_finer = next(i for i, (_, one) in enumerate(judge.asked) if one == finer)
    asked = {one for _, one in judge.asked[:of_finer]}
    assert asked == {merged, other}
    assert (search.best.configuration, search.best.cost) == (finer, 1.2)


def test_plans_of_blocks_come_before_searches_and_the_best_one_is_searched_first():
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    drawn = {one: Drawn(1.0, 1.0, 1.3, 1.3, 1.5), two: Drawn(1.0, 1.0, 1.25, 1.2, 1.4)}
    judge = DrawnJudge(drawn, blocks=True)
    search, _ = searched(judge)
    kinds = [question for question, _ in judge.asked if question != "price"]
    assert kinds == ["plan", "plan", "search", "search"]
    assert judge.asked[-2:] == [("search", two), ("search", one)]
    assert search.best.cost == 1.25


def test_what_is_not_expected_to_be_faster_is_not_planned():
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    three = Configuration(one_axis(), 4)
    drawn = {
        one: Drawn(1.0, 1.0, 1.1, 1.1, 1.2),
        two: Drawn(1.0, 1.0, 1.2, 1.15, 1.2),
        three: Drawn(1.0, 1.05, 1.3, 1.25, 1.3),
    }
    judge = DrawnJudge(drawn, blocks=True)
    searched(judge)
    assert ("plan", three) not in judge.asked
    assert ("search", three) in judge.asked  # its bound leaves room for a better plan


@pytest.mark.parametrize("planned", [1.5, NotFoundError("none is expected to be faster")])
def test_a_large_program_is_not_searched_where_its_blocks_have_no_plan(planned):
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    drawn = {one: Drawn(1.2, 1.2, 1.4, 1.3, 1.4), two: Drawn(1.2, 1.2, 1.5, 1.3, planned)}
    judge = DrawnJudge(drawn, blocks=True, is_large=True)
    _, entries = searched(judge)
    assert ("plan", two) in judge.asked
    assert (("search", two) in judge.asked) == isinstance(planned, float)
    assert min(entry.cost for entry in entries) == 1.4


@pytest.mark.parametrize("is_large", [True, False])
def test_large_pipelines_are_not_searched_beside_a_plan(is_large):
    one, two = (Configuration(one_axis(4), count, 2, 1, "1f1b") for count in (2, 4))
    drawn = {one: Drawn(1.0, 1.0, 1.2, 1.1, 1.2), two: Drawn(1.0, 1.1, 1.3, 1.2, 1.3)}
    judge = DrawnJudge(drawn, blocks=True, is_large=is_large)
    search, entries = searched(judge)
    assert search.best.cost == 1.2
    assert ("search" in {question for question, _ in judge.asked}) != is_large
    assert entries[1].tried().lower_bound == 1.1


@pytest.mark.parametrize("late", [True, False])
def test_where_the_budget_ends_the_search_of_a_configuration_it_is_said(late):
    one = Configuration(one_axis())
    search, _ = searched(DrawnJudge({one: Drawn(1.1, 1.4, 1.4)}, late=late))
    assert search.is_cut_short == late


def test_the_gap_is_the_users():
    one, two = (Configuration(one_axis(size)) for size in (4, 8))
    drawn = {one: Drawn(1.0, 1.05, 1.1, 1.0), two: Drawn(1.0, 1.04, 1.09, 1.2)}
    exact, _ = searched(DrawnJudge(drawn))
    assert exact.best.configuration == two
    rough, entries = searched(DrawnJudge(drawn), gap=0.1)
    assert rough.best.cost <= min(e.tried().lower_bound for e in entries) / 0.9


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("error", [ModelError("it is not divisible"), OptionError("wrong")])
def test_errors_that_are_not_about_a_configuration_are_raised(error, workers):
    one = Configuration(one_axis())
    with pytest.raises(type(error), match=error.what):
        searched(DrawnJudge({one: Drawn(1.0, 1.0, error)}), workers)


def test_options_that_refuse_more_micro_batches_leave_one():
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    drawn = {one: Drawn(1.0, 1.0, 1.5, 1.0), two: Drawn(1.0, 1.0, OptionError("no"), 1.0)}
    search, entries = searched(DrawnJudge(drawn))
    assert search.best.configuration == one
    assert (entries[1].outcome, entries[1].tried().lower_bound) == ("refused", inf)


def test_what_takes_too_long_keeps_the_bound_honest():
    one, two = (Configuration(one_axis(size)) for size in (4, 8))
    drawn = {one: Drawn(1.1, 1.4, 1.4, 1.4), two: Drawn(1.2, 1.3, TimeLimitError("long"), 1.3)}
    search, entries = searched(DrawnJudge(drawn))
    assert (search.best.cost, entries[1].outcome) == (1.4, "left")
    assert search.is_cut_short
    assert min(entry.tried().lower_bound for entry in entries) == 1.3


def test_where_nothing_fits_each_configuration_is_searched_for_its_reason():
    told = InfeasibleError("no plan fits", least_memory_bytes=9.0, least_memory_bound=8.0)
    drawn = {Configuration(one_axis(), count): Drawn(1.0, inf, told) for count in (1, 2)}
    search, entries = searched(DrawnJudge(drawn))
    assert search.best is None
    assert [entry.outcome for entry in entries] == ["infeasible"] * 2
    assert {entry.error.least_memory_bound for entry in entries} == {8.0}


def test_what_is_proven_not_to_fit_is_not_searched_beside_a_plan():
    told = InfeasibleError("no plan fits")
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    judge = DrawnJudge({one: Drawn(1.0, inf, told), two: Drawn(1.0, 1.5, 1.5, 1.5)})
    search, entries = searched(judge)
    assert search.best.configuration == two
    assert entries[0].outcome == "infeasible"
    assert ("search", one) not in judge.asked


@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_plan_a_named_one_is_taken_before_anything_is_searched(workers):
    one = Configuration(one_axis())
    judge = DrawnJudge({one: Drawn(1.0, 1.0, 1.2)}, blocks=True, named=(one, 1.3))
    judge.drawn[one] = Drawn(1.0, 1.0, TimeLimitError("long"), 1.0, NotFoundError("none"))
    search, entries = searched(judge, workers)
    assert (search.best.cost, entries[0].found.plan) == (1.3, "named")
    judge = DrawnJudge({one: Drawn(1.0, 1.0, 1.2)}, named=(one, 1.3), seconds=9.0)
    search, _ = searched(judge, workers, seconds=0.0)
    assert search.best.cost == 1.3
    assert search.is_cut_short


def test_more_plans_than_the_best_one_are_found_where_they_are_asked_for():
    drawn = {
        Configuration(one_axis(), count): Drawn(1.0, 1.2 * cost, 1.2 * cost, cost)
        for count, cost in ((1, 1.0), (2, 1.3), (4, 1.2), (8, 2.0))
    }
    for plans, expected in ((1, {1}), (3, {1, 2, 4})):
        judge = DrawnJudge(drawn)
        where = judge, list(drawn), lambda _: FLOOR, Budget(1e3), 0.0
        entries = BestFirst(*where, plans=plans).run()
        assert {e.configuration.micro_batches for e in entries if e.found} >= expected
        assert any(e.outcome == "cut" for e in entries)


@pytest.mark.parametrize(("bound", "is_false"), [(1.0, False), (1.1, True)])
def test_a_bound_above_the_cost_of_a_plan_is_refused(bound, is_false):
    tried = (
        Tried(Configuration(one_axis()), "left", 0.5, "computation"),
        Tried(Configuration(one_axis(), 2), "compiled", bound, "blocks alone", 1.0),
    )
    if not is_false:
        check_bounds(tried)
        return
    with pytest.raises(PassError, match="2 micro-batches costs 1, the search said that each"):
        check_bounds(tried)


def test_one_of_each_number_of_stages_is_priced_first_then_what_is_near_the_least_estimate():
    counts = 1, 2, 4, 8, 16
    one_stage = [Configuration(one_axis(), count) for count in counts]
    pipelines = [Configuration(one_axis(4), count, 2, 1, "1f1b") for count in counts]
    drawn = {one: Drawn(1.0, 1.0 + number / 1e3, 3.0, 3.0) for number, one in enumerate(one_stage)}
    drawn |= {one: Drawn(1.0, 1.1, 2.0, 2.0) for one in pipelines}
    judge = DrawnJudge(drawn, seconds=1.0)
    searched(judge)
    priced = [one for question, one in judge.asked if question == "price"]
    assert set(priced[:2]) == {one_stage[0], pipelines[-1]}  # eight micro-batches for each group
    assert priced.index(pipelines[-2]) < priced.index(one_stage[3])


def test_one_of_each_number_of_stages_is_priced_before_any_plan():
    alone = Configuration(one_axis())
    staged = [Configuration(one_axis(4), 8 * n, n, 1, "1f1b") for n in (2, 4, 8, 16, 32, 64)]
    drawn = {one: Drawn(1.0, 1.1, 1.5, 1.5, 1.5) for one in (alone, *staged)}
    judge = DrawnJudge(drawn, blocks=True, is_large=True, seconds=1.0)
    searched(judge)
    assert judge.asked[:7] == [("price", one) for one in (alone, *staged)]


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_plan_that_takes_most_of_the_work_left_is_begun_where_there_is_no_other(is_alone):
    """Though it is expected to be the best: what is priced that long has no good estimate."""
    slow, quick = Configuration(one_axis()), Configuration(one_axis(4), 8, 2, 1, "1f1b")
    drawn = {slow: Drawn(1.0, 1.1, 3.0, 1.2, 3.0), quick: Drawn(1.0, 1.1, 2.0, 2.0, 2.0)}
    if is_alone:
        drawn[quick] = Drawn(1.0, inf, InfeasibleError("no plan fits"))
    judge = DrawnJudge(drawn, blocks=True, is_large=True, seconds=0.1, longer={slow: 5.0})
    search, _ = searched(judge, seconds=60.0)
    planned = [one for question, one in judge.asked if question == "plan"]
    assert planned == [slow if is_alone else quick]
    assert search.best.configuration == planned[0]


@pytest.mark.parametrize(("seconds", "is_planned"), [(30.0, True), (8.0, False)])
def test_no_plan_of_blocks_is_begun_that_takes_more_than_what_is_left(seconds, is_planned):
    one, two = (Configuration(one_axis(), count) for count in (1, 2))
    drawn = {c: Drawn(1.0, 1.0, 1.5, 1.2, 1.4) for c in (one, two)}
    judge = DrawnJudge(drawn, blocks=True, seconds=1.0, named=(one, 1.6))
    search, _ = searched(judge, seconds=seconds)
    assert ("plan" in {question for question, _ in judge.asked}) == is_planned
    assert search.best is not None


def meshes() -> tuple[DrawnJudge, list[Configuration]]:
    """Return a judge of a large program on a mesh and on two that divide its axis."""
    finer = [Mesh((MeshAxis("x", n, 0), MeshAxis("y", 8 // n, 0))) for n in (2, 4)]
    ones = [Configuration(one_axis()), *map(Configuration, finer)]
    drawn = {
        ones[0]: Drawn(1.0, 1.1, 1.2, 1.11, 1.2),
        ones[1]: Drawn(1.0, 1.08, 1.2, 1.09, 1.19),
        ones[2]: Drawn(1.0, 1.1, 1.2, 1.11, 1.2),
    }
    return DrawnJudge(drawn, blocks=True, is_large=True), ones


def test_of_finer_meshes_that_is_planned_whose_bound_is_lower() -> None:
    judge, (coarse, first, second) = meshes()
    search, _ = searched(judge)
    planned = [one for question, one in judge.asked if question == "plan"]
    assert planned == [coarse, first]
    assert ("price", second) in judge.asked
    assert search.best.configuration == first


def test_a_finer_mesh_is_not_planned_where_the_plan_on_the_other_is_slow() -> None:
    """Whatever its estimate: where memory is short, it does not tell how long gathers are."""
    mesh, finer = one_axis(), FINER
    one, two = Configuration(mesh), Configuration(mesh, 2)
    fine = Configuration(finer, 2)
    drawn = {
        one: Drawn(1.0, 1.05, 1.2, 1.1, 1.1),
        two: Drawn(1.0, 1.05, 1.3, 1.06, 1.3),
        fine: Drawn(1.0, 1.01, 1.3, 1.02, 1.3),
    }
    judge = DrawnJudge(drawn, blocks=True, is_large=True)
    searched(judge)
    assert ("plan", two) in judge.asked
    assert ("plan", fine) not in judge.asked


def test_bounds_are_not_raised_above_one_that_stays() -> None:
    """A pipeline of a bound of 1.01 is left, so no other bound closes the gap."""
    alone, kept = Configuration(one_axis()), Configuration(one_axis(4), 16, 2, 1, "1f1b")
    others = [Configuration(one_axis(4), count, 2, 1, "1f1b") for count in (8, 32, 64)]
    drawn = {alone: Drawn(1.0, 1.15, 1.2, 1.16, 1.2)}
    drawn |= {kept: Drawn(1.0, 1.01, 3.0, 3.0, 3.0)}
    drawn |= {one: Drawn(1.0, 1.1, 3.0, 3.0, 3.0) for one in others}
    judge = DrawnJudge(drawn, blocks=True, is_large=True, seconds=0.01)
    search, entries = searched(judge)
    asked = [question for question, _ in judge.asked]
    assert ("price", kept) in judge.asked
    assert "price" not in asked[asked.index("plan") :]
    assert {one for question, one in judge.asked if question == "price"} < {*drawn}
    assert not search.is_cut_short
    assert min(entry.tried().lower_bound for entry in entries) == 1.0


def test_plans_are_found_one_by_one_of_one_stage_first() -> None:
    """Each tells what the next must undercut, and estimates of pipelines know no memory."""
    alone, staged = Configuration(one_axis()), Configuration(one_axis(4), 8, 2, 1, "1f1b")
    drawn = {alone: Drawn(1.0, 1.1, 1.2, 1.2, 1.2), staged: Drawn(1.0, 1.1, 3.0, 1.15, 1.3)}
    drawn[Configuration(one_axis(), 2)] = Drawn(1.0, 1.1, 1.3, 1.21, 1.3)
    judge = DrawnJudge(drawn, blocks=True, is_large=True)
    searched(judge)
    assert [one for question, one in judge.asked if question == "plan"] == [alone, staged]


@pytest.mark.parametrize("told", [1.6, NotFasterError(1.5, 1.6)])
def test_estimates_of_pipelines_are_as_far_off_as_the_one_of_their_site_that_is_known(told):
    forms = (1, "1f1b"), (2, "interleaved"), (3, "interleaved")
    alone = Configuration(one_axis())
    first, near, low = (Configuration(one_axis(4), 8, 2, *form) for form in forms)
    other = Configuration(one_axis(4), 16, 2, 1, "1f1b")
    drawn = {
        alone: Drawn(1.0, 1.1, 1.5, 1.2, 1.5),
        first: Drawn(1.0, 1.1, 3.0, 1.3, told),
        near: Drawn(1.0, 1.1, 3.0, 1.4, 1.45),
        low: Drawn(1.0, 1.1, 3.0, 1.31, 1.45),
        other: Drawn(1.0, 1.1, 3.0, 1.4, 1.45),
    }
    judge = DrawnJudge(drawn, blocks=True, is_large=True)
    search, _ = searched(judge)
    assert [one for question, one in judge.asked if question == "plan"] == [alone, first, other]
    assert search.best.cost == 1.45


@pytest.mark.parametrize(("seconds", "is_raised"), [(6.0, False), (100.0, True)])
def test_bounds_are_not_raised_where_the_work_left_cannot_price_all_that_hold_the_least(
    seconds, is_raised
):
    alone = Configuration(one_axis())
    others = [Configuration(one_axis(4), 2**power, 2, 1, "1f1b") for power in range(1, 13)]
    drawn = {alone: Drawn(1.0, 1.2, 1.2, 1.2, 1.21)}
    drawn |= {one: Drawn(1.0, 1.15, 3.0, 3.0, 3.0) for one in others}
    judge = DrawnJudge(drawn, blocks=True, is_large=True, seconds=0.5)
    search, entries = searched(judge, seconds=seconds)
    assert not search.is_cut_short
    assert min(entry.tried().lower_bound for entry in entries) == (1.15 if is_raised else 1.0)
