"""The proof closes on plans as they are compiled, and names the place where it fails."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api import compile, read_plan
from shardwright.compiler.plans.plan import Plan
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.types import TensorType
from shardwright.models import load_model
from shardwright.operators.builder import Builder
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.proof import prove
from shardwright.tracing import Definition, InputSpec
from tests.extent import ANY_PLAN, long_after

GPT = "gpt:layers=1,hidden=16,heads=2,batch=8,sequence=4,vocabulary=32,dropout=0.2,dtype=float32"
HYBRID = Path(__file__).parents[1] / "tools" / "hybrid_model.py"
SEARCHES = (
    "exact",
    "dynamic_programming",
    "recursive_programming",
    "sharding_propagation",
    "data_parallel",
    "tensor_parallel",
    "fully_sharded",
)


@pytest.mark.parametrize("search", long_after(3, SEARCHES))
def test_every_search_is_proven(search: str) -> None:
    proof = prove(compile(GPT, 4, mesh="2x2", search=search).plan)
    assert (proof.proven, proof.first_failure, proof.reason) == (True, None, None)


@pytest.mark.parametrize("mode", ["stand_alone", "data_parallel", "semi_auto_parallel"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_every_mode_and_optimizer_is_proven(mode: str, optimizer: str) -> None:
    devices = 1 if mode == "stand_alone" else 4
    plan = compile(GPT, devices, mode=mode, optimizer=Optimizer(optimizer), loss_scale=128.0).plan
    assert prove(plan).proven


@pytest.mark.parametrize("options", long_after(1, [{"fusion": 64.0}, {"optimizer_parallel": True}]))
def test_fused_and_split_updates_are_proven(options: dict[str, object]) -> None:
    plan = compile(GPT, 8, mode="data_parallel", **options).plan
    assert prove(plan).proven
    assert not options.get("fusion") or "pack" in {node.operator for node in plan.program}


@pytest.mark.parametrize(
    "model",
    long_after(
        1,
        [
            "unet:batch=1,side=64,width=8,depth=1",
            "resnet:layers=18,small=true,batch=8,side=32,width=8",
            "mixtral:layers=1,hidden=16,heads=2,kv_heads=2,inner=16,batch=8,sequence=4,vocabulary=32",
        ],
    ),
)
def test_halos_statistics_and_experts_are_proven(model: str) -> None:
    plan = compile(model, 4, cluster="cpu", **ANY_PLAN).plan
    assert prove(plan).proven


def test_a_hand_written_program_is_not_decided() -> None:
    proof = prove(compile(f"{HYBRID}:split_batch", 2, mode="hybrid_parallel").plan)
    assert (proof.proven, proof.first_failure) == (None, None)
    assert proof.reason == (
        "the program has no layouts: what each rank computes is written by hand, and only numbers "
        "can compare it with the model"
    )


def test_a_plan_that_was_read_is_proven(tmp_path: Path) -> None:
    compile(GPT, 8, **ANY_PLAN).write(tmp_path / "plan")
    plan = read_plan(tmp_path / "plan")
    assert prove(plan).proven
    assert plan.model == load_model(GPT).graph


# What is wrong is refused, and where


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile(GPT, 4, mesh="2x2", search="tensor_parallel", optimizer=Optimizer("adam")).plan


def edited(plan: Plan, change: Callable[[Node], Node]) -> Plan:
    return replace(plan, program=plan.program.with_nodes(tuple(map(change, plan.program.nodes))))


def first(graph: Graph, operator: str) -> Node:
    return next(node for node in graph if node.operator == operator)


def test_a_scale_that_differs(plan: Plan) -> None:
    target = first(plan.program, "dropout")
    wrong = replace(target, attributes={**target.attributes, "rate": 0.3})
    proof = prove(edited(plan, lambda node: wrong if node is target else node))
    assert (proof.proven, proof.first_failure) == (False, target.name)
    assert proof.reason == (
        f"the output `{plan.program.outputs[0]}` differs from the model's: it depends on "
        f"`{target.name}`, which the model lacks"
    )


def test_an_update_that_is_missing(plan: Plan) -> None:
    kept = tuple(update for update in plan.program.updates if update[0] != "optimizer.step")
    proof = prove(replace(plan, program=replace(plan.program, updates=kept)))
    assert (proof.proven, proof.first_failure, proof.reason) == (
        False,
        "optimizer.step",
        "the program does not update `optimizer.step`",
    )


def test_two_states_in_the_place_of_each_other(plan: Plan) -> None:
    name = next(p.name for p in plan.model.parameters)
    new = dict(plan.program.updates)
    new[f"{name}.m"], new[f"{name}.v"] = new[f"{name}.v"], new[f"{name}.m"]
    proof = prove(replace(plan, program=replace(plan.program, updates=tuple(new.items()))))
    assert (proof.proven, proof.first_failure) == (False, new[f"{name}.m"])
    assert proof.reason == f"the update of `{name}.m` differs from the model's"


def test_a_state_that_begins_otherwise(plan: Plan) -> None:
    parameters = tuple(
        replace(p, attributes={**p.attributes, "initializer": "ones"})
        if p.name == "optimizer.step"
        else p
        for p in plan.program.parameters
    )
    proof = prove(replace(plan, program=replace(plan.program, parameters=parameters)))
    assert (proof.proven, proof.first_failure) == (False, "optimizer.step")
    assert proof.reason == (
        "the parameter `optimizer.step` is i64[] [('initializer', 'ones'), ('trainable', False)], "
        "expected i64[] [('initializer', 'zeros'), ('trainable', False)]"
    )


def test_a_collective_that_is_missing(plan: Plan) -> None:
    missing = first(plan.program, "all_reduce")
    names = {missing.name: missing.operands[0]}
    nodes = tuple(renamed(node, names) for node in plan.program if node is not missing)
    proof = prove(replace(plan, program=replace(plan.program, nodes=nodes)))
    assert proof.proven is False
    assert proof.first_failure in plan.program.values
    assert proof.reason is not None
    assert "partial" in proof.reason or "layout" in proof.reason


def test_a_loss_that_is_left_partial() -> None:
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (64, 32))))
    w = build.parameter(Value("w", TensorType("float32", (32, 32))))
    h = build.emit("matmul", x, w)
    loss = build.emit("reduce_sum", build.emit("square", h))
    definition = Definition(build.graph("g", (loss.name,)), (InputSpec("x", x.type),))
    right = compile(definition, 4, cluster="cpu", mode="data_parallel").plan
    assert prove(right).proven
    last = next(n for n in right.program if n.name in right.program.outputs)
    assert last.operator == "all_reduce"
    program = replace(
        right.program,
        nodes=tuple(node for node in right.program if node is not last),
        outputs=last.operands,
    )
    proof = prove(replace(right, program=program))
    assert (proof.proven, proof.first_failure) == (False, last.operands[0])
    assert proof.reason == (
        f"the output `{last.operands[0]}` is partial over ['x', 'y'], expected a layout without "
        f"partial axes"
    )


def test_a_wrong_canonicalization(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that differ in their attributes alone are merged; the model as traced tells."""
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (8, 8))))
    w = build.parameter(Value("w", TensorType("float32", (8, 8))))
    h = build.emit("matmul", x, w)
    twice, often = build.emit("scale", h, factor=2.0), build.emit("scale", h, factor=5.0)
    loss = build.emit("reduce_sum", build.emit("square", build.emit("sub", twice, often)))
    definition = Definition(build.graph("g", (loss.name,)), (InputSpec("x", x.type),))
    right = Canonicalize.run

    def wrong(work: Canonicalize, graph: Graph) -> Graph:
        names = {often.name: twice.name}
        nodes = tuple(renamed(node, names) for node in graph if node.name != often.name)
        return right(work, graph.with_nodes(nodes))

    assert prove(compile(definition, 2, cluster="cpu").plan).proven
    monkeypatch.setattr(Canonicalize, "run", wrong)
    proof = prove(compile(definition, 2, cluster="cpu").plan)
    assert (proof.proven, proof.first_failure) == (False, "sub_0")


@pytest.mark.parametrize("operator", long_after(1, ["cast", "reshape", "reduce_sum"]))
def test_what_changes_nothing_is_no_other_term(operator: str) -> None:
    """A conversion to the same type, a reshape to the same shape and a sum may be repeated."""
    plan = compile(GPT, 8, precision="bfloat16", mode="data_parallel").plan
    nodes, names = [], dict[str, str]()
    for node in plan.program.nodes:
        nodes.append(renamed(node, names))
        is_whole = operator != "reduce_sum" or not node.results[0].type.rank
        if node.operator == operator and is_whole and node.name not in plan.program.outputs:
            again = replace(node.results[0], name=f"{node.name}.twice")
            nodes.append(replace(node, operands=(node.name,), results=(again,)))
            names[node.name] = again.name
    assert names
    assert prove(replace(plan, program=replace(plan.program, nodes=tuple(nodes)))).proven


def test_a_transpose_that_moves_elements_is_another_term() -> None:
    plan = compile(GPT, 8, mode="data_parallel").plan
    node = next(n for n in plan.program.nodes if n.operator == "transpose")
    for order, proven in (((0, 1, 2, 3), True), ((0, 2, 1, 3), False)):
        shape = tuple(node.results[0].type.shape[i] for i in order)
        kind = replace(node.results[0].type, shape=shape)
        again = replace(node.results[0], name="again", type=kind)
        more = replace(
            node, operands=(node.name,), results=(again,), attributes={"permutation": order}
        )
        changed = []
        for each in plan.program.nodes:
            changed.append(renamed(each, {node.name: "again"} if more in changed else {}))
            changed += [more] if each is node else []
        assert prove(replace(plan, program=replace(plan.program, nodes=tuple(changed)))).proven in (
            (True,) if proven else (False, None)
        )
