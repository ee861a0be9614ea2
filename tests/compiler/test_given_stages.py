"""Pipelines with given stages: by a named plan, and by the cells of a model."""

import pytest

from shardwright import nn
from shardwright.api import compile
from shardwright.compilation import Compilation
from shardwright.compiler.plans.binding import bind_rank, rank_text
from shardwright.compiler.plans.files import read_plan, write_plan
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import InfeasibleError, ModelError, OptionError, ShardwrightWarning
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TensorType
from shardwright.planner.options import CompileOptions
from shardwright.proof import prove
from shardwright.tensor import Tensor
from shardwright.tracing import Definition, InputSpec, trace
from shardwright.verification.comparison import verify_plan
from tests.extent import ANY_PLAN, first, long_after
from tests.zoo_sizes import SMALL

GPT = "gpt:layers=4,hidden=16,heads=4,batch=8,sequence=6,vocabulary=50,dropout=0.1,dtype=float32"
LLAMA = SMALL["llama"].replace("layers=2", "layers=4")
MIXTRAL = SMALL["mixtral"].replace("layers=2", "layers=4")


def assert_right(found: Compilation, stages: int) -> None:
    program = found.plan.program
    assert program.stages == stages
    assert parse(to_text(program)) == program
    assert prove(found.plan).proven
    assert verify_plan(found.plan, 1).equal


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "devices", "plan", "options"),
    first(
        5,
        [
            (GPT, 8, "pipeline=4,data=2,micro_batch=1,zero=3,schedule=zero_bubble", {}),
            (GPT, 4, "pipeline=2,chunks=2,tensor=2,sequence_parallel,micro_batch=1", {}),
            (GPT, 4, "pipeline=2,data=2,micro_batch=2,recompute=full", {"loss_scale": "dynamic"}),
            (LLAMA, 4, "pipeline=2,tensor=2,micro_batch=2,schedule=gpipe", {"fusion": 64.0}),
            (MIXTRAL, 4, "pipeline=2,data=2,expert=2,micro_batch=2,zero=2", {}),
            (LLAMA, 2, "pipeline=2,micro_batch=4", {"precision": "bfloat16"}),
            (LLAMA, 4, "pipeline=4,micro_batch=4,recompute=selective", {"loss_scale": 8.0}),
            (
                GPT,
                8,
                "pipeline=2,tensor=2,data=2,zero=1,sequence_parallel,micro_batch=4",
                {"fusion": 64.0},
            ),
            (SMALL["resnet18-cifar"], 4, "pipeline=2", {}),
        ],
    ),
)
def test_named_plans_in_stages(model, devices, plan, options):
    found = compile(model, devices, plan=plan, cluster="cpu", optimizer="adam", **options)
    groups = int(plan.partition("pipeline=")[2][0])
    assert_right(found, groups * (2 if "chunks" in plan else 1))
    assert found.plan.document.how.startswith(("tensor=2,pipeline", "pipeline"))
    assert found.plan.document.lower_bound == 0


@pytest.mark.parametrize(
    ("model", "devices", "plan", "what"),
    [
        (GPT, 8, "pipeline=3", "degrees pipeline=3 does not divide the 8 devices"),
        (
            GPT,
            8,
            "pipeline=8",
            "the model has 4 repeated blocks, which cannot be divided between 8",
        ),
        (SMALL["mlp"], 4, "pipeline=2", "the model has no repeated blocks"),
        (GPT, 2, "pipeline=2,chunks=2,micro_batch=8", "needs a multiple of 2 micro-batches"),
    ],
)
def test_what_cannot_be_cut_is_refused(model, devices, plan, what):
    with pytest.raises(OptionError) as error:
        compile(model, devices, plan=plan, cluster="cpu")
    assert what in str(error.value)


def test_a_bound_of_all_stages_names_them():
    found = compile("two_matmul", 2, cluster="cpu", stages="search", **ANY_PLAN).plan.document
    assert found.meshes_tried == ("2", "1")
    covers = "on mesh 2 or 1 of 1 or 2 device groups"
    assert found.bound_covers == f"{covers}, of plans that send no partial sums between stages"


def test_a_pipeline_that_does_not_fit_is_refused():
    with pytest.raises(InfeasibleError) as error:
        compile(GPT, 2, plan="pipeline=2,micro_batch=1", cluster="cpu", memory_limit=20_000)
    assert "the program in 2 stages takes" in str(error.value)


def test_plans_of_pipelines_are_saved_and_listed(tmp_path):
    found = compile(GPT, 4, plan="pipeline=2,tensor=2,micro_batch=2", cluster="cpu")
    write_plan(tmp_path / "plan", found.plan)
    plan = read_plan(tmp_path / "plan")
    assert plan.program == found.plan.program
    assert plan.document.device_mesh == plan.program.mesh
    assert plan.document.bound_covers == "on mesh 2 for each of 2 device groups in 4 micro-batches"
    first, last = bind_rank(plan.program, 0), bind_rank(plan.program, 3)
    names = [{p.name for p in bound.parameters} for bound in (first, last)]
    assert "embedding.embedding_table" in names[0]
    assert "embedding.embedding_table" not in names[1]
    assert names[0] & names[1] == {"step"}
    assert names[0] | names[1] == {p.name for p in plan.program.parameters}
    sent = [n.name for n in first.nodes if n.operator == "transfer"]
    assert sent == [n.name for n in last.nodes if n.operator == "transfer"]
    assert "at stage=1 tensor=1" in rank_text(plan.program, 3)
    assert plan.document.communication["transfer"].count > 4


# Cells


class Block(nn.Cell):
    """A residual block."""

    def __init__(self, width: int) -> None:
        self.dense = nn.Dense(width, width)
        self.relu = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.relu(self.dense(x))


class Network(nn.Cell):
    """Blocks in stages, and a head."""

    def __init__(self, stages: tuple[int | None, ...]) -> None:
        self.blocks = nn.CellList([Block(16) for _ in stages])
        for block, stage in zip(self.blocks, stages, strict=True):
            if stage is not None:
                block.pipeline_stage = stage
        self.head = nn.Dense(16, 10)

    def construct(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def traced(*stages: int | None) -> Definition:
    inputs = [
        InputSpec("x", TensorType("float32", (8, 16))),
        InputSpec("y", TensorType("int32", (8,)), 10),
    ]
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return trace(Network(stages), inputs, loss_fn=loss)


@pytest.mark.parametrize(
    "options",
    long_after(
        2,
        first(
            4,
            [
                {"mode": "data_parallel", "micro_batches": 4},
                {"search": "fully_sharded", "micro_batches": 2, "precision": "bfloat16"},
                {"plan": "pipeline=2,micro_batch=2,zero=1"},
                {"mode": "semi_auto_parallel"},
                {"mode": "auto_parallel", "micro_batches": 2},
                {"micro_batches": 4, "precision": "float16", "loss_scale": "dynamic"},
            ],
        ),
    ),
    ids=str,
)
def test_cells_name_stages(options):
    found = compile(traced(0, None, 1, 1), 4, cluster="cpu", optimizer="adam", **options)
    assert_right(found, 2)
    homes = {
        p.name: p.value.layout.stage
        for p in found.plan.program.parameters
        if p.role == "weight" and p.value.layout is not None
    }
    assert homes["blocks.0.dense.weight"] == homes["blocks.1.dense.weight"] == 0
    assert homes["blocks.2.dense.weight"] == homes["head.weight"] == 1


def test_operators_before_and_between_cells_follow():
    assert traced(None, 0).graph.cuts == ()
    assert len(traced(None, 1, None, 2).graph.cuts) == 2


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ((0, 1, 0), "is in stage 0 and comes after `add_3`, which is in stage 1: stages must be"),
        ((1, 2), "no operator is in stage 0 of the 3 stages"),
        ((0, 2), "no operator is in stage 1 of the 3 stages"),
    ],
)
def test_wrong_stages_of_cells_are_refused(stages, what):
    with pytest.raises((OptionError, ModelError)) as error:
        traced(*stages)
    assert what in str(error.value)


@pytest.mark.parametrize("stage", [-1, 1.5, "a", True])
def test_a_stage_of_a_cell_is_a_number(stage):
    with pytest.raises(OptionError) as error:
        Block(4).pipeline_stage = stage
    assert "expected an integer of at least 0" in str(error.value)


@pytest.mark.parametrize(
    ("devices", "options", "what"),
    [
        (3, {}, "the 2 pipeline stages of the model do not divide the 3 devices"),
        (4, {"plan": "tensor=2"}, "and the plan has `pipeline=1` with 1 chunk; write `pipeline=2`"),
        (4, {"plan": "pipeline=4"}, "have 2 pipeline stages, and the plan has `pipeline=4`"),
        (4, {"mesh": "x=4"}, "the mesh x=4 has 4 ranks, each of the 2 device groups of the pipe"),
    ],
)
def test_stages_of_cells_that_fit_nothing_are_refused(devices, options, what):
    with pytest.raises(OptionError) as error:
        compile(traced(0, 1), devices, cluster="cpu", **options)
    assert what in str(error.value)


def test_one_device_runs_all_stages_with_a_warning():
    with pytest.warns(ShardwrightWarning, match="runs all pipeline stages"):
        found = compile(traced(0, 1), 1, mode="stand_alone", cluster="cpu")
    assert found.plan.program.stages == 0


@pytest.mark.parametrize(
    "options", [{"explain_search": True}, {"micro_batches": "search"}], ids=str
)
def test_configurations_are_not_searched_with_given_stages(options):
    with pytest.raises(OptionError) as error:
        compile(traced(0, 1), 16, cluster="cpu", **options)
    assert "are not searched for a model whose stages are given" in str(error.value)


def test_the_memory_is_that_of_the_step():
    found = compile(
        GPT, 8, plan="pipeline=2,data=4,zero=3,micro_batch=1", cluster="cpu", optimizer="adam"
    )
    memory, limit = found.compiled.memory, CompileOptions().memory_on(cluster("cpu"))
    timeline = simulate(found.plan.program, cluster("cpu"), limit)
    assert found.plan.document.objective == timeline.step_seconds
    assert memory.peak_bytes == timeline.peak_bytes == max(memory.by_group)
    assert sum(memory.by_kind.values()) == pytest.approx(memory.peak_bytes)
