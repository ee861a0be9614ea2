"""Programs with pipeline stages: every schedule computes the bits of the plain loop."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.dataflow.stages import pipeline_of
from shardwright.ir.errors import ExecutionError, IRError, OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse, to_text
from shardwright.passes.canonicalize import Canonicalize
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.random_graphs import random_graph
from tests.random_micro_batches import random_step, random_steps
from tests.random_pipelines import pipelined, random_pipeline, random_stages
from tests.zoo_sizes import SMALL

KINDS = [
    ("", 2, 1),
    ("gpipe", 2, 1),
    ("1f1b", 2, 1),
    ("zero_bubble", 2, 1),
    ("zero_bubble_v", 2, 2),
    ("zero_bubble_v", 3, 2),
    ("dualpipe_v", 2, 2),
    ("interleaved", 2, 2),
    ("1f1b", 3, 1),
    ("zero_bubble", 4, 1),
]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason="mpi4py or mpiexec is not installed (the extra `mpi` has both)",
)


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array, equal_nan=True), name


def test_every_schedule_computes_the_bits_of_the_plain_loop() -> None:
    tried = 0
    for seed, graph, step in random_steps(12, 4):
        whole = trained(step.program)
        for schedule, groups, chunks in KINDS:
            if groups * chunks > len(Canonicalize().run(graph).nodes):
                continue
            stages = random_stages(graph, groups * chunks, seed)
            program = pipelined(graph, step.decisions, groups, stages, schedule)
            assert parse(to_text(program)) == program
            assert_same_bits(trained(program), whole)
            tried += 1
    assert tried > 40


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "kind"), [("gpt", ("interleaved", 2, 2)), ("llama", ("zero_bubble", 3, 1))]
)
def test_models_in_stages(model: str, kind: tuple[str, int, int]) -> None:
    schedule, groups, chunks = kind
    definition = load(SMALL[model])
    graph = definition.graph
    highs = {spec.name: spec.high for spec in definition.inputs if spec.high}
    step = random_step(graph, 4, 1)
    stages = random_stages(graph, groups * chunks, 1)
    program = pipelined(graph, step.decisions, groups, stages, schedule)
    assert_equal(trained(program, highs=highs), trained(step.program, highs=highs))


def _program(schedule: str = "1f1b", groups: int = 2, chunks: int = 1) -> Graph:
    return random_pipeline(random_graph(1, nodes=7), 4, 1, groups, chunks, schedule)


PAIR = """graph pair on micro=2:time stage=2:stages {
  input a: f32[8@micro, 4]
  h: f32[8@micro, 4] stage 0 = relu(a)
  k: f32[8@micro, 4] stage 0 = tanh(a)
  h.to: f32[8@micro, 4] stage 1 = transfer(h) {stage=1}
  k.to: f32[8@micro, 4] stage 1 = transfer(k) {stage=1}
  d: f32[8@micro, 4] stage 1 = sub(h.to, k.to)
  c: f32[] +micro stage 1 = reduce_sum(d)
  loss: f32[] stage 1 = all_reduce(c) {axes=('micro',)}
  return loss
}"""


def test_lost_and_swapped_transfers_are_caught() -> None:
    whole = trained(parse(PAIR))
    swapped = PAIR.replace("transfer(h)", "transfer(?)").replace("transfer(k)", "transfer(h)")
    with pytest.raises(AssertionError):
        assert_equal(trained(parse(swapped.replace("transfer(?)", "transfer(k)"))), whole)
    lost = "\n".join(line for line in PAIR.splitlines() if "k.to:" not in line)
    with pytest.raises(ExecutionError, match="operands are in the stages 1 and 0"):
        trained(parse(lost.replace("k.to", "k")))


def test_in_place_updates_and_the_peak_of_each_group() -> None:
    program = _program("interleaved", 2, 2)
    communicator = LocalCommunicator(program.mesh)
    inputs = {v.name: np.ones(v.type.shape) for v in program.inputs}
    found = []
    for in_place in (False, True):
        executor = Executor(program, communicator, in_place=in_place)
        state = initialize(program, 0, communicator)
        results = [executor.step(inputs, state) for _ in range(2)]
        found.append({name: {r: a.copy() for r, a in p.items()} for name, p in state.items()})
        assert set(results[0].peak_bytes_by_group) == {0, 1}
        assert list(state) == [p.name for p in program.parameters]  # as in every process
        assert results[0].peak_bytes == max(results[0].peak_bytes_by_group.values())
        for parameter in program.parameters:
            assert parameter.value.layout is not None
            assert program.mesh is not None
            holders = program.mesh.ranks_of(parameter.value.layout.stage)
            assert sorted(state[parameter.name]) == list(holders)
    for name, parts in found[0].items():
        assert all(np.array_equal(parts[rank], found[1][name][rank]) for rank in parts)


def test_more_micro_batches_in_flight_take_more_memory() -> None:
    definition = load(SMALL["mlp"])
    step = random_step(definition.graph, 4, 0)
    stages = random_stages(definition.graph, 2, 0)
    peaks = {}
    for schedule in ("", "1f1b", "gpipe"):
        program = pipelined(definition.graph, step.decisions, 2, stages, schedule)
        communicator = LocalCommunicator(program.mesh)
        executor = Executor(program, communicator)
        inputs = {
            v.name: np.zeros(v.type.shape, v.type.dtype if not v.type.is_float else "float32")
            for v in program.inputs
        }
        state = initialize(program, 0, communicator)
        peaks[schedule] = executor.step(inputs, state).peak_bytes_by_group
    assert peaks[""][0] < peaks["1f1b"][0] < peaks["gpipe"][0]
    assert peaks[""][1] == peaks["1f1b"][1] < peaks["gpipe"][1]


def test_a_number_of_stages_that_the_groups_cannot_share_is_refused() -> None:
    program = _program("", 2, 2)
    assert program.mesh is not None
    axes = [replace(axis, size=3) if axis.of_stages else axis for axis in program.mesh.axes]
    with pytest.raises(IRError) as error:
        pipeline_of(replace(program, mesh=Mesh(tuple(axes))))
    assert error.value.what == "the program has 4 stages on 3 device groups"


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OptionError, match="needs at least 2 chunks"):
        pipeline_of(replace(_program(), schedule="interleaved"))
    with pytest.raises(IRError) as error:
        pipeline_of(replace(_program("interleaved", 2, 2), schedule="zero_bubble_v"))
    assert error.value.what == (
        "the schedule `zero_bubble_v` has stages in a V, and the mesh is micro=4 in time x stage=2 "
        "stages x x=2 x y=2"
    )
    with pytest.raises(OptionError, match="unknown schedule `1f2b`"):
        pipeline_of(replace(_program(), schedule="1f2b"))


BACK = """graph back on micro=2:time stage=2:stages {
  input a: f32[8@micro, 4]
  b: f32[8@micro, 4] stage 1 = relu(a)
  b.to: f32[8@micro, 4] stage 0 = transfer(b) {stage=0}
  c: f32[] +micro stage 0 = reduce_sum(b.to)
  d: f32[] stage 0 = all_reduce(c) {axes=('micro',)}
  return d
}"""


def test_a_transfer_to_an_earlier_stage_is_refused() -> None:
    with pytest.raises(IRError) as error:
        pipeline_of(parse(BACK))
    assert error.value.what == (
        "`b.to` transfers from the forward pass of stage 1 to the forward pass of stage 0, which "
        "is not later"
    )
    everywhere = BACK.replace("stage 0 = transfer(b) {stage=0}", "= transfer(b)")
    with pytest.raises(IRError) as error:
        pipeline_of(parse(everywhere))
    assert error.value.what == "`b.to` transfers a value of a micro-batch to every stage"


def test_a_message_that_nobody_sent_is_named() -> None:
    communicator = LocalCommunicator(Mesh((MeshAxis("stage", 2, of_stages=True),)))
    with pytest.raises(ExecutionError) as error:
        communicator.receive(0, [(0, 1)], {1: (2,)}, np.dtype("float32"))
    assert error.value.what == "rank 1 receives what no rank has sent"
    communicator.send(0, [(0, 1)], {0: np.zeros(3, "float32")})
    with pytest.raises(ExecutionError) as error:
        communicator.receive(0, [(0, 1)], {1: (2,)}, np.dtype("float32"))
    assert error.value.what == "rank 1 received float32[3], expected float32[2]"


WITHOUT_LOOP = """graph plain on stage=2:stages x=2 {
  input a: f32[8@x, 4]
  parameter w: f32[4, 4]* stage 0
  parameter v: f32[4, 4]* stage 1
  h: f32[8@x, 4] stage 0 = matmul(a, w)
  h.to: f32[8@x, 4] stage 1 = transfer(h) {stage=1}
  g: f32[8@x, 4] stage 1 = matmul(h.to, v)
  part: f32[] +x stage 1 = reduce_sum(g)
  loss: f32[]* stage 1 = all_reduce(part) {axes=('x',)}
  everywhere: f32[]* = transfer(loss)
  return everywhere
}"""


def test_a_program_without_a_loop_runs_in_its_order() -> None:
    program = parse(WITHOUT_LOOP)
    communicator = LocalCommunicator(program.mesh)
    state = initialize(program, 0, communicator)
    a = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    parts = Executor(program, communicator).step({"a": a}, state).outputs["everywhere"]
    expected = (a @ state["w"][0] @ state["v"][2]).sum()
    assert sorted(parts) == [0, 1, 2, 3]
    assert all(part == pytest.approx(expected, rel=1e-4) for part in parts.values())


@needs_mpi
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_compute_the_bits_of_one(processes: int, tmp_path: Path) -> None:
    one, two = Mesh((MeshAxis("x", 1),)), Mesh((MeshAxis("x", 2),))
    graph = random_graph(9, nodes=7)
    cases = [(k, one) for k in KINDS if k[1] == processes]
    cases += [(k, two) for k in KINDS if 2 * k[1] == processes]
    assert len(cases) > 4 - processes
    for (schedule, groups, chunks), mesh in cases:
        program = random_pipeline(graph, 4, 1, groups, chunks, schedule, mesh)
        name = f"{schedule or 'none'}-{groups}-{chunks}.ir"
        (tmp_path / name).write_text(to_text(program))
    assert MPIEXEC is not None
    script = Path(__file__).with_name("mpi_pipelines.py")
    done = subprocess.run(
        [MPIEXEC, "-n", str(processes), sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
