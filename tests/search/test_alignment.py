"""Choosing options that fit together, also for wide graphs and within little time."""

from itertools import pairwise

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.profile import UpdateRule
from shardwright.cost_model.redistribution.layout_graph import (
    axis_permutations,
    few_axis_permutations,
)
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.options import SearchOptions
from shardwright.search.solving import solve_space
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry import alignment, orbit_search
from shardwright.search.symmetry.alignment import align
from shardwright.search.symmetry.orbit_search import search_orbits
from shardwright.search.symmetry.orbits import orbit_space
from shardwright.solver.work import Budget
from tests.random_graphs import random_graph

POD = cluster("h100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2)))


def recurrent(steps: int, batch: int = 512, width: int = 4096) -> Graph:
    """Return an unrolled network with gates, whose steps share their weights."""
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (batch, steps, width))))
    state = build.input(Value("state", TensorType("float32", (batch, width))))
    weights = {
        name: build.parameter(
            Value(name, TensorType("float32", (width, width))), {"initializer": "normal(0.1)"}
        )
        for name in ("wz", "wh", "uz", "uh")
    }
    states = []
    for step in range(steps):
        part = build.emit("slice", x, begin=(0, step, 0), size=(batch, 1, width))
        now = build.emit("reshape", part, shape=(batch, width))
        gates = [
            build.emit(
                "add",
                build.emit("matmul", now, weights[f"w{gate}"]),
                build.emit("matmul", state, weights[f"u{gate}"]),
            )
            for gate in "zh"
        ]
        z, new = build.emit("sigmoid", gates[0]), build.emit("tanh", gates[1])
        kept = build.emit("mul", build.emit("sub", build.emit("ones_like", z), z), new)
        state = build.emit("add", kept, build.emit("mul", z, state))
        states.append(state)
    stacked = build.emit("stack", *states, axis=1)
    loss = build.emit("reduce_mean", build.emit("mul", stacked, stacked))
    return build.graph("recurrent", (loss.name,))


def space_of(graph: Graph) -> tuple[SearchSpace, RedistributionPlanner]:
    """Return a space of orbits."""
    profile = TimeProfile(MESH, POD, UpdateRule(Optimizer("sgd", {})), by_orbit=True)
    return build_search_space(graph, profile), profile.planner


@pytest.mark.long
def test_wide_graphs_are_aligned_without_large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where elimination is too wide, choices are joined; the plan costs what is said."""
    monkeypatch.setattr(alignment, "_LARGEST_MESSAGE", 6)
    joined = []

    def noted(*arguments: object) -> list[int]:
        joined.append(len(arguments[0]))  # type: ignore[arg-type]
        return alignment_join(*arguments)  # type: ignore[arg-type]

    alignment_join = alignment.join
    monkeypatch.setattr(alignment, "join", noted)
    compiled = compile_graph(
        recurrent(3), POD, 8, CompileOptions(gap=0.2, objective="serial"), MESH
    )
    assert joined
    assert compiled.result is not None
    emitted = program_seconds(compiled.passes.after("clean_up"), POD)
    assert emitted == pytest.approx(compiled.result.cost, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_options_that_fit_as_they_are_are_the_choice_of_the_elimination(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space, _ = space_of(random_graph(seed, nodes=5))
    assignment = solve_space(space, SearchOptions()).assignment
    found = align(space, assignment)
    monkeypatch.setattr(alignment._Aligner, "_fit_as_they_are", lambda *_: False)
    assert align(space, assignment) == found


@pytest.mark.parametrize("seed", range(8))
def test_no_budget_is_needed_for_an_alignment(seed: int) -> None:
    """Without a budget choices are joined; the alignment penalties are honest, and mostly none."""
    space, _ = space_of(random_graph(seed, nodes=5))
    assignment = solve_space(space, SearchOptions()).assignment
    best, quick = align(space, assignment), align(space, assignment, budget=Budget(0))
    assert quick.alignment_penalty >= best.alignment_penalty - 1e-15
    assert quick.decisions.strategies.keys() == best.decisions.strategies.keys()


@pytest.mark.long
def test_whole_tensors_need_no_alignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables in which every permutation fits are left out."""
    seen: list[int] = []
    best = alignment._Aligner._best

    def noted(self: object, costs: list[object], tables: object) -> object:
        seen.append(len(costs))
        return best(self, costs, tables)  # type: ignore[arg-type]

    space, _ = space_of(recurrent(4, batch=2, width=2))
    assignment = solve_space(space, SearchOptions()).assignment
    unpermuted = align(space, assignment)
    monkeypatch.setattr(alignment._Aligner, "_best", noted)
    monkeypatch.setattr(alignment._Aligner, "_fit_as_they_are", lambda *_: False)
    assert align(space, assignment) == unpermuted
    assert seen == [0]


def test_a_search_of_orbits_hands_down_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage charges a second, and each has less than the one before."""
    left: list[float] = []

    def charged(name: str) -> None:
        real = getattr(orbit_search, name)

        def stage(*arguments: object) -> object:
            last = arguments[-1]
            budget = last.budget if isinstance(last, SearchOptions) else last
            assert isinstance(budget, Budget)
            left.append(budget.left)
            budget.charge(1.0)
            return real(*arguments)

        monkeypatch.setattr(orbit_search, name, stage)

    for name in ("solve_space", "align", "orbit_space"):
        charged(name)
    space, planner = space_of(random_graph(3, nodes=5))
    search_orbits(space, planner, SearchOptions(budget=Budget(100.0)))
    assert left[0] == 100.0
    assert left == sorted(left, reverse=True)
    assert len(left) == len(set(left)) >= 2


def test_elements_are_given_up_when_the_budget_is_spent() -> None:
    space, planner = space_of(random_graph(0, nodes=4))
    orbits = [np.arange(size) for size in space.problem.sizes]
    assert orbit_space(space, orbits, planner, Budget(0)) is None
    assert orbit_space(space, orbits, planner) is not None


def test_building_the_problem_ends_at_any_edge() -> None:
    """The budget is spent after the last operator; the edges are not all priced."""
    profile = TimeProfile(MESH, POD, UpdateRule(Optimizer("sgd", {})), by_orbit=True)
    graph, whole = random_graph(1, nodes=5), Budget()
    build_search_space(graph, profile, budget=whole)
    for share in (0.3, 0.6, 0.9, 0.99):
        with pytest.raises(StrategyError, match="building the search takes more than"):
            build_search_space(graph, profile, budget=Budget(share * whole.spent))
    assert build_search_space(graph, profile, budget=Budget(1.01 * whole.spent))


def test_of_many_equal_axes_some_are_permuted() -> None:
    few = Mesh(tuple(MeshAxis(name, 2) for name in "abcdef"))
    assert tuple(few_axis_permutations(few)) == tuple(axis_permutations(few))
    many = Mesh((*(MeshAxis(name, 2) for name in "abcdefgh"), MeshAxis("i", 4), MeshAxis("j", 4)))
    permutations = [tuple(p[name] for name in many.names) for p in few_axis_permutations(many)]
    assert len(permutations) == len(set(permutations)) == 240
    assert permutations[0] == many.names
    assert all(permutation[5:8] == ("f", "g", "h") for permutation in permutations)
    places = [tuple(map(many.names.index, p)) for p in permutations[1:240:31]]
    for one, other in pairwise(places):  # closed: they are a group
        assert tuple(many.names[one[i]] for i in other) in permutations
