"""Micro-batches: a step in several passes computes what a step on the whole batch does."""

import pytest

from shardwright.api import compile
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.binding import rank_text
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.roofline import program_seconds
from shardwright.cost_model.timeline import serial_timeline, simulate
from shardwright.ir.errors import InfeasibleError, OptionError, ShardwrightError, ShardwrightWarning
from shardwright.ir.liveness import loop_of
from shardwright.ir.text import parse, to_text
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from shardwright.proof import UpdateRule, prove, prove_program
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.verification.comparison import random_batches, verify_plan
from shardwright.zoo import load
from tests.equivalence import assert_equal, trained
from tests.extent import ANY_PLAN, first, long_after
from tests.random_micro_batches import ADAM, CPU, random_step, random_steps
from tests.zoo_sizes import SMALL

RULE = UpdateRule("adam", ADAM.settings)
SERIAL = {"cluster": "cpu", "objective": "serial"}


# Each model and mode with two or with four, then with the other.
IN_PASSES = first(
    4,
    [
        (model, mode, (2, 4)[(turn + row + column) % 2])
        for turn in range(2)
        for row, model in enumerate(("mlp", "gpt", "llama"))
        for column, mode in enumerate(("auto_parallel", "data_parallel", "stand_alone"))
        if mode != "stand_alone" or model == "mlp" or turn
    ],
)


@pytest.mark.parametrize(("model", "mode", "passes"), long_after(3, IN_PASSES))
def test_plans_of_models(model: str, mode: str, passes: int) -> None:
    devices = 1 if mode == "stand_alone" else 4
    optimizer = "adam" if passes == 2 else "sgd"
    how = {"mode": mode, **(ANY_PLAN if mode == "auto_parallel" else {})}
    found = compile(
        SMALL[model], devices, micro_batches=passes, optimizer=optimizer, cluster="cpu", **how
    )
    assert loop_of(found.plan.program).passes == passes
    assert prove(found.plan).proven
    assert verify_plan(found.plan, 1).equal


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    first(
        3,
        [
            {"search": "fully_sharded", "loss_scale": 8.0},
            {"fusion": 1.0, "mode": "data_parallel"},
            {"mode": "semi_auto_parallel"},
            {"optimizer_parallel": True, **ANY_PLAN},
            {"loss_scale": 8.0, **ANY_PLAN},
        ],
    ),
    ids=str,
)
def test_other_options(options: dict[str, object]) -> None:
    model = SMALL["gpt"]
    found = compile(
        model, 8, micro_batches=2, optimizer="adam", cluster="a100-pod:figures=datasheet", **options
    )
    assert prove(found.plan).proven
    assert verify_plan(found.plan, 1).equal


@pytest.mark.long
def test_random_plans_of_random_programs() -> None:
    count = 0
    for _, graph, step in random_steps(24, 2):
        count += 1
        assert step.program_cost == pytest.approx(step.cost, rel=1e-9)
        assert step.counted_bytes <= peak_memory(step.program).peak_bytes * (1 + 1e-9)
        assert prove_program(graph, step.program, RULE).proven
        alone = CompileOptions(mode="stand_alone", optimizer=ADAM)
        assert_equal(trained(step.program), trained(compile_graph(graph, CPU, 1, alone).program))
    assert count > 12


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_random_plans_of_models(model: str, precision: str) -> None:
    graph, chosen = load(SMALL[model]).graph, set()
    for seed in range(2):
        step = random_step(graph, 4, seed, precision)
        decisions = step.decisions
        chosen |= {len(decisions.gathered_in_passes) > 0, len(decisions.reduced_in_passes) > 0}
        assert step.program_cost == pytest.approx(step.cost, rel=1e-9)
        peak = peak_memory(step.program).peak_bytes
        assert 0.7 * peak <= step.counted_bytes <= peak * (1 + 1e-9)
        if precision == "float32":
            assert prove_program(graph, step.program, RULE).proven
        assert parse(to_text(step.program)) == step.program
    assert chosen == {True}


@pytest.mark.long
def test_memory_falls_with_more_micro_batches_and_the_executor_agrees() -> None:
    peaks = []
    for passes in (1, 2, 4):
        model = "gpt:layers=2,hidden=16,heads=4,batch=16,sequence=32,vocabulary=50,dtype=float32"
        found = compile(model, 2, micro_batches=passes, mode="data_parallel", cluster="cpu")
        program, document = found.plan.program, found.plan.document
        communicator = LocalCommunicator(found.plan.mesh)
        (batch,) = random_batches(document.inputs, 1, 0)
        batch = {n: a.astype("float32") if a.dtype.kind == "f" else a for n, a in batch.items()}
        held = Executor(program, communicator).step(batch, initialize(program, 0, communicator))
        assert held.peak_bytes == pytest.approx(document.memory.peak_bytes, rel=0.03)
        peaks.append(document.memory.peak_bytes)
    assert peaks[1] < 0.7 * peaks[0]
    assert peaks[2] < 0.7 * peaks[1]


def test_the_timeline_runs_every_pass() -> None:
    found = compile(SMALL["gpt"], 4, micro_batches=4, mode="data_parallel", cluster="cpu")
    program, cpu = found.plan.program, found.cluster
    serial = serial_timeline(program, cpu)
    assert serial.step_seconds == pytest.approx(program_seconds(program, cpu), rel=1e-9)
    assert serial.peak_bytes == pytest.approx(peak_memory(program).peak_bytes, rel=1e-9)
    assert simulate(program, cpu).step_seconds <= serial.step_seconds
    assert {event.micro_batch for event in serial.events} == {0, 1, 2, 3}


def test_the_listing_of_a_rank_names_the_loop() -> None:
    found = compile(SMALL["mlp"], 2, micro_batches=2, mode="data_parallel", cluster="cpu")
    lines = rank_text(found.plan.program, 1).splitlines()
    assert lines[0] == "# rank 1 of 2 at x=1"
    assert lines[1].startswith("# `matmul_0` to `layer1.weight.grad.sum` run for each of the 2 ")
    (accumulation,) = (line for line in lines if line.startswith("  layer1.weight.grad.sum:"))
    assert "ranks" not in accumulation


REFUSED = {
    "mlp:batch=6": "the batch of 6 samples cannot be divided into equal parts: the program cannot "
    "run in 4 micro-batches",
}


@pytest.mark.parametrize("model", REFUSED)
def test_refusals(model: str) -> None:
    with pytest.raises(ShardwrightError) as refused:
        compile(model, 2, micro_batches=4, cluster="cpu")
    assert REFUSED[model] in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"micro_batches": 0},
            "`micro_batches` is 0, expected an integer of at least 1, or `search`",
        ),
        ({"micro_batches": 1.5}, "`micro_batches` is 1.5, expected an integer"),
        ({"micro_batches": "all"}, "`micro_batches` is the text `all`, expected an integer"),
        ({"micro_batches": "search", "plan": "data=2"}, "`micro_batches`"),
        (
            {"micro_batches": 2, "mode": "hybrid_parallel"},
            "`micro_batches` has no effect in the mode `hybrid_parallel`",
        ),
        (
            {"micro_batches": 2, "cost_model": "mindspore"},
            "the cost model `mindspore` prices no micro-batches, `micro_batches` is 2",
        ),
    ],
)
def test_wrong_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(ShardwrightError) as refused:
        CompileOptions(**options)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_an_optimizer_that_keeps_states() -> None:
    found = compile(
        *(SMALL["mlp"], 2),
        micro_batches=2,
        optimizer=Optimizer("momentum"),
        cluster="cpu",
        **ANY_PLAN,
    )
    assert verify_plan(found.plan, 3).equal


@pytest.mark.long
def test_the_number_of_micro_batches_is_searched() -> None:
    model = "gpt:layers=1,hidden=16,heads=4,batch=4,sequence=8,vocabulary=16,dtype=float32"
    at = {
        count: compile(model, 2, micro_batches=count, **SERIAL).plan.document for count in (1, 2, 4)
    }
    limit = at[1].memory.peak_bytes * 0.8
    free = compile(model, 2, micro_batches="search", **SERIAL).plan.document
    assert free.micro_batches_tried == (1, 2, 4)
    assert free.objective == min(document.objective for document in at.values())
    assert free.lower_bound == min(document.lower_bound for document in at.values())
    assert free.bound_covers.endswith("in 1, 2 or 4 micro-batches")
    tight = compile(
        model, 2, micro_batches="search", memory_limit=limit, effort=0.01, **SERIAL
    ).plan.document
    assert tight.memory.peak_bytes <= limit
    assert tight.objective >= free.objective
    for name in first(1, ("mixtral", "resnet18-cifar")):  # two micro-batches compute another step
        with pytest.warns(ShardwrightWarning, match="statistics of the batch"):
            other = compile(
                SMALL[name].replace("layers=2", "layers=1"),
                2,
                micro_batches="search",
                cluster="cpu",
                **ANY_PLAN,
            ).plan.document
        assert other.micro_batches_tried in ((), (1,))
        assert other.micro_batches == 1
    with pytest.raises(InfeasibleError, match="no plan fits"):
        compile(
            model, 2, micro_batches="search", cluster="cpu", objective="serial", memory_limit=1000
        )


@pytest.mark.parametrize("count", [2, "search"])
def test_the_name_of_the_axis_is_reserved(count):
    named = {"cluster": "cpu", "mesh": "micro=2,x=2", **ANY_PLAN}
    assert compile(SMALL["mlp"], 4, **named).plan.mesh.names == ("micro", "x")
    with pytest.raises(OptionError) as caught:
        compile(SMALL["mlp"], 4, micro_batches=count, **named)
    assert str(caught.value) == (
        "the mesh has an axis `micro`, the name of the axis that micro-batches are split over; "
        "give it another name"
    )


@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}], ids=str)
def test_a_mesh_of_a_program_in_micro_batches_is_not_one_of_ranks(options):
    how = {"cluster": "cpu", **ANY_PLAN}
    found = compile(SMALL["mlp"], 4, mesh="2x2", micro_batches=2, **how)
    with pytest.raises(OptionError) as caught:
        compile(SMALL["mlp"], 4, mesh=found.plan.mesh, **how, **options)
    assert str(caught.value) == (
        "`mesh` has the axis `micro`, which is run in time; pass `mesh.of_ranks`, and "
        "`micro_batches=2`"
    )
    ranks = found.plan.mesh.of_ranks
    again = compile(SMALL["mlp"], 4, mesh=ranks, micro_batches=2, **how)
    assert again.plan.mesh == found.plan.mesh


def test_what_is_broadcast_over_samples_costs_the_same_in_a_pass_of_one_sample() -> None:
    """Its gradient is a sum over one sample: in the search, which sees one pass, it is none."""
    sizes = "layers=1,hidden=8,heads=2,side=4,patch=2,classes=3,batch=2"
    found = compile(f"vit:{sizes}", 1, cluster="cpu", micro_batches=2, **ANY_PLAN)
    assert loop_of(found.plan.program).passes == 2
    assert verify_plan(found.plan, 1).equal
