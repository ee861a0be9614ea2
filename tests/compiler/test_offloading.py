"""Tensors in host memory: marks of the user, the search for them, what is refused, what is told."""

import re
from dataclasses import replace

import numpy as np
import pytest

from shardwright import nn
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.saved.offloaded import offloaded
from shardwright.cost_model.cluster import Host, cluster, mesh_for
from shardwright.cost_model.live_bytes import overlapped_memory
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate, to_chrome_trace
from shardwright.ir.errors import IRError, OptionError, ShardwrightError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TensorType
from shardwright.operators.verify import verify
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.recompute import Recompute
from shardwright.planner.options import CompileOptions
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.state import initialize
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from shardwright.zoo.loading import load
from tests.equivalence import assert_equal, random_inputs, trained
from tests.extent import ANY_PLAN, long_after
from tests.random_graphs import random_graph

HOST = Host(memory_bytes=2**32, to_host=2.0e9, from_host=3.0e9)
CPU = cluster("cpu").model_copy(update={"host": HOST})


class Block(nn.Cell):
    def __init__(self) -> None:
        self.first, self.second = nn.Dense(8, 12, activation="gelu"), nn.Dense(12, 8)

    def construct(self, x: Tensor) -> Tensor:
        return x + self.second(self.first(x))


class Network(nn.Cell):
    def __init__(self, block: nn.Cell) -> None:
        self.block, self.head = block, nn.Dense(8, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


def network(block: nn.Cell) -> Graph:
    labels = InputSpec("y", TensorType("int32", (4,)), 3)
    specs = (InputSpec("x", TensorType("float32", (4, 8))), labels)
    return trace(Network(block), specs, loss_fn=nn.CrossEntropyLoss()).graph


def copied(program: Graph) -> set[str]:
    """Return the operators of the model whose results are copied to the host."""
    return {n.provenance.operator for n in program.nodes if n.operator == "to_host"}


def test_a_cell_marks_its_operators_and_one_that_is_recomputed_what_it_returns() -> None:
    graph = network(Block().offload())
    marked = [graph.producers[name].operator for name in graph.offloaded]
    assert marked == ["matmul", "add", "gelu", "matmul", "add", "add"]
    assert parse(to_text(graph)) == graph
    both = network(Block().recompute().offload())
    assert [both.producers[name].operator for name in both.offloaded] == ["add"]
    assert both.recomputed == network(Block().recompute()).recomputed
    assert Recompute("full").run(replace(load("gpt").graph, recomputed=())).offloaded == ()


@pytest.mark.parametrize(
    "options",
    long_after(
        3,
        [
            ANY_PLAN,
            {"search": "data_parallel"},
            {"precision": "bfloat16", **ANY_PLAN},
            {"micro_batches": 2, **ANY_PLAN},
            {"plan": "tensor=2,data=2"},
            {"mode": "stand_alone"},
        ],
    ),
)
def test_plans_of_marked_cells(options: dict) -> None:
    devices = 1 if options.get("mode") else 4
    found = [
        compile_graph(network(block), CPU, devices, CompileOptions(**options)).program
        for block in (Block().offload(), Block())
    ]
    assert copied(found[0])
    assert not copied(found[1])
    assert_equal(*(trained(program, 2, {"y": 3}) for program in found))


def test_memory_of_the_device_and_of_the_host_is_what_the_executor_allocates() -> None:
    definition = load(
        "gpt:layers=1,hidden=64,heads=4,batch=8,sequence=32,vocabulary=96,dtype=float32"
    )
    graph = Canonicalize().run(definition.graph)
    names = tuple(node.name for node in graph.nodes if node.operands)
    options = CompileOptions(**ANY_PLAN)
    found = compile_graph(replace(graph, offloaded=names), CPU, 2, options)
    program, serial = found.program, peak_memory(found.program)
    communicator = LocalCommunicator(program.mesh or Mesh(()))
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    state = initialize(program, 0, communicator, definition.initial)
    inputs = random_inputs(program, highs, np.random.default_rng(0))
    step = Executor(program, communicator).step(inputs, state)
    assert serial.peak_bytes == pytest.approx(step.peak_bytes, rel=0.03)
    assert serial.host_bytes == step.host_peak_bytes == found.memory.host_bytes > 0
    kept = compile_graph(graph, CPU, 2, options).program
    assert serial.peak_bytes < peak_memory(kept).peak_bytes
    groups = offloaded(found, CPU)
    assert sum(group.bytes for group in groups) == serial.host_bytes
    assert sum(group.count for group in groups) == len(copied(program))


def test_copies_run_beside_computation_in_streams_of_their_own() -> None:
    graph = network(Block().offload())
    program = compile_graph(graph, CPU, 2).program
    timeline = simulate(program, CPU)
    streams = {event.streams for event in timeline.events if event.node.operator.endswith("host")}
    assert streams == {("to_host",), ("from_host",)}
    assert timeline.step_seconds < sum(event.seconds for event in timeline.events)
    assert overlapped_memory(program, timeline).host_bytes > 0
    trace = to_chrome_trace(timeline)
    assert "to_host: reductions" in trace
    assert "from_host: gathers" in trace


def test_a_program_that_takes_more_host_memory_than_there_is_is_refused() -> None:
    little = CPU.model_copy(update={"host": HOST.model_copy(update={"memory_bytes": 100})})
    with pytest.raises(ShardwrightError) as error:
        compile_graph(network(Block().offload()), little, 1, CompileOptions(mode="stand_alone"))
    assert str(error.value) == (
        "the program saves 512 B of each device in host memory, the cluster `cpu` has 100 B for "
        "it; offload fewer cells"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stages": 2, "micro_batches": 2},
            "`offload` is `search`, and that is not supported with pipeline stages; give `stages` "
            "1, or offload nothing",
        ),
        (
            {"cost_model": "mindspore"},
            "`offload` is `search`, and the cost model `mindspore` does not price that; use the "
            "cost model `time`",
        ),
        (
            {"search": "data_parallel"},
            "`offload` is `search`, and only the search `exact` decides what is offloaded; "
            "search with `exact` in the mode `auto_parallel`, or mark cells with `cell.offload()`",
        ),
        (
            {"plan": "data=4"},
            "`offload` is `search`, and a named plan decides what is saved; leave one of them out, "
            "or mark cells with `cell.offload()`",
        ),
        (
            {"mode": "stand_alone"},
            "`offload` has no effect in the mode `stand_alone`; leave it out, or use a mode in "
            "which the compiler splits the model",
        ),
    ],
)
def test_what_the_search_does_not_support_is_refused(options: dict, message: str) -> None:
    with pytest.raises(OptionError) as error:
        compile_graph(network(Block()), CPU, 4, CompileOptions(offload="search", **options))
    assert str(error.value) == message


def test_a_cluster_without_host_memory_offloads_nothing() -> None:
    plain = cluster("cpu")
    with pytest.raises(OptionError) as error:
        compile_graph(network(Block()), plain, 4, CompileOptions(offload="search"))
    assert str(error.value) == (
        "`offload` is `search`, and the cluster `cpu` has no `host` memory; describe it in a "
        "cluster file, or offload nothing"
    )
    with pytest.raises(OptionError) as error:
        compile_graph(network(Block().offload()), plain, 4)
    assert str(error.value).startswith("the model offloads `matmul_0`, and the cluster `cpu` has")


def test_only_a_copy_reads_a_tensor_in_host_memory() -> None:
    text = """graph wrong {
  input x: f32[4, 8]
  h: f32[4, 8] in host = to_host(x)
  y: f32[4, 8] = LINE
  return y
}
"""
    verify(parse(text.replace("LINE", "from_host(h)")))
    for line, message in (
        ("relu(h)", "`relu` reads f32[4, 8] in host, expected the memory of the devices"),
        ("from_host(x)", "from_host: the operand is f32[4, 8], in the memory of the devices"),
    ):
        with pytest.raises(IRError, match=re.escape(message)):
            verify(parse(text.replace("LINE", line)))
    with pytest.raises(IRError, match="the output `h` is in host memory"):
        verify(parse(text.replace("LINE", "from_host(h)").replace("return y", "return h")))
    with pytest.raises(OptionError) as error:
        nn.Dense(4, 4).offload("Soon")
    assert str(error.value).startswith("`backward_prefetch` is the text `Soon`, expected `Auto`")


def test_a_plan_that_recomputes_in_as_much_memory_does_not_hide_one_that_offloads() -> None:
    graph = Canonicalize().run(random_graph(102, nodes=4))
    host = Host(memory_bytes=2**32, to_host=1.0e9, from_host=1.0e9)
    alone = cluster("cpu").model_copy(update={"host": host})
    options = CompileOptions(gap=0.0, offload="search", memory_limit=872.0)
    found = compile_graph(graph, alone, 1, options, mesh_for(alone, 1, (1,)))
    assert found.memory.peak_bytes <= 872
    assert found.decisions is not None
    assert found.decisions.offloaded
