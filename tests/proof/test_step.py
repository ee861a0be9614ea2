"""The step of one device, made without passes, trains as the one that the compiler makes."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.ir.errors import PassError
from shardwright.ir.text import parse
from shardwright.models import load_model
from shardwright.operators.verify import verify
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate
from shardwright.proof import UpdateRule, training_step
from shardwright.proof.step import merge_equal_nodes
from tests.equivalence import assert_equal, trained

MODELS = ("mlp:batch=8,inputs=6,hidden=5,classes=4", "two_matmul:batch=8")
SETTINGS = {"learning_rate": 0.01, "weight_decay": 0.1}


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("model", MODELS)
def test_it_trains_as_the_compiler_s_own_step(model: str, kind: str) -> None:
    definition = load_model(model)
    step = training_step(definition.graph, UpdateRule(kind, SETTINGS, loss_scale=8.0))
    verify(step)
    compiled = Differentiate(8.0).run(Canonicalize().run(definition.graph))
    compiled = AppendOptimizer(kind, SETTINGS, {}, 8.0).run(compiled)
    highs = {spec.name: spec.high or 2 for spec in definition.inputs}
    found = trained(step, highs=highs, initial=definition.initial)
    assert_equal(found, trained(compiled, highs=highs, initial=definition.initial))
    assert {p.name for p in step.parameters} == {p.name for p in compiled.parameters}


BRANCHES = """graph branches {
  input x: f64[4]
  parameter w: f64[4] {initializer='ones'}
  parameter frozen: f64[4] {initializer='ones', trainable=False}
  parameter unread: f64[4] {initializer='ones'}
  a: f64[4] = mul(x, w)
  b: f64[4] = mul(x, w)
  c: f64[4] = identity(b)
  s: f64[4] = stop_gradient(a)
  d: f64[4] = mul(a, c)
  e: f64[4] = mul(d, s)
  f: f64[4] = mul(e, frozen)
  loss: f64[] = reduce_sum(f)
  return loss
}
"""


def test_stops_frozen_and_unread_parameters() -> None:
    """By hand: the loss is the sum of (x w)^3, of which one factor is a constant."""
    step = training_step(parse(BRANCHES), UpdateRule("sgd", {"learning_rate": 0.5}))
    verify(step)
    found = trained(step, steps=1)
    x = np.random.default_rng(1).normal(size=4)
    np.testing.assert_allclose(found["0.w.grad"], 2 * x**3)
    np.testing.assert_allclose(found["w"], 1 - x**3)
    assert "0.unread.grad" not in found
    assert {name for name, _ in step.updates} == {"w"}


def test_equal_nodes_are_merged_but_for_those_to_be_kept() -> None:
    graph = parse(BRANCHES)
    names = [node.name for node in merge_equal_nodes(graph)]
    assert names == ["a", "s", "d", "e", "f", "loss"]
    assert [node.name for node in merge_equal_nodes(graph, {"b"})][:3] == ["a", "b", "s"]
    different = BRANCHES.replace("b: f64[4] = mul(x, w)", "b: f64[4] = scale(w) {factor=2.0}")
    different = different.replace("a: f64[4] = mul(x, w)", "a: f64[4] = scale(w) {factor=5.0}")
    assert [node.name for node in merge_equal_nodes(parse(different))][:2] == ["a", "b"]


def test_a_model_without_a_loss_and_an_unknown_rule_are_refused() -> None:
    graph = parse(BRANCHES)
    with pytest.raises(PassError) as refused:
        training_step(replace(graph, outputs=("f",)), UpdateRule())
    assert str(refused.value) == "the loss `f` is f64[4], expected a real scalar"
    with pytest.raises(PassError) as refused:
        training_step(graph, UpdateRule("lion"))
    assert str(refused.value).startswith("unknown optimizer `lion`: expected one of sgd, momentum,")
