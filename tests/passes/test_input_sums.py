"""Sums over samples that inputs alone determine: every micro-batch knows those of the batch."""

import numpy as np
import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.memory import peak_memory
from shardwright.dataflow.input_sums import with_input_sums
from shardwright.dataflow.micro_batches import batch_statistics, micro_batches
from shardwright.dataflow.samples import own_samples, samples_of
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.liveness import loop_of
from shardwright.ir.text import parse, to_text
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.planner.choice.configuration import candidate_counts
from shardwright.planner.options import CompileOptions
from shardwright.proof import UpdateRule, prove_program, training_step
from shardwright.runtime import Executor, LocalCommunicator, initialize
from tests.equivalence import assert_equal, trained
from tests.random_micro_batches import ADAM, CPU, random_step

IGNORED = """graph g {
  input x: f64[8, 6, 4]
  input labels: i64[8, 6]
  parameter w: f64[4, 5]
  none: i64[] = fill() {dtype='int64', value=2}
  zero: i64[] = fill() {dtype='int64', value=0}
  kept: bool[8, 6] = not_equal(labels, none)
  label: i64[8, 6] = where(kept, labels, zero)
  scores: f64[8, 6, 5] = matmul(x, w)
  logs: f64[8, 6, 5] = log_softmax(scores) {axis=-1}
  picked: f64[8, 6] = pick(logs, label)
  losses: f64[8, 6] = neg(picked)
  masked: f64[8, 6] = mask(losses, kept)
  total: f64[] = reduce_sum(masked) {axis=None}
  shares: f64[8, 6] = cast(kept) {dtype='float64'}
  count: f64[] = reduce_sum(shares) {axis=None}
  loss: f64[] = div(total, count)
  return loss
}
"""
WEIGHTED = """graph g {
  input x: f64[8, 4]
  input weight: f64[8, 1]
  parameter w: f64[4, 3]
  sum: f64[] = reduce_sum(weight) {axis=None}
  share: f64[8, 1] = div(weight, sum)
  y: f64[8, 3] = matmul(x, w)
  z: f64[8, 3] = mul(y, y)
  loss_: f64[8, 3] = mul(share, z)
  loss: f64[] = reduce_sum(loss_) {axis=None}
  return loss
}
"""
CENTERED = """graph g {
  input x: f64[8, 4]
  parameter w: f64[4, 3]
  mean: f64[4] = reduce_mean(x) {axis=(0,)}
  scaled: f64[8, 4] = sub(x, mean)
  y: f64[8, 3] = matmul(scaled, w)
  z: f64[8, 3] = mul(y, y)
  loss: f64[] = reduce_mean(z) {axis=None}
  return loss
}
"""

HIGHS = {"labels": 5}


def batch_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    batch = {}
    for value in graph.inputs:
        shape = value.type.shape
        if value.type.is_float:
            batch[value.name] = random.uniform(0.1, 1.0, shape)
        else:  # most labels of the first samples are ignored: micro-batches keep unequal numbers
            ignored = random.random(shape) < np.linspace(0.9, 0.1, shape[0])[:, None]
            batch[value.name] = np.where(ignored, 2, random.integers(0, 5, shape))
    return batch


def step_of(graph: Graph, batch: dict[str, np.ndarray], *others: str) -> list[np.ndarray]:
    """Return outputs, gradients and other values of a program, on one device."""
    step = training_step(graph, UpdateRule("sgd", {"learning_rate": 0.0}))
    names = [*graph.outputs, *(f"{p.name}.grad" for p in graph.parameters), *others]
    local = LocalCommunicator()
    state = initialize(step, 0, local, None, float_dtype="float64")
    found = Executor(step, local, float_dtype="float64").step(batch, state, names).fetched
    return [np.asarray(found[name][0]) for name in names]


def with_sums(graph: Graph, passes: int) -> Graph:
    found = batch_statistics(graph, passes)
    assert found is not None
    return with_input_sums(graph, found.values)


@pytest.mark.parametrize("text", [IGNORED, WEIGHTED, CENTERED])
def test_the_whole_program_computes_the_same(text: str) -> None:
    graph = parse(text)
    found = with_sums(graph, 2)
    assert found != graph
    assert parse(to_text(found)) == found
    batch = batch_of(graph, 3)
    before, after = step_of(graph, batch), step_of(found, batch)
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_the_loss_is_the_one_of_numpy() -> None:
    graph = with_sums(parse(IGNORED), 4)
    batch = batch_of(graph, 5)
    loss, _, count, scores = step_of(graph, batch, "count.all", "scores")
    kept = batch["labels"] != 2
    logs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    picked = np.take_along_axis(logs, batch["labels"][..., None], axis=-1)[..., 0]
    assert count == kept.sum()
    assert loss == pytest.approx(-picked[kept].mean(), rel=1e-12)


@pytest.mark.parametrize("passes", [2, 4, 8])
@pytest.mark.parametrize("text", [IGNORED, WEIGHTED, CENTERED])
def test_micro_batches_have_a_program(text: str, passes: int) -> None:
    graph = Canonicalize().run(GroupStatistics(passes).run(parse(text)))
    micro = micro_batches(graph, passes)
    assert samples_of(graph) == 8
    assert samples_of(micro.graph) == 8 // passes
    for name, node in own_samples(graph).items():
        assert not micro.layouts[name].split_axes
        assert micro.is_split(node.name)


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("text", [IGNORED, WEIGHTED, CENTERED])
def test_random_plans_are_those_of_the_whole_batch(text: str, passes: int) -> None:
    graph = parse(text)
    alone = CompileOptions(mode="stand_alone", optimizer=ADAM)
    wanted = trained(compile_graph(graph, CPU, 1, alone).program, highs=HIGHS)
    source = GroupStatistics(passes).run(graph)
    for seed in range(3):
        step = random_step(source, passes, seed)
        assert loop_of(step.program).passes == passes
        assert step.program_cost == pytest.approx(step.cost, rel=1e-9)
        assert step.counted_bytes <= peak_memory(step.program).peak_bytes * (1 + 1e-9)
        assert prove_program(source, step.program, UpdateRule("adam", ADAM.settings)).proven
        assert_equal(trained(step.program, highs=HIGHS), wanted)


def test_data_parallel_ranks_take_their_own_samples_of_every_pass() -> None:
    options = CompileOptions(mode="data_parallel", optimizer=ADAM, micro_batches=2)
    found = compile_graph(parse(IGNORED.replace("[8, 6", "[16, 6")), CPU, 4, options)
    node = own_samples(found.program)["labels"]
    assert node.results[0].layout.splits[0] == ("micro", "x", "y")
    counted = found.program.producers["count.all"]
    loop = loop_of(found.program)
    assert found.program.nodes.index(counted) < loop.start


def test_statistics_of_normalizations_stay_those_of_micro_batches() -> None:
    text = """graph g {
  input x: f32[8, 4]
  parameter gamma: f32[4]
  parameter beta: f32[4]
  mean: f32[4] = channel_mean(x)
  variance: f32[4] = channel_variance(x, mean)
  y: f32[8, 4] = batch_normalize(x, mean, variance, gamma, beta)
  loss: f32[] = reduce_mean(y) {axis=None}
  return loss
}
"""
    graph = parse(text)
    assert with_sums(graph, 2) is graph


def test_sums_of_trained_values_are_not_known_before() -> None:
    text = IGNORED.replace("reduce_sum(shares)", "reduce_sum(losses)")
    graph = parse(text)
    assert with_sums(graph, 2) is graph
    with pytest.raises(OptionError, match="which is computed of all samples"):
        compile_graph(graph, CPU, 2, CompileOptions(mode="data_parallel", micro_batches=2))


def test_all_numbers_of_micro_batches_compute_the_same_step() -> None:
    def source(passes: int) -> Graph:
        return Canonicalize().run(GroupStatistics(passes).run(parse(IGNORED)))

    assert candidate_counts(source) == (1, 2, 4, 8)
