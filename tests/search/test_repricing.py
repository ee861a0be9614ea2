"""A space by other prices is the one that is built by them."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.dataflow.micro_batches import micro_batches, one_pass
from shardwright.dataflow.stretches import Line
from shardwright.ir.errors import OptionError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import PRECISIONS
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.planner.fronts.problem import MANY, StageProblems
from shardwright.planner.options import CompileOptions
from shardwright.planner.plan.blocks import Blocks, cut_points
from shardwright.planner.search_request import SearchRequest
from shardwright.search.options import SearchOptions
from shardwright.search.space.builder import SpaceBuilder
from shardwright.solver.problem import distinct
from shardwright.solver.work import Budget
from shardwright.zoo import load
from tests.extent import first
from tests.random_graphs import random_graph
from tests.zoo_sizes import SMALL

POD = cluster("h100-pod:figures=datasheet")
MESH = mesh_for(POD, 8, (2, 2, 2))


def random_weights(random, intervals, passes):
    """Return weights of the resources in some intervals."""
    shares = random.dirichlet(np.ones(1 + len(POD.links)), size=intervals)
    first, *later = (ResourceWeights(float(one[0]), tuple(one[1:].tolist())) for one in shares)
    return replace(first, later=tuple(later), passes=passes if later else 1)


def request(graph, weights, others=(), *, passes=1, **more):
    """Return the search for a plan of a graph by weights, beside others."""
    options = CompileOptions(micro_batches=passes, optimizer=Optimizer("adam"), **more)
    planner = LowerRedistributions(POD, weights=weights).planner(MESH)
    known = {other.weights: other.spaces for other in others}
    return SearchRequest(graph, POD, planner, options, weights, others=known)


def check_equal(space, built):
    """Check that two spaces are the same problem, and share as many arrays."""
    pairs = zip(space.problem.variables, built.problem.variables, strict=True)
    for own, other in pairs:
        assert own.name == other.name
        np.testing.assert_array_equal(own.cost, other.cost)
        for use, same in zip(own.memory, other.memory, strict=True):
            assert (use.start, use.end) == (same.start, same.end)
            np.testing.assert_array_equal(use.usage, same.usage)
    for own, other in zip(space.problem.pairs, built.problem.pairs, strict=True):
        assert (own.first, own.second, own.role) == (other.first, other.second, other.role)
        np.testing.assert_array_equal(own.table, other.table)
    for own, other in zip(space.choices, built.choices, strict=True):
        assert (own.kind, own.name, own.options) == (other.kind, other.name, other.options)
    assert space.constant == built.constant
    tables = [len(distinct([pair.table for pair in one.problem.pairs])) for one in (space, built)]
    assert tables[0] == tables[1]


def is_repriced(space, known):
    """Return whether a space has the memory of another one, so that only its prices are new."""
    pairs = zip(space.problem.variables, known.problem.variables, strict=True)
    return all(own.memory is other.memory for own, other in pairs)


def check_repriced(graph, seed, which, passes=1):
    """Check a space that is priced anew, and that it was not built."""
    random = np.random.default_rng(seed)
    intervals = int(random.choice([1, 2] if passes == 1 else [1, 3]))
    first = request(graph, random_weights(random, intervals, passes), passes=passes)
    getattr(first, which)
    later = random_weights(random, int(random.choice([1, intervals])), passes)
    second = request(graph, later, [first], passes=passes)
    space = getattr(second, which)
    assert is_repriced(space, getattr(first, which))
    check_equal(space, getattr(request(graph, later, passes=passes), which))


@pytest.mark.parametrize("which", ["space", "recompute_space"])
@pytest.mark.parametrize("seed", first(9, range(16)))
def test_random_graphs(seed, which):
    graph = random_graph(seed, nodes=8)
    passes = 1 + seed % 3 // 2
    try:
        check_repriced(Canonicalize().run(graph), seed, which, passes)
    except OptionError:
        assert passes > 1  # such as an odd batch


@pytest.mark.long
@pytest.mark.parametrize("which", ["space", "recompute_space"])
@pytest.mark.parametrize("model", first(2, [*SMALL]))
def test_models(model, which):
    graph = ApplyPrecision(PRECISIONS["bfloat16"]).run(load(SMALL[model]).graph)
    check_repriced(Canonicalize().run(graph), len(model), which)


def check_parts(graph, seed, passes):
    """Check the problems of blocks that are priced anew, and that they cost as much work."""
    random = np.random.default_rng(seed)
    line = Line(graph)
    loop = one_pass(graph) if passes == 1 else micro_batches(graph, passes)
    blocks = Blocks(line, loop, cut_points(line, loop, 1))
    known, later = (random_weights(random, 1, 1) for _ in range(2))
    shared = {}

    def problems(weights, structures):
        budget = Budget()
        searched = replace(request(graph, weights, passes=passes), budget=budget)
        limits = SearchOptions(None, budget)
        return StageProblems(searched, blocks, limits, budget, structures=structures), budget

    first, second, alone = problems(known, shared), problems(later, shared), problems(later, {})
    for block in random.permutation(len(blocks))[:3].tolist():
        free_ends = bool(random.integers(2))
        what = block, block + 1, int(random.integers(1, 4)), MANY if random.integers(2) else None
        uncounted = blocks.common(block) if free_ends else frozenset()
        for which in ("recompute_space", "space"):
            built, priced, anew = (
                getattr(one.request_of(*what, free_ends=free_ends, uncounted=uncounted), which)
                for one, _ in (first, second, alone)
            )
            assert is_repriced(priced, built)
            check_equal(priced, anew)
            assert priced.graph == anew.graph
    assert second[1].spent == pytest.approx(alone[1].spent)


@pytest.mark.parametrize("seed", first(6, range(12)))
def test_blocks_of_random_graphs(seed):
    try:
        check_parts(Canonicalize().run(random_graph(seed, nodes=8)), seed, 1 + seed % 2)
    except OptionError:
        assert seed % 2  # such as an odd batch


@pytest.mark.long
@pytest.mark.parametrize(("model", "passes"), first(2, [("gpt", 1), ("mixtral", 2), ("llama", 2)]))
def test_blocks_of_models(model, passes):
    graph = ApplyPrecision(PRECISIONS["bfloat16"]).run(load(SMALL[model]).graph)
    check_parts(Canonicalize().run(graph), 0, passes)


def canonical(model):
    """Return the graph of a model in canonical form."""
    return Canonicalize().run(load(model).graph)


def test_steps_do_not_grow_with_equal_layers(monkeypatch):
    taken = []
    take = SpaceBuilder.take
    monkeypatch.setattr(
        SpaceBuilder, "take", lambda self, step: (taken.append(step), take(self, step))
    )
    counts = []
    for layers in (5, 9):
        graph = canonical(f"gpt:layers={layers},hidden=16,heads=4,batch=8,sequence=6,vocabulary=50")
        first = request(graph, ResourceWeights(0.9, (0.05, 0.05)))
        assert first.space.edges
        taken.clear()
        assert request(graph, ResourceWeights(0.7, (0.2, 0.1)), [first]).space.edges
        counts.append(len(taken))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "what", ["more intervals", "other passes", "pins", "the serial step", "nothing built"]
)
def test_what_other_prices_cannot_take_is_built(what):
    graph, pins = canonical(SMALL["mlp"]), {}
    own, known = ResourceWeights(0.7, (0.2, 0.1)), ResourceWeights(0.9, (0.05, 0.05))
    if what == "more intervals":
        own = replace(own, later=(known,))
    elif what == "other passes":
        own, known = replace(own, later=(known,), passes=2), replace(known, later=(own,), passes=4)
    elif what == "pins":
        product = next(node for node in graph.nodes if node.operator == "matmul")
        pins = {"pins": {product.name: ((2, 1), (1, 1))}}
    elif what == "the serial step":
        known = None
    first = request(graph, known, **pins)
    assert what == "nothing built" or first.space.edges
    second = request(graph, own, [first], **pins)
    assert what == "nothing built" or not is_repriced(second.space, first.space)
    check_equal(second.space, request(graph, own, **pins).space)
