"""A search of orbits finds the plan that a search of all options finds, and bounds every plan."""

from itertools import pairwise

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.profile import UpdateRule
from shardwright.cost_model.redistribution.planner import RedistributionPlanner
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.errors import InfeasibleError
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.driver import search
from shardwright.search.options import SearchOptions
from shardwright.search.solving import solve_space
from shardwright.search.space.builder import build_search_space
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.orbits import orbit_space
from tests.extent import ANY_PLAN, first
from tests.random_graphs import multilayer_perceptron, random_graph

POD = cluster("h100-pod:figures=datasheet")
LEVEL = Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2)))
FINE = Mesh(tuple(MeshAxis(name, 2, int(name < "c")) for name in "abcde"))
RULE = UpdateRule(Optimizer("sgd", {}))


def spaces(graph: Graph, mesh: Mesh) -> tuple[SearchSpace, SearchSpace, RedistributionPlanner]:
    """Return the space of orbits, that of all options, and the planner of both."""
    by_orbit, each = (TimeProfile(mesh, POD, RULE, by_orbit=c) for c in (True, False))
    return build_search_space(graph, by_orbit), build_search_space(graph, each), each.planner


@pytest.mark.parametrize("seed", first(12, range(20)))
def test_orbits_bound_all_plans_and_elements_reach_the_best(seed: int) -> None:
    by_orbit, every, _ = spaces(random_graph(seed, nodes=5), LEVEL)
    assert sum(by_orbit.problem.sizes) < sum(every.problem.sizes)
    least = search(every).cost
    assert solve_space(by_orbit, SearchOptions()).cost <= least * (1 + 1e-12)
    found = search(by_orbit)
    assert found.status == "optimal"
    assert found.lower_bound <= found.cost <= least * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_elements_of_all_orbits_hold_every_option(seed: int) -> None:
    by_orbit, every, planner = spaces(random_graph(seed, nodes=4), LEVEL)
    elements = orbit_space(by_orbit, [np.arange(n) for n in by_orbit.problem.sizes], planner)
    least = search(elements).cost
    assert least <= search(every).cost * (1 + 1e-12)
    assert least >= solve_space(by_orbit, SearchOptions()).cost * (1 - 1e-12)


@pytest.mark.parametrize("optimizer_parallel", [False, True])
@pytest.mark.parametrize("seed", first(2, range(4)))
def test_on_a_fine_mesh_the_program_costs_what_the_search_said(
    seed: int, optimizer_parallel: bool
) -> None:
    options = CompileOptions(optimizer_parallel=optimizer_parallel, **ANY_PLAN)
    compiled = compile_graph(random_graph(seed, nodes=6), POD, 32, options, FINE)
    result = compiled.result
    assert result is not None
    assert result.lower_bound <= result.cost
    assert program_seconds(compiled.program, POD) == pytest.approx(result.cost, rel=1e-6)


@pytest.mark.long
def test_a_finer_mesh_is_never_dearer() -> None:
    graph, seconds = multilayer_perceptron(), []
    for shape in ((4, 8), (4, 2, 4), (2, 2, 2, 4), (2, 2, 2, 2, 2)):
        levels = [1] * (1 if shape[0] == 4 else 2) + [0] * 3
        axes = (MeshAxis("abcde"[i], n, levels[i]) for i, n in enumerate(shape))
        compiled = compile_graph(graph, POD, 32, CompileOptions(gap=0.0), Mesh(tuple(axes)))
        assert compiled.result is not None
        seconds.append((compiled.result.cost, compiled.result.lower_bound))
    for (coarse, _), (_, bound) in pairwise(seconds):
        assert bound <= coarse * (1 + 1e-9)


def test_copies_of_a_parameter_with_several_readers_are_searched_too() -> None:
    text = """
        graph tied {
          input x: f32[64, 32]
          parameter w: f32[32, 32]
          h: f32[64, 32] = matmul(x, w)
          r: f32[64, 32] = relu(h)
          y: f32[64, 32] = matmul(r, w)
          loss: f32[] = reduce_sum(y)
          return loss
        }
    """
    by_orbit, _, planner = spaces(parse(text), LEVEL)
    assert any(choice.kind == "copy" for choice in by_orbit.choices)
    found = search(by_orbit)
    elements = orbit_space(by_orbit, [np.arange(n) for n in by_orbit.problem.sizes], planner)
    assert len(elements.problem.pairs) == len(by_orbit.problem.pairs)
    again = search(elements)
    assert again.cost == pytest.approx(found.cost, rel=1e-12)
    tight = 0.9 * again.memory_bytes
    least = search(elements, options=SearchOptions(memory_limit=tight))
    assert least.memory_bytes <= tight


def test_a_layout_given_by_the_user_stays() -> None:
    graph = multilayer_perceptron()
    given = {graph.inputs[0].name: Layout((("z",), ()))}
    compiled = compile_graph(graph, POD, 8, CompileOptions(input_layouts=given), LEVEL)
    arrived = next(v for v in compiled.program.inputs if v.name == graph.inputs[0].name)
    assert arrived.layout == Layout((("z",), ()))


@pytest.mark.long
def test_the_memory_limit_holds_for_orbits_too() -> None:
    graph = multilayer_perceptron()
    free = compile_graph(graph, POD, 8, CompileOptions(), LEVEL)
    need = peak_memory(free.program).peak_bytes
    tight = compile_graph(graph, POD, 8, CompileOptions(memory_limit=0.9 * need), LEVEL)
    assert peak_memory(tight.program).peak_bytes <= 0.9 * need
    with pytest.raises(InfeasibleError, match="every plan takes at least"):
        compile_graph(graph, POD, 8, CompileOptions(memory_limit=need / 100), LEVEL)
