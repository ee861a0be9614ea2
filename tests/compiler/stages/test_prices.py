"""Prices of stages: what the search counts for a pass is what the emitted program takes.

On one rank nothing is redistributed, so every stage is compared by itself.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from shardwright.compiler.stages.partitioning import PipelinePartitioning
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.pipelines.segments import SegmentTimes
from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.models import load_model
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import PRECISIONS
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.choice.cuts import Cut
from shardwright.planner.options import CompileOptions
from shardwright.planner.search_request import SearchRequest
from shardwright.solver.evaluate import evaluate
from shardwright.solver.work import Budget
from tests.random_graphs import random_graph
from tests.random_micro_batches import random_assignment

POD = cluster("a100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 1),))
PASSES = 4
GPT = "gpt:layers=1,hidden=64,heads=2,batch=8,sequence=4,vocabulary=4096,dtype=float32"


def _searched(graph: Graph) -> PipelinePartitioning:
    options = CompileOptions(
        stages=2,
        micro_batches=PASSES,
        optimizer=Optimizer("adam"),
        objective="serial",
    )
    source = Canonicalize().run(graph)
    return PipelinePartitioning(source, POD, MESH, options, PassManager(), None, Budget(60), 0)


def _pass_seconds(request: SearchRequest, assignment: tuple[int, ...]) -> float:
    """Return what the search counts for one more pass."""
    assert request.part is not None
    more = replace(request, part=replace(request.part, passes=2.0 * PASSES))
    step, longer = (evaluate(r.space.problem, assignment).cost for r in (request, more))
    return float(longer - step) / PASSES


def _check(search: PipelinePartitioning, cut: Cut, seed: int) -> None:
    """Compare random stages with those of the emitted program."""
    random = np.random.default_rng(seed)
    requests = [search.problems[0].request_of(*pair, 1) for pair in pairwise(cut)]
    chosen = [random_assignment(request.space, random) for request in requests]
    pairs = list(zip(requests, chosen, strict=True))
    counted = [_pass_seconds(*pair) for pair in pairs]
    plans = [request.space.decisions(assignment) for request, assignment in pairs]
    pipeline = pipeline_of(search.builder.emitted(cut, plans).program)
    assert pipeline is not None
    times = SegmentTimes(pipeline, POD)
    loops = [times.of_group(group, 0.0).loop.values() for group in pipeline.groups]
    taken = [sum(timed.seconds for timed in segments) for segments in loops]
    assert counted == pytest.approx(taken, rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "types"),
    [
        ("float32", {}),
        ("bfloat16", {}),
        ("bfloat16", {"accumulate_type": "float32"}),
        ("bfloat16", {"reduce_type": "float32"}),
    ],
)
def test_tied_weights(precision: str, types: dict[str, Any]) -> None:
    """The last stage accumulates the gradient of weights that the first one owns."""
    model = ApplyPrecision(PRECISIONS[precision], **types).run(load_model(GPT).graph)
    search = _searched(model)
    blocks = len(search.blocks)
    _check(search, (0, blocks // 2, blocks), 0)


@pytest.mark.parametrize("products", [2, 3, 4])
def test_weight_of_several_operators(products: int) -> None:
    """Each stage accumulates the gradient of a weight that all products read."""
    build = Builder()
    value = build.input(Value("x", TensorType("float64", (8, 512))))
    weight = build.parameter(Value("w", TensorType("float64", (512, 512))), {"initializer": "ones"})
    for _ in range(products):
        value = build.emit("matmul", value, weight)
    search = _searched(build.graph("shared", (build.emit("reduce_sum", value).name,)))
    blocks = len(search.blocks)
    for inner in range(1, blocks):
        _check(search, (0, inner, blocks), products)


def test_random_programs() -> None:
    count = 0
    for seed in range(12):
        try:
            search = _searched(random_graph(seed, 4))
            blocks = len(search.blocks)
        except OptionError:  # no cut, or no micro-batches
            continue
        for inner in range(1, blocks):
            _check(search, (0, inner, blocks), seed)
            count += 1
    assert count > 10
