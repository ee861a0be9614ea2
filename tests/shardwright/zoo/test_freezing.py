"""Parameters that are not trained: no gradient, no state, no product for one."""

import pytest

from shardwright.api import compile
from shardwright.cost_model.model_flops import model_flops
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.errors import ModelError
from shardwright.zoo.loading import load
from shardwright.zoo.tuning.freezing import frozen
from tests.equivalence import assert_equal, trained
from tests.extent import long_after

GPT = "gpt:layers=2,hidden=16,heads=2,batch=4,sequence=8,vocabulary=32"
HIGHS = {"tokens": 32, "labels": 32}


def names(model: str) -> set[str]:
    return {p.name for p in load(model).graph.parameters if p.trainable}


def test_a_pattern_is_of_names_or_of_what_they_are_in() -> None:
    whole, left = names(GPT), names(f"{GPT},freeze=blocks.0")
    assert whole - left == {name for name in whole if name.startswith("blocks.0.")}
    norms = whole - names(f"{GPT},freeze=*.layernorm1.*")
    assert norms == {name for name in whole if ".layernorm1." in name} != set()


@pytest.mark.parametrize(
    "plan", long_after(1, ["data=4,zero=3", "tensor=2,data=2", "data=2,pipeline=2"])
)
def test_a_plan_trains_what_is_left_as_one_device(plan: str) -> None:
    model = f"{GPT},freeze=blocks.0+*.layernorm1.*"
    alone = compile(load(model), 1, optimizer="adam", precision="float32").plan.program
    program = compile(load(model), 4, plan=plan, optimizer="adam", precision="float32").plan.program
    found, whole = (trained(one, 1, HIGHS) for one in (program, alone))
    assert_equal({n: x for n, x in found.items() if n in whole}, whole)
    left = names(model)
    assert {p.name for p in program.parameters if gradient_name(p.name) in program.values} == left
    assert {p.weight for p in program.parameters if p.weight} == left


def test_no_product_is_counted_whose_gradient_nothing_asks_for() -> None:
    whole, first = load(GPT), load(f"{GPT},freeze=blocks.0")
    matrices = [p.value.type for p in first.graph.parameters if not p.trainable]
    tokens = 4 * 8
    left_out = sum(2 * tokens * kind.elements for kind in matrices if kind.rank == 2)
    assert model_flops(whole.graph).total - model_flops(first.graph).total == left_out


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "*",
            "`freeze` leaves none of the 28 parameters to train; name fewer of them",
        ),
        ("blocks.7", "`freeze` has `blocks.7`, which is of no trained parameter of the model"),
        ("", "`freeze` has ``, which is of no trained parameter of the model"),
        ("blocks.0,freeze=blocks.1", "the size `freeze` of `gpt` is given twice; give it once"),
    ],
)
def test_what_freezes_nothing_or_all_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        load(f"{GPT},freeze={pattern}")
    assert str(error.value).startswith(message)


def test_a_definition_is_frozen_as_a_name() -> None:
    definition = frozen(load(GPT), ["blocks.0"])
    assert {p.name for p in definition.graph.parameters if p.trainable} == names(
        f"{GPT},freeze=blocks.0"
    )
