"""The outer search against every configuration, with judges whose bounds and costs are drawn."""

import random
from dataclasses import dataclass, field
from math import inf

import pytest

from shardwright.compiler.outer.configuration import Configuration
from shardwright.compiler.outer.entries import BUILDING, NAMING, Bound, Entry, Found
from shardwright.compiler.outer.named_family import NamedSeed
from shardwright.compiler.outer.search import OuterSearch
from shardwright.compiler.outer.seeds import NamedSeeds
from shardwright.ir.errors import (
    InfeasibleError,
    ModelError,
    NotFoundError,
    OptionError,
    ShardwrightError,
    StrategyError,
    TimeLimitError,
)
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.search.named_plan import NamedPlan
from shardwright.solver.work import Budget
from tests.extent import first

FLOOR = 1.0


@dataclass(frozen=True)
class Drawn:
    """A configuration's bounds, tier by tier, and its cost or error."""

    bounds: tuple[float, ...]
    answer: float | ShardwrightError


@dataclass
class DrawnJudge:
    drawn: dict[Configuration, Drawn]
    tiers: tuple[str, ...] = ("free", "within")
    prices_blocks: bool = False
    names_plans: bool = False
    asked: list[tuple[Configuration, int]] = field(default_factory=list)
    seconds: float = 0.0
    compile_seconds: float = 0.0
    late: str = ""

    def bound(self, configuration, tier, budget):
        self.asked.append((configuration, tier))
        budget.charge(self.seconds)
        bound = self.drawn[configuration].bounds[tier]
        if bound == inf:
            raise InfeasibleError("no plan fits", least_memory_bytes=2.0, least_memory_bound=1.0)
        return Bound(bound, is_cut_short=self.late == "bound")

    def compile(self, configuration, budget):
        self.asked.append((configuration, len(self.tiers)))
        budget.charge(self.compile_seconds)
        drawn = self.drawn[configuration]
        if isinstance(drawn.answer, ShardwrightError):
            raise drawn.answer
        late = self.late == "plan"
        return Found(drawn.answer, (FLOOR, *drawn.bounds)[-1], 1.0, str(configuration), late)

    def holds_for(self, bounded, other):
        return bounded.divides(other)


def candidates(shapes: int, counts: int) -> list[Configuration]:
    meshes = [Mesh((MeshAxis("x", 2**i, 0),)) for i in range(shapes)]
    return [Configuration(mesh, 2**j) for j in range(counts) for mesh in meshes]


def drawn_judge(seed: int) -> DrawnJudge:
    """Return a judge whose bounds are true, and whose first ones rise with the micro-batches."""
    draw = random.Random(seed)
    drawn: dict[Configuration, Drawn] = {}
    for configuration in candidates(draw.randint(1, 4), draw.randint(1, 4)):
        before = [d.bounds[0] for c, d in drawn.items() if c.divides(configuration)]
        free = max([draw.uniform(FLOOR, 2.0), *before])
        within = draw.choice([free, draw.uniform(free, 3.0), inf])
        cost = draw.choice([within, within * draw.uniform(1.0, 1.5)])
        answer: float | ShardwrightError = cost
        if within == inf:
            answer = InfeasibleError("no plan fits")
        elif draw.random() < 0.2:
            answer = draw.choice([NotFoundError("none found"), StrategyError("no such split")])
        drawn[configuration] = Drawn((free, within), answer)
    return DrawnJudge(drawn)


def searched(judge: DrawnJudge, workers: int = 1, gap: float = 0.0, seconds: float = 60.0):
    budget = Budget(seconds)
    search = OuterSearch(judge, list(judge.drawn), lambda _: FLOOR, budget, gap, workers)
    return search, search.run()


@pytest.mark.parametrize("seed", range(60))
def test_the_best_of_all_configurations_is_found_and_the_bound_is_below_it(seed):
    judge = drawn_judge(seed)
    search, entries = searched(judge)
    costs = [d.answer for d in judge.drawn.values() if isinstance(d.answer, float)]
    if not costs:
        assert search.best is None
        return
    assert search.best.found.cost == min(costs)
    bound = min(entry.tried().lower_bound for entry in entries)
    assert bound <= min(costs)
    left_out = [d.bounds[1] for d in judge.drawn.values() if isinstance(d.answer, NotFoundError)]
    assert bound >= min([*costs, *left_out, *(d.bounds[1] for d in judge.drawn.values())])
    for entry in entries:
        assert entry.bound <= judge.drawn[entry.configuration].bounds[-1]


@pytest.mark.parametrize("seed", range(8))
def test_the_account_does_not_depend_on_the_number_of_processes(seed):
    def account(workers):
        _, entries = searched(drawn_judge(seed), workers)
        return [(e.outcome, e.bound, e.proof, e.tier, str(e.error)) for e in entries]

    assert account(1) == account(2) == account(3)


def test_a_configuration_whose_bound_exceeds_a_plan_is_not_judged_further():
    one, two = candidates(2, 1)
    judge = DrawnJudge({one: Drawn((1.0, 1.1), 1.2), two: Drawn((1.5, 1.6), 1.7)})
    search, entries = searched(judge)
    assert search.best.configuration == one
    assert (two, 2) not in judge.asked
    assert [entry.outcome for entry in entries] == ["compiled", "cut"]


def test_a_bound_holds_for_more_micro_batches():
    one, two = candidates(1, 2)
    judge = DrawnJudge({one: Drawn((1.2, 1.2), 1.2), two: Drawn((1.2, 1.2), 1.2)})
    _, entries = searched(judge)
    assert entries[1].outcome == "cut"
    assert entries[1].proof == "free, of mesh 1, one micro-batch"
    assert (two, 2) not in judge.asked


MERGED = Mesh((MeshAxis("x", 8, 0),))
FINER = Mesh((MeshAxis("x", 2, 0), MeshAxis("y", 4, 0)))


@pytest.mark.parametrize(("bound", "is_compiled"), [(1.19, False), (1.1, True)])
def test_a_plan_near_its_bound_is_that_of_the_meshes_that_merge_axes(bound, is_compiled):
    finer, merged = Configuration(FINER, 1), Configuration(MERGED, 1)
    further = Configuration(MERGED, 2)
    judge = DrawnJudge({one: Drawn((1.0, bound), 1.2) for one in (finer, merged, further)})
    budget = Budget(60)
    search = OuterSearch(judge, list(judge.drawn), lambda _: FLOOR, budget, 0.0, seed=finer)
    entries = search.run()
    assert ((merged, 2) in judge.asked) == is_compiled
    assert (further, 2) in judge.asked  # micro-batches take less memory
    assert all(entry.tried().lower_bound == bound for entry in entries)
    assert search.best.configuration == finer


@pytest.mark.parametrize("workers", [1, 2])
def test_where_the_budget_is_spent_plans_under_way_are_waited_for(workers):
    one, two = candidates(2, 1)
    judge = DrawnJudge({one: Drawn((), 1.3), two: Drawn((), 1.2)}, tiers=(), compile_seconds=7.0)
    search, _ = searched(judge, workers, seconds=0.5)
    assert search.is_cut_short
    assert search.best.found.cost == 1.2


def test_the_gap_is_the_users():
    one, two = candidates(2, 1)
    judge = DrawnJudge({one: Drawn((1.0, 1.0), 1.0), two: Drawn((0.96, 0.96), 0.97)})
    judge.drawn[two] = Drawn((1.0 - 1e-6, 1.0 - 1e-6), 1.0 - 1e-6)
    exact, _ = searched(judge)
    assert exact.best.configuration == two
    rough, entries = searched(judge, gap=0.1)
    assert rough.best.found.cost <= min(e.tried().lower_bound for e in entries) / 0.9


def test_errors_that_are_not_about_a_configuration_are_raised():
    (one,) = candidates(1, 1)
    for error in (ModelError("the input is not divisible"), OptionError("wrong")):
        for workers in (1, 2):
            with pytest.raises(type(error), match=error.what):
                searched(DrawnJudge({one: Drawn((1.0, 1.0), error)}), workers)


def test_options_that_refuse_more_micro_batches_leave_one():
    one, two = candidates(1, 2)
    drawn = {one: Drawn((1.0, 1.0), 1.5), two: Drawn((1.0, 1.0), OptionError("indivisible"))}
    search, entries = searched(DrawnJudge(drawn))
    assert search.best.configuration == one
    assert (entries[1].outcome, entries[1].tried().lower_bound) == ("refused", inf)


def test_what_the_budget_leaves_keeps_the_bound_honest():
    one, two = candidates(2, 1)
    drawn = {one: Drawn((1.1, 1.4), 1.4), two: Drawn((1.2, 1.3), TimeLimitError("too long"))}
    search, entries = searched(DrawnJudge(drawn))
    assert search.best.found.cost == 1.4
    assert entries[1].outcome == "left"
    assert search.is_cut_short
    assert min(entry.tried().lower_bound for entry in entries) == 1.3


@pytest.mark.parametrize("late", ["", "bound", "plan"])
def test_where_the_budget_ends_the_search_of_a_configuration_it_is_said(late):
    (one,) = candidates(1, 1)
    search, _ = searched(DrawnJudge({one: Drawn((1.1, 1.4), 1.4)}, late=late))
    assert search.is_cut_short == bool(late)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_search_ends_when_its_budget_is_spent(workers):
    judge = drawn_judge(3)
    judge.seconds = 5.0
    search, entries = searched(judge, workers, seconds=10.0)
    assert search.is_cut_short
    assert 10.0 <= search.budget.spent <= 15.0
    assert any(entry.outcome is None for entry in entries)
    assert all(entry.tried().lower_bound >= FLOOR for entry in entries)


def test_where_nothing_fits_each_configuration_is_compiled_for_its_reason():
    told = InfeasibleError("no plan fits", least_memory_bytes=9.0, least_memory_bound=8.0)
    drawn = {one: Drawn((1.0, inf), told) for one in candidates(2, 1)}
    search, entries = searched(DrawnJudge(drawn))
    assert search.best is None
    assert [entry.outcome for entry in entries] == ["infeasible"] * 2
    assert {entry.error.least_memory_bound for entry in entries} == {8.0}


# Configurations that are priced with others


@dataclass
class DrawnPrices:
    judge: "PricedJudge"
    own: Configuration
    known: dict[object, object] = field(default_factory=dict)

    def bound(self, other):
        is_known = (other.mesh, other.micro_batches) == (self.own.mesh, self.own.micro_batches)
        return self.judge.drawn[other].bounds[0] if is_known else 0.0

    def estimate(self, other):
        return self.judge.estimates[other]

    def is_short_of_memory(self, other):
        return other.micro_batches % 2 == 0


@dataclass
class PricedJudge(DrawnJudge):
    """A judge whose estimates may be wrong, and whose drafts may be slow."""

    prices_blocks: bool = True
    plans_blocks: bool = True
    estimates: dict[Configuration, float] = field(default_factory=dict)
    drafted: list[Configuration] = field(default_factory=list)
    undrafted: set[Configuration] = field(default_factory=set)
    seeds: list[tuple[NamedSeed, float]] = field(default_factory=list)  # with their costs
    built: list[NamedPlan] = field(default_factory=list)
    naming_seconds: float = 0.0

    def named_seeds(self, configurations, budget):
        budget.charge(self.naming_seconds)
        return [seed for seed, _ in self.seeds]

    def build(self, plan, configuration, budget):
        self.built.append(plan)
        cost = next(c for seed, c in self.seeds if seed.plan == plan)
        if cost == inf:
            raise InfeasibleError("it does not fit")
        return Found(cost, 0.0, 1.0, str(plan))

    def price(self, configuration, budget, below, known):
        return DrawnPrices(self, configuration)

    def draft(self, configuration, budget, below):
        self.drafted.append(configuration)
        answer = self.drawn[configuration].answer
        if configuration in self.undrafted:
            raise NotFoundError("no draft fits")
        if isinstance(answer, ShardwrightError):
            raise answer
        is_all = configuration.stages == 1 and configuration.micro_batches % 2 == 0
        return Found(answer * (1.0 if is_all else 1.1), 0.0, 1.0, f"draft of {configuration}")


def priced_judge(seed: int) -> PricedJudge:
    draw = random.Random(seed)
    drawn: dict[Configuration, Drawn] = {}
    judge = PricedJudge(drawn)
    for stages in (1, 2, 4):
        mesh = Mesh((MeshAxis("x", 8 // stages, 0),))
        forms = ((1, "1f1b"), (2, "interleaved")) if stages > 1 else ((1, None),)
        for count, (chunks, schedule) in ((c, form) for c in (4, 8) for form in forms):
            one = Configuration(mesh, count, stages, chunks, schedule)
            before = [d.bounds[0] for c, d in drawn.items() if c.divides(one)]
            free = max([draw.uniform(FLOOR, 2.0), *before])
            within = draw.choice([free, draw.uniform(free, 3.0)])
            answer: float | ShardwrightError = within * draw.uniform(1.0, 1.5)
            if draw.random() < 0.2:
                answer = draw.choice([NotFoundError("none found"), StrategyError("no such split")])
            drawn[one] = Drawn((free, within), answer)
            judge.estimates[one] = draw.uniform(1.0, 3.0)
    return judge


@pytest.mark.parametrize("seed", range(60))
def test_wrong_estimates_and_slow_drafts_cost_time_and_nothing_else(seed):
    judge = priced_judge(seed)
    judge.plans_blocks = bool(seed % 3)
    search, entries = searched(judge)
    costs = [d.answer for d in judge.drawn.values() if isinstance(d.answer, float)]
    if not costs:
        assert search.best is None
        return
    assert search.best.found.cost == min(costs)
    bound = min(entry.tried().lower_bound for entry in entries)
    assert bound <= min(costs)
    for entry in entries:
        assert entry.bound <= judge.drawn[entry.configuration].bounds[-1]
        assert (entry.found is None) <= (entry.outcome != "compiled")


@pytest.mark.parametrize("seed", range(6))
def test_with_prices_the_account_does_not_depend_on_the_number_of_processes(seed):
    def account(workers):
        _, entries = searched(priced_judge(seed), workers)
        return [(e.outcome, e.bound, e.proof, e.found and e.found.cost) for e in entries]

    assert account(1) == account(2) == account(3)


# Named plans that are built early


def seeded(judge: PricedJudge, *estimates_and_costs: tuple[float, float]) -> PricedJudge:
    """Give a judge named plans of its configurations, in turn."""
    judge.names_plans = True
    for number, (estimate, cost) in enumerate(estimates_and_costs):
        one = list(judge.drawn)[number % len(judge.drawn)]
        plan = NamedPlan(tensor=2 ** (number + 1))
        judge.seeds.append((NamedSeed(plan, one, estimate), cost))
    return judge


def test_the_named_plan_of_the_least_estimate_is_built_first_and_cuts():
    mesh = Mesh((MeshAxis("x", 4, 0),))
    one, two = (Configuration(mesh, count, 2, 1, "1f1b") for count in (4, 8))
    drawn = {one: Drawn((1.3, 1.3), 1.5), two: Drawn((1.4, 1.4), 1.45)}
    judge = PricedJudge(drawn, estimates={one: 1.6, two: 1.7})
    search, entries = searched(seeded(judge, (1.2, 1.25), (1.3, 1.2)))
    assert judge.built == [NamedPlan(tensor=2)]  # the other one is expected to be slower
    assert search.best.found.cost == 1.25
    assert [entry.outcome for entry in entries] == ["compiled", "cut"]
    assert not judge.drafted


def test_where_a_named_plan_does_not_fit_the_next_one_is_built():
    mesh = Mesh((MeshAxis("x", 4, 0),))
    one, two = (Configuration(mesh, count, 2, 1, "1f1b") for count in (4, 8))
    drawn = {one: Drawn((1.3, 1.3), NotFoundError("none")), two: Drawn((1.4, 1.4), 1.45)}
    judge = PricedJudge(drawn, estimates={one: 1.6, two: 1.7})
    search, entries = searched(seeded(judge, (1.2, inf), (1.3, 1.42)))
    assert judge.built == [NamedPlan(tensor=2), NamedPlan(tensor=4)]
    assert search.best.found.cost == 1.42
    assert entries[0].tried().outcome != "infeasible"


def test_a_named_plan_is_built_before_all_that_was_to_be_priced():
    judge, order = priced_judge(2), []
    for asked in ("build", "price"):
        answer = getattr(judge, asked)

        def noted(*arguments, asked=asked, answer=answer):
            order.append(asked)
            return answer(*arguments)

        setattr(judge, asked, noted)
    searched(seeded(judge, (1.0, 1.3), (1.4, 1.4)))
    assert order[:2] == ["build", "price"]


def test_without_a_plan_a_named_one_is_built_beside_the_search_of_its_configuration():
    (one,) = candidates(1, 1)
    entry = Entry(one, 1.0, "computation", is_running=True, asked=2)  # which is being compiled
    for best, tier in ((None, BUILDING), (entry, None)):
        seeds = NamedSeeds([entry])
        assert seeds.next(best).tier == NAMING
        seeds.take([NamedSeed(NamedPlan(tensor=2), one, 1.0)])
        chosen = seeds.next(best)
        assert (chosen and chosen.tier) == tier


@pytest.mark.parametrize("workers", [1, 2])
def test_where_naming_takes_all_the_time_the_first_plan_that_fits_is_built(workers):
    judge = seeded(priced_judge(2), (1.0, inf), (1.1, 1.3), (1.2, 1.2))
    judge.naming_seconds = 0.4
    search, _ = searched(judge, workers, seconds=0.2)
    assert search.is_cut_short
    assert search.best.found.cost == 1.3


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("prices", [True, False])
def test_a_named_plan_is_waited_for_as_long_as_it_takes(workers, prices):
    failing = [(1.0 + number / 100, inf) for number in range(7)]
    judge = seeded(priced_judge(2), *failing, (1.1, 1.3), (1.2, 1.2))
    judge.prices_blocks, judge.naming_seconds = prices, 0.6
    judge.bound = judge.compile = judge.draft = late
    found, _ = searched(judge, workers, seconds=0.1)
    assert found.is_cut_short
    assert found.best.found.cost == 1.3


def late(*_):
    raise TimeLimitError("it takes more than its budget")


def test_a_named_plan_is_built_where_no_configuration_finds_one():
    one, two = candidates(2, 1)
    errors = NotFoundError("none found"), InfeasibleError("no plan fits")
    drawn = {c: Drawn((1.0, 1.0), error) for c, error in zip((one, two), errors, strict=True)}
    judge = seeded(PricedJudge(drawn, prices_blocks=False), (1.1, 1.3))
    found, entries = searched(judge)
    assert found.best.found.cost == 1.3
    assert [entry.outcome for entry in entries] == ["compiled", "infeasible"]
    judge = seeded(PricedJudge({two: drawn[two]}, prices_blocks=False), (1.1, 1.3))
    found, _ = searched(judge)
    assert found.best is None
    assert not judge.built  # it is proven that it does not fit


@pytest.mark.parametrize("seed", first(15, range(30)))
def test_named_plans_change_the_answer_only_where_they_are_better(seed):
    def found(workers, named):
        judge, draw = priced_judge(seed), random.Random(1000 + seed)
        if named:
            seeded(judge, *((draw.uniform(1, 2), draw.uniform(1, 3)) for _ in range(3)))
            judge.seeds.sort(key=lambda pair: pair[0].seconds)
        search, entries = searched(judge, workers)
        costs = [cost for seed, cost in judge.seeds if seed.plan in judge.built]
        for entry in entries:
            assert entry.bound <= judge.drawn[entry.configuration].bounds[-1]
        return search.best and search.best.found.cost, costs, entries

    plain, _, _ = found(1, named=False)
    best, costs, entries = found(1, named=True)
    assert costs
    assert best == min([*costs, *([] if plain is None else [plain])])
    account = [(e.outcome, e.bound, e.proof, e.found and e.found.cost) for e in entries]
    _, _, others = found(2, named=True)
    assert account == [(e.outcome, e.bound, e.proof, e.found and e.found.cost) for e in others]


@pytest.mark.parametrize("plans_blocks", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 2])  # of two, memory is short
def test_one_stage_of_the_least_estimate_is_planned_before_pipelines(micro_batches, plans_blocks):
    one = Configuration(Mesh((MeshAxis("x", 8, 0),)), micro_batches)
    two = Configuration(Mesh((MeshAxis("x", 4, 0),)), 8, 2, 1, "1f1b")
    drawn = {one: Drawn((1.0, 1.0), 1.4), two: Drawn((1.0, 1.0), 2.0)}
    judge = PricedJudge(drawn, estimates={one: 1.5, two: 1.6})
    judge.plans_blocks = plans_blocks
    search, _ = searched(judge)
    assert judge.drafted == [one] * plans_blocks  # else it is searched as one
    assert (search.best.configuration, search.best.found.cost) == (one, 1.4)


def test_one_stage_without_a_draft_is_compiled_before_the_rest_is_priced():
    one = Configuration(Mesh((MeshAxis("x", 8, 0),)), 2)
    two = Configuration(Mesh((MeshAxis("x", 4, 0),)), 8, 2, 1, "1f1b")
    drawn = {one: Drawn((1.0, 1.0), 1.4), two: Drawn((1.0, 1.0), 2.0)}
    judge = PricedJudge(drawn, estimates={one: 1.5, two: 1.6})
    judge.undrafted = {one}
    search, entries = searched(judge)
    assert judge.drafted == [one]  # then it is compiled, and cheaper than the other's estimate
    assert (search.best.found.cost, {entry.outcome for entry in entries}) == (1.4, {"compiled"})
