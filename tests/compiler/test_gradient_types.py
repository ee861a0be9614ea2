"""Gradients that are reduced, and accumulated over micro-batches, in float32."""

import pytest

from shardwright.api import compile
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.liveness import accumulates
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.precision import PRECISIONS
from shardwright.passes.apply_precision import ApplyPrecision
from shardwright.passes.group_statistics import GroupStatistics
from shardwright.planner.options import CompileOptions
from shardwright.proof import UpdateRule, prove, prove_program
from shardwright.proof.samples import run_samples
from shardwright.verification.comparison import verify_plan
from shardwright.zoo import load
from tests.extent import ANY_PLAN, crossed, first
from tests.random_micro_batches import ADAM, random_step
from tests.zoo_sizes import SMALL

WIDE = ("reduce_type", "accumulate_type")
RULE = UpdateRule("adam", ADAM.settings)


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "option"), first(4, crossed([("mlp", 2), ("mlp", 1), ("gpt", 2)], WIDE))
)
def test_plans(case: tuple[str, int], option: str) -> None:
    model, passes = case
    how = {"micro_batches": passes, "precision": "bfloat16", "optimizer": "adam", "cluster": "cpu"}
    plan = compile(SMALL[model], 4, **how, **{option: "float32"}, **ANY_PLAN).plan
    assert prove(plan).proven
    result = verify_plan(plan, 1)
    assert result.equal
    assert result.rounding is not None
    assert result.rounding.is_within
    assert run_samples(plan.program).first_difference is None
    assert parse(to_text(plan.program)) == plan.program
    assert type(plan.document).from_text(plan.document.to_text(), "plan.json") == plan.document
    axes = plan.mesh.in_time
    sums = [n.results[0].type.dtype for n in plan.program if accumulates(n, axes)]
    assert set(sums) == ({"float32"} if passes > 1 else set())
    names = [f"{p.name}.grad" for p in plan.model.parameters if p.trainable]
    gradients = {plan.program.values[name].type.dtype for name in names}
    assert gradients == {"float32" if option == "reduce_type" else "bfloat16"}
    if passes > 1:
        how |= {"plan": f"data=4,micro_batch={8 // 4 // passes}", "micro_batches": 1}
        wide, lower = (
            compile(SMALL[model], 4, **how, **types).plan.document.memory.by_kind["gradients"]
            for types in ({option: "float32"}, {})
        )
        assert lower < wide <= 2 * lower


@pytest.mark.long
@pytest.mark.parametrize("option", WIDE)
@pytest.mark.parametrize("model", ["mlp", "llama"])
def test_random_plans_cost_what_the_search_says(model: str, option: str) -> None:
    whole = ApplyPrecision(PRECISIONS["bfloat16"], **{option: "float32"}).run(
        load(SMALL[model]).graph
    )
    for passes in (1, 2):
        graph = GroupStatistics(passes).run(whole) if passes > 1 else whole
        step = random_step(graph, passes, seed=passes)
        assert step.program_cost == pytest.approx(step.cost, rel=1e-9)
        assert step.counted_bytes <= peak_memory(step.program).peak_bytes * (1 + 1e-9)
        assert prove_program(graph, step.program, RULE).proven


@pytest.mark.parametrize("option", WIDE)
def test_a_lost_conversion_is_refused(option: str) -> None:
    how = {"micro_batches": 2, "precision": "bfloat16", "mode": "data_parallel", "cluster": "cpu"}
    plan = compile(SMALL["mlp"], 2, **how, **{option: "float32"}).plan
    rule = UpdateRule("sgd", plan.document.optimizer.settings)
    assert prove_program(plan.model, plan.program, rule).proven
    lower = compile(SMALL["mlp"], 2, **how).plan.program
    refused = prove_program(plan.model, lower, rule)
    assert not refused.proven
    if option == "accumulate_type":
        assert refused.reason is not None
        assert refused.reason.endswith("in bfloat16, the model asks for float32")
    for node in plan.program:
        if node.operator == "convert":
            wrong = to_text(plan.program).replace(f"({node.name})", f"({node.operands[0]})")
            assert not prove_program(plan.model, parse(wrong), rule).proven


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reduce_type": "bfloat16"}, "`reduce_type` is `bfloat16`, expected lower or float32"),
        ({"accumulate_type": 1}, "`accumulate_type` is 1, expected lower or float32"),
        ({"reduce_type": "float32", "mode": "stand_alone"}, "`reduce_type` has no effect in the"),
        (
            {"accumulate_type": "float32", "mode": "hybrid_parallel"},
            "`accumulate_type` has no effect in the mode `hybrid_parallel`",
        ),
        (
            {"reduce_type": "float32", "cost_model": "mindspore"},
            "the cost model `mindspore` prices no gradients in another type",
        ),
    ],
)
def test_wrong_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(ShardwrightError) as refused:
        CompileOptions(**options)  # type: ignore[arg-type]
    assert message in str(refused.value)
