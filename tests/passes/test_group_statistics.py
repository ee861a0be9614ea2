"""Statistics of micro-batches: a step is the mean of the steps of its micro-batches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shardwright.api import compile
from shardwright.dataflow.micro_batches import batch_statistics, micro_batches
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.proof import UpdateRule, prove, training_step
from shardwright.proof.samples import run_samples
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.verification.comparison import random_batches, verify_plan
from shardwright.zoo import load
from tests.extent import ANY_PLAN, first
from tests.zoo_sizes import SMALL

MIXTRAL = "mixtral:layers=2,hidden=16,heads=4,kv_heads=2,inner=24,sequence=8,vocabulary=50,batch={}"
RESNET = "resnet18-cifar:side=8,width=4,batch={}"


def trained(model: Graph, state: dict[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of a model on one device; the state moves to its statistics."""
    step = training_step(model, UpdateRule("sgd", {"learning_rate": 0.0}))
    names = [f"{p.name}.grad" for p in model.parameters if p.trainable]
    executor = Executor(step, LocalCommunicator(), float_dtype="float64")
    found = executor.step(batch, state, [*names, *model.outputs])
    return {name: np.asarray(parts[0]) for name, parts in found.fetched.items()}


@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("spec", [RESNET, MIXTRAL])
def test_a_step_is_the_mean_of_the_steps_of_its_micro_batches(spec: str, passes: int) -> None:
    definition = load(spec.format(8))
    model, part = definition.graph, load(spec.format(8 // passes)).graph
    grouped = GroupStatistics(passes).run(model)
    assert grouped != model
    plan = compile(spec.format(8), 1, mode="stand_alone", cluster="cpu").plan
    (batch,) = random_batches(plan.document.inputs, 1, 0)
    local = LocalCommunicator()
    whole = initialize(model, 0, local, plan.initial, "float64")
    state = initialize(part, 0, local, plan.initial, "float64")
    found = trained(grouped, whole, batch)
    slices = [
        {name: np.split(array, passes)[i] for name, array in batch.items()} for i in range(passes)
    ]
    each = [trained(part, state, one) for one in slices]
    for name, array in found.items():
        mean = sum(one[name] for one in each) / passes
        np.testing.assert_allclose(array, mean, atol=1e-12 * max(1, np.abs(mean).max()))
    for name, parts in state.items():  # moving averages move to one micro-batch after the other
        np.testing.assert_allclose(whole[name][0], parts[0], atol=1e-8)  # weights in float32


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "mode"),
    first(
        2,
        [
            ("mixtral", "data_parallel"),
            ("unet", "auto_parallel"),
            ("resnet18-cifar", "data_parallel"),
            ("mixtral", "stand_alone"),
        ],
    ),
)
def test_plans_are_proven_and_equal(model: str, mode: str) -> None:
    devices = 1 if mode == "stand_alone" else 4
    how = {"mode": mode, **(ANY_PLAN if mode == "auto_parallel" else {})}
    plan = compile(SMALL[model], devices, micro_batches=2, cluster="cpu", **how).plan
    assert prove(plan).proven
    assert verify_plan(plan, 2).equal
    if devices > 1:
        samples = run_samples(plan.program)
        assert not samples.skipped
        assert samples.first_difference is None
    assert plan.document.micro_batch_statistics
    assert type(plan.document).from_text(plan.document.to_text(), "plan.json") == plan.document


def test_a_micro_batch_is_split_unevenly() -> None:
    unet = SMALL["unet"].replace("batch=8", "batch=12")
    plan = compile(unet, 4, mode="data_parallel", micro_batches=2, cluster="cpu").plan
    assert prove(plan).proven
    assert verify_plan(plan, 1).equal


@pytest.mark.parametrize("model", ["mlp", "gpt", "llama", "bert", "vit", "dlrm"])
def test_other_models_stay_as_they_are(model: str) -> None:
    graph = load(SMALL[model]).graph
    found = batch_statistics(graph, 2)
    assert found is not None
    assert not found.values
    assert GroupStatistics(2).run(graph) is graph


def test_a_moving_average_of_another_form_moves_to_the_mean() -> None:
    text = """graph g {
  input x: f32[8, 4]
  parameter gamma: f32[4]
  parameter beta: f32[4]
  buffer moving: f32[4] {initializer='zeros', trainable=False}
  mean: f32[4] = channel_mean(x)
  variance: f32[4] = channel_variance(x, mean)
  y: f32[8, 4] = batch_normalize(x, mean, variance, gamma, beta)
  loss: f32[] = reduce_mean(y) {axis=None}
  update moving = mean
  return loss
}
"""
    grouped = GroupStatistics(2).run(parse(text))
    assert "mean.mean: f32[4] = reduce_mean(mean) {axis=(0,)}" in to_text(grouped)
    assert grouped.updates == (("moving", "mean.mean"),)


def test_what_has_no_form_in_groups_is_refused() -> None:
    text = """graph g {
  input x: f32[8, 4]
  parameter w: f32[4]
  h: f32[8, 4] = mul(x, w)
  mean: f32[4] = reduce_mean(h) {axis=(0,)}
  y: f32[8, 4] = sub(h, mean)
  z: f32[8, 4] = mul(y, y)
  loss: f32[] = reduce_mean(z) {axis=None}
  return loss
}
"""
    graph = parse(text)
    assert GroupStatistics(2).run(graph) is graph
    with pytest.raises(OptionError, match="`sub` reads `mean`, which is computed of all samples"):
        micro_batches(graph, 2)


UNBIASED = """
graph normalized {
  input x: f64[8, 4]
  parameter gamma: f64[4]
  parameter beta: f64[4]
  buffer moving: f64[4] {initializer='zeros', trainable=False}
  mean: f64[4] = channel_mean(x)
  fixed: f64[4] = stop_gradient(mean)
  variance: f64[4] = channel_variance(x, fixed)
  y: f64[8, 4] = batch_normalize(x, mean, variance, gamma, beta) {epsilon=1e-05}
  unbiased: f64[4] = scale(variance) {factor=1.1428571428571428}
  old: f64[4] = scale(moving) {factor=0.5}
  new: f64[4] = scale(unbiased) {factor=0.5}
  next: f64[4] = add(old, new)
  loss: f64[] = reduce_mean(y) {axis=None}
  return loss
  update moving = next
}
"""


def test_a_moving_average_of_unbiased_variances_moves_to_those_of_each_group() -> None:
    model = parse(UNBIASED)
    batch = {"x": np.random.default_rng(0).normal(size=(8, 4))}
    state = initialize(model, 0, LocalCommunicator(), {}, "float64")
    executor = Executor(GroupStatistics(2).run(model), LocalCommunicator(), float_dtype="float64")
    executor.step(batch, state)
    wanted = np.zeros(4)
    for half in np.split(batch["x"], 2):
        wanted = 0.5 * wanted + 0.5 * half.var(axis=0, ddof=1)
    np.testing.assert_allclose(state["moving"][0], wanted, rtol=1e-7)
