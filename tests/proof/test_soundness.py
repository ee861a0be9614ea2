"""Attacks: programs that differ in one thing that types, or a careless proof, would let pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shardwright.api import compile
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.graph import Node, renamed
from shardwright.ir.text import parse
from shardwright.ir.types import TensorType
from shardwright.operators.models.optimizer import Optimizer
from shardwright.proof import Proof, UpdateRule, prove, prove_program
from shardwright.tracing import Definition, InputSpec
from tests.extent import ANY_PLAN

GPT = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.2"
UNET = "unet:batch=1,side=64,width=8,depth=1"


@pytest.fixture(scope="module")
def plan() -> Plan:
    options: dict[str, Any] = {"mode": "data_parallel", "fusion": 64.0, "loss_scale": 8.0}
    return compile(GPT, 4, mesh="2x2", optimizer=Optimizer("adam"), **options).plan


@pytest.fixture(scope="module")
def halos() -> Plan:
    return compile(UNET, 8, cluster="cpu", **ANY_PLAN).plan


def nodes_of(plan: Plan, operator: str) -> list[Node]:
    return [node for node in plan.program if node.operator == operator]


def with_node(plan: Plan, old: Node, new: Node) -> Proof:
    nodes = tuple(new if node is old else node for node in plan.program)
    return prove(replace(plan, program=plan.program.with_nodes(nodes)))


def altered(plan: Plan, node: Node, **attributes: Any) -> Proof:
    return with_node(plan, node, replace(node, attributes={**node.attributes, **attributes}))


def test_the_plans_themselves_are_proven(plan: Plan, halos: Plan) -> None:
    assert prove(plan).proven
    assert prove(halos).proven


def test_the_key_of_another_dropout(plan: Plan) -> None:
    first, second, *_ = nodes_of(plan, "dropout")
    assert first.attributes["key"] != second.attributes["key"]
    proof = altered(plan, first, key=second.attributes["key"])
    assert (proof.proven, proof.first_failure) == (False, first.name)


def test_a_seed_of_the_backward_pass_that_is_not_the_loss_scale(plan: Plan) -> None:
    seed = next(n for n in nodes_of(plan, "fill") if n.attributes["value"] == 8.0)
    assert altered(plan, seed, value=4.0).proven is False


def test_a_loss_scale_that_is_not_divided_out(plan: Plan) -> None:
    scale = next(n for n in nodes_of(plan, "scale") if n.attributes["factor"] == 1 / 8)
    assert altered(plan, scale, factor=1.0).proven is False
    assert altered(plan, scale, factor=2.0**124).proven is False  # 1/8, modulo 2**127 - 1


def test_steps_that_are_counted_by_twos(plan: Plan) -> None:
    (count,) = (n for n in nodes_of(plan, "add_scalar") if n.name == "optimizer.step.next")
    proof = altered(plan, count, value=2)
    assert (proof.proven, proof.first_failure) == (False, "optimizer.step.next")


def test_buffers_whose_parts_change_places(plan: Plan) -> None:
    unpack = nodes_of(plan, "unpack")[0]
    shapes = unpack.attributes["shapes"]
    assert isinstance(shapes, tuple)
    alike = [i for i in range(len(shapes)) if shapes.count(shapes[i]) > 1]
    first, second = alike[0], next(i for i in alike[1:] if shapes[i] == shapes[alike[0]])
    results = list(unpack.results)
    results[first], results[second] = results[second], results[first]
    assert with_node(plan, unpack, replace(unpack, results=tuple(results))).proven is False
    pack = nodes_of(plan, "pack")[0]
    operands = list(pack.operands)
    operands[first], operands[second] = operands[second], operands[first]
    assert with_node(plan, pack, replace(pack, operands=tuple(operands))).proven is False


@pytest.mark.parametrize("attribute", ["learning_rate", "beta1", "beta2", "epsilon"])
def test_an_update_with_another_setting(plan: Plan, attribute: str) -> None:
    update = nodes_of(plan, "adam_update")[0]
    proof = altered(plan, update, **{attribute: 0.5})
    assert (proof.proven, proof.first_failure) == (False, update.name)


def test_states_of_another_parameter_of_its_shape(plan: Plan) -> None:
    updates = nodes_of(plan, "adam_update")
    one, other = next(
        (a, b)
        for i, a in enumerate(updates)
        for b in updates[i + 1 :]
        if a.results[0].type == b.results[0].type
    )
    operands = (*one.operands[:2], *other.operands[2:])
    proof = with_node(plan, one, replace(one, operands=operands))
    assert (proof.proven, proof.first_failure) == (False, one.name)


@pytest.mark.parametrize(
    ("attribute", "change"),
    [
        ("before", lambda n: n + 1),
        ("span", lambda n: n + 1),
        ("stride", lambda n: n + 1),
        ("windows", lambda n: n - 1),
        ("size", lambda n: n - 1),
        ("slices", lambda n: n // 2),
        ("dimension", lambda n: 5 - n),
        ("axes", lambda axes: tuple(reversed(axes))),
    ],
)
@pytest.mark.parametrize("operator", ["halo_exchange", "halo_sum"])
def test_a_halo_of_other_windows(
    halos: Plan, operator: str, attribute: str, change: Callable[[Any], Any]
) -> None:
    found = nodes_of(halos, operator)
    node = max(found, key=lambda n: len(n.attributes["axes"]))  # type: ignore[arg-type]
    value = change(node.attributes[attribute])
    if value == node.attributes[attribute]:
        pytest.skip("one axis has one order")
    assert altered(halos, node, **{attribute: value}).proven is False


def test_a_halo_that_is_not_added_up(halos: Plan) -> None:
    missing = nodes_of(halos, "halo_sum")[0]
    names = {missing.name: missing.operands[0]}
    nodes = tuple(renamed(node, names) for node in halos.program if node is not missing)
    proof = prove(replace(halos, program=halos.program.with_nodes(nodes)))
    assert proof.proven is False


# A small program, and what enters and leaves it

MODEL = """graph g {
  input a: f32[8, 4]
  input b: f32[8, 4]
  parameter w: f32[4, 4] {initializer='ones'}
  h: f32[8, 4] = matmul(a, w)
  d: f32[8, 4] = sub(h, b)
  q: f32[8, 4] = square(d)
  loss: f32[] = reduce_sum(q)
  largest: f32[] = reduce_max(h)
  return loss, largest
}
"""


@pytest.fixture(scope="module")
def small() -> Plan:
    graph = parse(MODEL)
    inputs = tuple(InputSpec(value.name, value.type) for value in graph.inputs)
    return compile(Definition(graph, inputs), 4, cluster="cpu", search="data_parallel").plan


def of(plan: Plan, **changes: Any) -> Proof:
    proof = prove(replace(plan, program=replace(plan.program, **changes)))
    assert proof.proven is False
    return proof


def test_inputs_in_the_place_of_each_other(small: Plan) -> None:
    assert prove(small).proven
    names = {"a": "b", "b": "a"}
    proof = of(small, nodes=tuple(renamed(node, names) for node in small.program))
    assert proof.reason is not None
    assert "differs from the model's" in proof.reason


def test_outputs_in_the_place_of_each_other(small: Plan) -> None:
    outputs = tuple(reversed(small.program.outputs))
    assert of(small, outputs=outputs).first_failure == outputs[0]
    assert of(small, outputs=outputs[:1]).reason == "1 outputs, the model has 2"


def test_a_parameter_too_many_and_one_of_another_type(small: Plan) -> None:
    (w,) = small.program.parameters
    more = replace(w, value=replace(w.value, name="more"))
    assert of(small, parameters=(w, more)).reason == "the model has no parameter `more`"
    trained = replace(w, attributes={**w.attributes, "trainable": False})
    assert of(small, parameters=(trained,)).first_failure == "w"
    wide = replace(w, value=replace(w.value, type=TensorType("float64", (4, 4))))
    assert of(small, parameters=(wide,)).proven is False


def test_updates_missing_too_many_or_to_the_old_value(small: Plan) -> None:
    assert of(small, updates=()).reason == "the program does not update `w`"
    twice = small.program.updates * 2
    assert of(small, updates=twice).reason == "`w` is updated twice"
    assert of(small, updates=(("w", "w"),)).reason == ("the update of `w` differs from the model's")


def test_a_gradient_that_is_left_partial(small: Plan) -> None:
    """Its update reads the sum, but what is called the gradient is a part of it."""
    reduced = next(n for n in small.program if n.name == "w.grad")
    assert reduced.operator == "all_reduce"
    names = {"w.grad": "w.sum"}
    operand = small.program.producers[reduced.operands[0]]
    part = replace(operand, results=(replace(operand.results[0], name="w.grad"),))
    whole = replace(
        reduced, operands=("w.grad",), results=(replace(reduced.results[0], name="w.sum"),)
    )
    nodes = tuple(
        part if n is operand else whole if n is reduced else renamed(n, names)
        for n in small.program
    )
    proof = of(small, nodes=nodes)
    assert (proof.first_failure, proof.reason) == (
        "w.grad",
        "the gradient `w.grad` is partial over ['x', 'y']",
    )


def test_slices_gathered_along_axes_in_another_order(small: Plan) -> None:
    """The layout tells the order: rows over x, then y, are not rows over y, then x."""
    text = """graph g on x=2 y=2 {
  input a: f32[8@x@y, 4]
  w: f32[8, 4]* = all_gather(a) {axes=('y', 'x'), dimension=0}
  return w
}
"""
    proof = prove_program(parse(MODEL), parse(text), UpdateRule())
    assert (proof.proven, proof.first_failure, proof.reason) == (
        False,
        "w",
        "all_gather: dimension 0 is split over ['x', 'y'], it must end with ['y', 'x']",
    )


def test_values_without_layouts_and_redistributions(small: Plan) -> None:
    first = small.program.nodes[0]
    bare = replace(first, results=tuple(replace(r, layout=None) for r in first.results))
    assert with_node(small, first, bare).proven is False
    reduced = next(n for n in small.program if n.operator == "all_reduce")
    proof = with_node(small, reduced, replace(reduced, operator="redistribute", attributes={}))
    assert (proof.proven, proof.reason) == (
        False,
        "`redistribute` does not keep the whole tensor",
    )


def test_communication_on_one_device_that_has_a_mesh() -> None:
    text = MODEL.replace("graph g {", "graph g on x=1 {").replace(
        "  d: f32", "  s: f32[8, 4] = send_receive(h) {axes=('x',), pairs=((0, 0),)}\n  d: f32"
    )
    proof = prove_program(parse(MODEL), parse(text), UpdateRule())
    assert (proof.proven, proof.reason) == (
        False,
        "`send_receive` moves a value that has no layout",
    )


def test_a_model_that_is_no_model(small: Plan) -> None:
    model = replace(small.model, outputs=("h", "largest"))
    proof = prove(replace(small, model=model))
    assert (proof.proven, proof.first_failure) == (None, None)
    assert proof.reason == (
        "the model has no training step on one device: the loss `h` is f32[8, 4], expected a real "
        "scalar"
    )
