"""The memory of a plan: that of the least window with which its step is about as short."""

import json
from itertools import pairwise

import pytest

import shardwright
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate, to_chrome_trace, with_window
from shardwright.ir.graph import Graph
from shardwright.planner.evaluation.simulated_step import in_least_memory, simulated_step
from shardwright.planner.options import CompileOptions
from shardwright.tools.reports.documents import compile_document, timeline_of
from shardwright.zoo import load
from tests.extent import ANY_PLAN, first
from tests.random_graphs import multilayer_perceptron, random_graph

CPU = cluster("cpu")
HALVINGS = 13


def program_of(graph: Graph, devices: int = 4, **options: object) -> Graph:
    return compile_graph(graph, CPU, devices, CompileOptions(**options)).program  # type: ignore[arg-type]


def test_gathers_of_many_layers_need_not_all_be_early() -> None:
    graph = multilayer_perceptron(batch=4096, width=256, layers=12)
    program = program_of(graph, 8, search="fully_sharded")
    widest, serial = simulate(program, CPU), peak_memory(program).peak_bytes
    step = in_least_memory(program, CPU, widest, 1e-3)
    assert step.seconds <= widest.step_seconds * 1.001
    assert step.memory.peak_bytes - serial < 0.3 * (widest.peak_bytes - serial)


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
@pytest.mark.parametrize("passes", [1, 3])
def test_no_halving_of_the_window_takes_less_memory_for_a_step_as_short(
    passes: int, tolerance: float
) -> None:
    repeated = load("mlp:batch=36,inputs=12,hidden=16").graph
    graphs = [random_graph(seed, nodes=8) for seed in range(5)] if passes == 1 else [repeated]
    for graph in graphs:
        program = program_of(graph, search="fully_sharded", micro_batches=passes)
        widest = simulate(program, CPU)
        step = in_least_memory(program, CPU, widest, tolerance)
        windows = [widest.window_bytes / 2**i for i in range(HALVINGS)] + [0.0]
        every = [with_window(program, CPU, window) for window in windows]
        steps = [timeline.step_seconds for timeline in every]
        assert step.seconds <= min(steps) * (1 + tolerance)
        if all(one <= other for one, other in pairwise(steps)):  # no anomaly
            near = [one for one in every if one.step_seconds <= min(steps) * (1 + tolerance)]
            least = min(one.peak_bytes for one in near)
            assert step.memory.peak_bytes <= 1.01 * max(least, peak_memory(program).peak_bytes)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    first(
        3,
        [
            {"micro_batches": 2, **ANY_PLAN},
            {"stages": 2, "micro_batches": 2, **ANY_PLAN},
            {"objective": "serial", **ANY_PLAN},
            ANY_PLAN,
            {"search": "fully_sharded"},
            {"mode": "stand_alone"},
        ],
    ),
)
def test_everything_says_the_same_memory(options: dict[str, object]) -> None:
    devices = 1 if options.get("mode") == "stand_alone" else 4
    found = shardwright.compile(
        "mlp:batch=32,layers=6,hidden=64", devices, optimizer="adam", **options
    )
    limit = CPU.device.usable_bytes
    timeline, memory = timeline_of(found, limit), found.plan.document.memory
    document = compile_document(found, limit)
    assert memory.window_bytes == timeline.window_bytes == document["window_bytes"]
    if found.compiled.minimizes_step:
        assert found.plan.document.objective == timeline.step_seconds
    assert document["overlapped_step_seconds"] == timeline.step_seconds
    assert document["memory_bytes_per_device"] == memory.peak_bytes
    assert memory.peak_bytes == pytest.approx(timeline.peak_bytes, rel=1e-9)
    assert memory.peak_bytes == pytest.approx(sum(memory.by_kind.values()))
    trace = json.loads(to_chrome_trace(timeline))["traceEvents"]
    counted = max(record["args"]["bytes"] for record in trace if record["ph"] == "C")
    assert counted == pytest.approx(memory.peak_bytes, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("search", ["exact", "fully_sharded"])
def test_a_plan_fits_where_its_program_does(seed: int, search: str) -> None:
    program = program_of(random_graph(seed, nodes=6), search=search)
    least = peak_memory(program).peak_bytes
    for limit in (least, 1.02 * least, 1.2 * least):
        step = simulated_step(program, CPU, limit, overlaps=True, tolerance=1e-3)
        assert step.memory.peak_bytes <= limit
        assert step.seconds <= 1.001 * simulate(program, CPU, limit).step_seconds
