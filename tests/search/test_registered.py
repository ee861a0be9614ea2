"""Searches and cost profiles from outside the package, by the options of every compilation."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost_model.profiles import PROFILES, register_profile
from shardwright.cost_model.program_profile import Floats, ProgramProfile
from shardwright.cost_model.roofline import operator_seconds
from shardwright.ir.errors import OptionError, PassError, ShardwrightError
from shardwright.ir.layout import Layout, Strategy
from shardwright.operators.info import OperatorInfo
from shardwright.search import (
    SEARCHES,
    Heuristic,
    SearchMethod,
    SearchOptions,
    SearchResult,
    complete,
    register_search,
)
from shardwright.search.space.space import SearchSpace

DOLLARS_PER_SECOND = 4.0 / 3600
DOLLARS_PER_BYTE = 2e-11
MODEL = "mlp:batch=64,inputs=64,hidden=128"


class Money(ProgramProfile):
    """Dollars of a step: the time of every device, and every byte on a link."""

    name = "money"

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        seconds = operator_seconds(info, operands, results, self.mesh, self.cluster)
        return self.mesh.size * seconds * DOLLARS_PER_SECOND

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        return self.mesh.size * local_bytes * DOLLARS_PER_BYTE


class Replicated(Heuristic):
    """Every rank does all the work."""

    name = "replicated"

    def assignment(self, space: SearchSpace) -> Sequence[int]:
        return complete(space, {node.name: Strategy() for node in space.graph.nodes})


@pytest.fixture
def registered() -> Iterator[None]:
    register_profile(Money)
    register_search(Replicated)
    yield
    for registry in (PROFILES, SEARCHES):
        for items in (registry._items, registry._origins):
            items.pop("money", None)
            items.pop("replicated", None)


@pytest.mark.parametrize("search", ["exact", "dynamic_programming", "data_parallel"])
def test_a_profile_that_minimises_money(registered: None, search: str) -> None:
    plan = sw.compile(
        MODEL, 8, cluster="h100-pod:figures=datasheet", cost_model="money", search=search
    ).plan
    assert plan.document.cost_model == "money"
    if search == "exact":
        assert plan.document.gap <= 1e-3
        dearer = sw.compile(
            MODEL,
            8,
            cluster="h100-pod:figures=datasheet",
            cost_model="money",
            search="data_parallel",
        )
        assert plan.document.objective <= dearer.plan.document.objective
    assert sw.verify(plan).equal


def test_money_is_not_time(registered: None) -> None:
    """Bytes are dear where links are cheap: the plan that costs least is not the fastest."""
    money = sw.compile(MODEL, 8, cluster="cpu", cost_model="money").plan
    time = sw.compile(MODEL, 8, cluster="cpu").plan
    assert money.program != time.program


def test_a_search_from_outside(registered: None) -> None:
    plan = sw.compile(MODEL, 4, cluster="cpu", search="replicated").plan
    assert plan.document.search == "replicated"
    assert plan.document.how == "replicated"
    assert not plan.document.communication
    assert sw.verify(plan).equal


def test_wrong_names_list_the_registered_ones() -> None:
    with pytest.raises(OptionError) as error:
        sw.compile("mlp", 2, search="magic")
    assert str(error.value) == (
        "`search` is `magic`, expected exact, dynamic_programming, recursive_programming, "
        "sharding_propagation, data_parallel, tensor_parallel or fully_sharded"
    )
    with pytest.raises(OptionError) as error:
        sw.compile("mlp", 2, cost_model="magic")
    assert str(error.value) == "`cost_model` is `magic`, expected time or mindspore"


def test_edges_of_orbits_are_bounds_for_any_profile(registered: None) -> None:
    result = sw.compile(MODEL, 8, mesh="2x2x2", cluster="cpu", cost_model="money", gap=0.0)
    document = result.plan.document
    assert document.lower_bound <= document.objective * (1 + 1e-9)
    assert np.isfinite(document.objective)


def profile_of(computing: object, moving: object) -> type[ProgramProfile]:
    """Return a profile whose two methods return what they are given."""

    class Wrong(ProgramProfile):
        name = "wrong"

        def operator_cost(self, info: object, operands: object, results: object) -> float:
            return computing  # type: ignore[return-value]

        def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
            return moving(local_bytes) if callable(moving) else moving  # type: ignore[return-value]

    return Wrong


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(
    ("computing", "moving", "message"),
    [
        (-1.0, np.copy, "gives `matmul` the cost -1.0, expected a finite number of at least 0"),
        (float("nan"), np.copy, "gives `matmul` the cost nan, expected a finite number"),
        ("3", np.copy, "gives `matmul` the cost '3', expected a finite number"),
        (None, np.copy, "gives `matmul` the cost None, expected a finite number"),
        (1.0, np.negative, "gives `local_slice` the cost -"),
        (1.0, lambda sizes: sizes * np.nan, "gives `local_slice` the cost nan"),
        (1.0, 3.0, "gives `local_slice` costs of shape () and type float64, expected numbers of"),
    ],
)
def test_costs_on_which_no_bound_can_stand(computing: object, moving: object, message: str) -> None:
    register_profile(profile_of(computing, moving))
    with pytest.raises(PassError) as error:
        sw.compile("mlp:batch=8,inputs=12,hidden=16", 4, mesh="2x2", cost_model="wrong")
    assert message in str(error.value)


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (None, "the search `wrong` returns None, expected the position of an option for every"),
        ([0.5], "the search `wrong` returns [0.5], expected the position of an option"),
        ([0], "the assignment has 1 entries, expected "),
    ],
)
def test_assignments_that_are_none(assignment: object, message: str) -> None:
    class Wrong(Heuristic):
        name = "wrong"

        def assignment(self, space: SearchSpace) -> Sequence[int]:
            return assignment  # type: ignore[return-value]

    register_search(Wrong)
    with pytest.raises(ShardwrightError) as error:
        sw.compile(MODEL, 4, search="wrong")
    assert message in str(error.value)


@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lower_bound": 1e9}, "returns the lower bound 1e+09 for a plan of cost "),
        ({"lower_bound": -1.0}, "returns the lower bound -1 for a plan of cost "),
        ({"lower_bound": 0.0, "status": "optimal"}, "returns the status `optimal` with the gap "),
        ({"status": "best"}, "returns the status `best` with the gap "),
    ],
)
def test_answers_that_contradict_themselves(changes: dict[str, object], message: str) -> None:
    class Wrong(SearchMethod):
        name = "wrong"

        def find(self, space: SearchSpace, options: SearchOptions) -> SearchResult:
            return replace(SEARCHES["exact"]().find(space, options), **changes)  # type: ignore[arg-type]

    register_search(Wrong)
    with pytest.raises(PassError) as error:
        sw.compile(MODEL, 4, search="wrong")
    assert message in str(error.value)


@pytest.mark.parametrize("search", ["data_parallel", "fully_sharded"])
def test_a_batch_that_is_not_split_over_all_ranks_is_told(search):
    options = {"cluster": "cpu", "search": search}
    whole, parts = (sw.compile(f"mlp:batch={n}", 6, **options) for n in (12, 32))
    assert whole.plan.document.how == search
    said = f"{search}, the batch is split over 2 of 6 ranks: no other axis divides it"
    assert parts.plan.document.how == said
