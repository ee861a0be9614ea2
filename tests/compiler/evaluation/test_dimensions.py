"""Dimensions of plans from outside: what holds parameters or divides operators otherwise.

What a plan with such a word takes is the number of the built program, and no less than its bound.
"""

from itertools import takewhile
from random import Random

import pytest

import shardwright as sw
from shardwright.api import compile
from shardwright.compiler.evaluation.evaluated import evaluated
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.fit.questions import changes
from shardwright.cost_model.cluster import cluster
from shardwright.exports.degrees.deepspeed import WORDS
from shardwright.exports.degrees.nearest import nearest
from shardwright.ir.errors import OptionError
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.search.named_plan import NamedPlan
from shardwright.search.plan_dimensions import WHOLE, Dimension, Held, register_dimension
from tests.extent import first

SIZES = "hidden=64,heads=4,kv_heads=2,inner=128,sequence=32,vocabulary=128"
MODELS = {
    "llama": f"llama:layers=4,{SIZES}",
    "mixtral": f"mixtral:layers=4,experts=4,{SIZES}",
}
POD = cluster("h100-pod:figures=datasheet").without_host()


class WholeLoss(Dimension):
    """The loss is computed from all words on every tensor rank."""

    name = "whole_loss"
    default = False
    tried = (True,)

    @staticmethod
    def check(value):
        pass

    @staticmethod
    def refusal(value, plan):
        return "" if plan["tensor"] > 1 else "gathers words of tensor ranks, and it has one"

    @staticmethod
    def strategies(value, graph, mesh, axes, strategies):
        names = [node.name for node in graph.nodes if node.scope == "loss"]
        return {name: strategies[name].without(axes.tensor) for name in names}


class Persist(Dimension):
    """Parameters of at most so many elements are whole."""

    name = "persist"
    default = 0
    tried = (4096,)

    @staticmethod
    def check(value):
        pass

    @staticmethod
    def refusal(value, plan):
        return "" if plan["zero"] else "has no effect without `zero`"

    @staticmethod
    def held(value, parameter, held):
        return WHOLE if parameter.type.elements <= value else held


class Once(Dimension):
    """Large parameters are gathered once a step, whatever the ZeRO stage is."""

    name = "once"
    default = 10**9
    tried = (8000,)

    @staticmethod
    def check(value):
        pass

    @staticmethod
    def refusal(value, plan):
        return "" if plan["zero"] > 1 else "has no effect below `zero=2`"

    @staticmethod
    def held(value, parameter, held):
        return Held(held.divided) if parameter.type.elements > value else held


@pytest.fixture
def dimensions(own_operators):
    """Register three dimensions, and forget them afterwards."""
    for dimension in (WholeLoss, Persist, Once):
        register_dimension(dimension)


def own(name, limit=1e12):
    whole = training_definition(MODELS[name], 16, 1)[0]
    asked = CompileOptions(
        precision="bfloat16", optimizer=Optimizer("adam", {}), memory_limit=limit
    )
    inner, *outer = POD.levels
    pairs = (inner.model_copy(update={"size": 2}), *outer)
    return EvaluatedModel(whole.graph, POD.model_copy(update={"levels": pairs}), asked)


@pytest.mark.long
@pytest.mark.parametrize("name", first(1, [*MODELS]))
def test_no_plan_takes_less_than_its_bound(dimensions, name):
    model = own(name)
    plans = family(model, 4, micro_batches=(2,), tensors=(2,))
    with_words = [one for one in plans if one.plan.more]
    assert {len(one.plan.more) for one in with_words} == {1, 2, 3}
    for one in first(4, Random(3).sample(with_words, 40)):
        found, bound, text = evaluated(model, one.plan, 4), model.refined(one), one.plan.text
        assert found is not None
        assert bound is not None
        assert one.memory_bytes <= bound.memory_bytes * (1 + 1e-9), text
        assert bound.memory_bytes <= found.evaluation.in_order.peak_bytes * (1 + 1e-9), text
        assert one.seconds <= bound.seconds * (1 + 1e-9), text
        assert bound.seconds <= found.seconds * (1 + 1e-9), text


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "tensor=2,data=2,sequence_parallel,whole_loss",
        "tensor=2,data=2,zero=3,micro_batch=2,whole_loss,persist=4096",
        "data=4,zero=3,micro_batch=2,once=8000",
    ],
)
def test_it_is_priced_as_it_is_built_and_computes_the_same(dimensions, words):
    plan, model = NamedPlan.parse(words), own("llama")
    built = compile(
        MODELS["llama"],
        4,
        batch=16,
        cluster=model.cluster,
        plan=plan,
        precision="bfloat16",
        optimizer="adam",
    ).plan
    found = model.evaluation(plan, 4)
    assert found.seconds == pytest.approx(built.document.objective, rel=1e-12)
    assert found.memory.peak_bytes == built.document.memory.peak_bytes
    assert sw.prove(built).proven
    without = model.evaluation(NamedPlan.parse(",".join(words.split(",")[:-1])), 4)
    assert found.seconds != without.seconds


@pytest.mark.long
def test_fit_tries_it_and_exports_say_the_nearest(dimensions):
    model = own("llama")
    one = evaluated(model, NamedPlan.parse("data=4,zero=3,micro_batch=2"), 4)
    first_ones = takewhile(lambda change: change.kind != "micro-batch", changes(one))
    texts = {change.text for change in first_ones if change.kind == "words"}
    assert texts == {"persist=4096", "once=8000"}
    built = compile("mlp", 4, cluster="cpu", plan="zero=3,persist=64").plan
    assert WORDS.refused(NamedPlan.parse("zero=3,persist=64")) == "`persist=64`"
    assert nearest(built, WORDS).plan == NamedPlan.parse("data=4,zero=3,micro_batch=8")


def test_a_dimension_without_effect_is_refused(dimensions):
    for text, sentence in (
        (
            "data=4,persist=9",
            "`persist=9` of the plan has no effect without `zero`; leave `persist`",
        ),
        ("zero=3,whole_loss", "`whole_loss` of the plan gathers words of tensor ranks, and it has"),
        ("whole_loss=2", "`whole_loss` of the plan has the value `2`, expected the word alone"),
        ("persist", "`persist` of the plan has no value; write `persist=...`"),
        ("zero=1,persist=1,persist=2", "the plan gives `persist` twice; give it once"),
    ):
        with pytest.raises(OptionError) as caught:
            NamedPlan.parse(text)
        assert str(caught.value).startswith(sentence)
    with pytest.raises(OptionError, match="`persist=1` of the plan changes nothing"):
        compile("mlp", 4, cluster="cpu", plan="zero=3,persist=1")
    with pytest.raises(OptionError, match="or `persist=9999999` leaves it whole; leave `zero` out"):
        compile("mlp", 4, cluster="cpu", plan="zero=3,persist=9999999")
    assert NamedPlan.parse("zero=1,persist=0,once=1000000000").text == "zero=1"
