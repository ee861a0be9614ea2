"""Dynamic loss scale: overflows skip a step and lower the scale, on every rank at once."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import shardwright as sw
from shardwright import nn
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ShardwrightError
from shardwright.ir.text import parse, parse_type, to_text
from shardwright.operators.info import operator_info, whole_kernel
from shardwright.operators.models.loss_scale import DynamicLossScale, loss_scale
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.proof import prove
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.train import DynamicLossScaleManager, FixedLossScaleManager, Model
from shardwright.verification.comparison import random_batches
from tests.extent import ANY_PLAN, first

LLAMA = "llama:layers=1,hidden=16,heads=2,kv_heads=1,inner=32,batch=4,sequence=8,vocabulary=32"
MLP = "mlp:batch=8,hidden=16"
PLACES = [
    {"devices": 1, "mode": "stand_alone"},
    {"devices": 4, "mesh": "2x2", "search": "fully_sharded"},
    {"devices": 4, "mode": "data_parallel"},
    {"devices": 2, "micro_batches": 2, **ANY_PLAN},
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "optimizer"),
    first(6, [(place, kind) for kind in ("adam", "sgd", "momentum") for place in PLACES]),
    ids=str,
)
def test_plans_are_right(place, optimizer):
    model = LLAMA if optimizer == "adam" else MLP
    plan = sw.compile(
        model, **place, precision="float16", optimizer=optimizer, loss_scale="dynamic"
    ).plan
    verdict = sw.verify(plan, 2)
    assert verdict.proof.proven, verdict.proof
    assert verdict.equal, verdict
    assert parse(to_text(plan.program)) == plan.program


def test_rounding_is_measured_below_the_overflow():
    how = {"precision": "float16", **ANY_PLAN}
    plan = sw.compile(MLP, 2, loss_scale=DynamicLossScale(2.0**30), **how).plan
    assert sw.verify(plan, 1).rounding.is_within
    plan = sw.compile(MLP, 2, loss_scale=2.0**30, **how).plan
    assert sw.verify(plan, 1).rounding.error == np.inf


def test_a_plan_says_its_scale(tmp_path):
    for given, text in (("dynamic", "dynamic"), (DynamicLossScale(8.0, 2.0, 5), "dynamic:8:2:5")):
        found = sw.compile(MLP, 2, precision="float16", loss_scale=given, **ANY_PLAN)
        found.write(tmp_path / "plan")
        read = sw.read_plan(tmp_path / "plan")
        assert read.document.loss_scale == text
        assert sw.verify(read, 1).is_right


def run_steps(place, steps, scale):
    plan = sw.compile(MLP, **place, precision="float16", optimizer="adam", loss_scale=scale).plan
    local = LocalCommunicator(plan.mesh)
    executor, state = Executor(plan.program, local), initialize(plan.program, 0, local)
    batch = next(random_batches(plan.document.inputs, 1, 0))
    seen = []
    for _ in range(steps):
        executor.step(batch, state)
        seen.append({name: parts[0].copy() for name, parts in state.items()})
    return seen


@pytest.mark.parametrize("place", PLACES[:3], ids=str)
def test_an_overflow_skips_the_step_and_lowers_the_scale(place):
    seen = run_steps(place, 14, DynamicLossScale(2.0**24, 4.0, 3))
    scales = [state["optimizer.loss_scale"].item() for state in seen]
    steps = [state["optimizer.step"].item() for state in seen]
    assert scales[0] == 2.0**22
    assert steps[0] == 0
    assert not seen[0]["layer1.weight.m"].any()
    for before, after in pairwise(seen):
        one, other = (state["optimizer.step"].item() for state in (before, after))
        changed = any((before[n] != after[n]).any() for n in before if n.endswith(".weight"))
        assert changed == (other == one + 1)
        if not changed:
            smaller = before["optimizer.loss_scale"] / 4
            assert after["optimizer.loss_scale"] == smaller
            assert after["optimizer.good_steps"] == 0
    assert steps[-1] >= 3
    assert any(b == 4 * a for a, b in pairwise(scales))  # after three good steps
    assert all(np.isfinite(a).all() for a in seen[-1].values())


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_an_overflow_of_float32_is_expected_too(micro_batches):
    scale, how = DynamicLossScale(2.0**127, 4.0, 3), {"micro_batches": micro_batches, **ANY_PLAN}
    plan = sw.compile(MLP, 2, loss_scale=scale, **how).plan
    local = LocalCommunicator(plan.mesh)
    executor, state = Executor(plan.program, local), initialize(plan.program, 0, local)
    batch = next(random_batches(plan.document.inputs, 1, 0))
    state.update([("layer1.weight", {r: a * 1e8 for r, a in state["layer1.weight"].items()})])
    executor.step(batch, state)  # no warning, which would be an error
    assert state["optimizer.loss_scale"][0] == 2.0**125


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((8.0, 1, 0), (8.0, 2, 1)),
        ((8.0, 2, 0), (16.0, 0, 1)),
        ((8.0, 2, 1), (4.0, 0, 0)),
        ((1.5, 0, 3), (1.0, 0, 0)),
        ((0.5, 0, 3), (0.5, 0, 0)),
        ((2.0**126, 2, 0), (2.0**127, 0, 1)),
        ((2.0**127, 2, 0), (2.0**127, 0, 1)),  # twice that is infinite, and would stay so
    ],
)
def test_the_next_scale(before, expected):
    types = [parse_type(kind)[0] for kind in ("f32[]", "i64[]", "i64[]")]
    info = operator_info("loss_scale_update", types, {"factor": 2.0, "window": 3})
    arrays = [np.asarray(x, d) for x, d in zip(before, ("f4", "i8", "i8"), strict=True)]
    assert tuple(found.item() for found in whole_kernel(info, *arrays)) == expected


def test_elements_that_are_not_finite_are_counted():
    array = np.array([[1, np.inf, 2], [-np.inf, np.nan, 65504]], np.float16)
    info = operator_info("count_nonfinite", [parse_type("f16[2, 3]")[0]], {})
    assert whole_kernel(info, array)[0] == 3


def test_a_lost_guard_is_refused():
    how = {"loss_scale": "dynamic", "optimizer": "adam", **ANY_PLAN}
    plan = sw.compile(LLAMA, 4, mesh="2x2", **how).plan
    program = plan.program
    counts = [n for n in program.nodes if n.operator == "count_nonfinite"]
    assert len(counts) == 12
    reduced = next(
        n for n in program.nodes if n.operator == "all_reduce" and n.provenance.role == "update"
    )
    assert prove(plan).proven
    for node in (reduced, *(n for n in program.nodes if n.operator == "to_partial")):
        without = program.replacing({node.name: node.operands[0]})
        assert prove(replace(plan, program=without)).proven is False
    for node in counts[1:3]:  # a gradient that is not counted
        other = replace(node, operands=counts[0].operands)
        nodes = tuple(other if n is node else n for n in program.nodes)
        assert prove(replace(plan, program=program.with_nodes(nodes))).proven is False


@pytest.mark.parametrize(
    ("scale", "told"),
    [
        (
            "dynamics",
            "`loss_scale` is the text `dynamics`, expected a positive number or `dynamic`",
        ),
        ("dynamic:1:2", "expected a positive number or `dynamic`"),
        ("dynamic:1:0.5:3", "`factor` is 0.5, expected a number of at least 1"),
        ("dynamic:8:2:0", "`window` is 0, expected an integer of at least 1"),
        (0, "`loss_scale` is 0, expected a number above 0 and below 3.40282e+38"),
        (1e39, "`loss_scale` is 1e+39, expected a number above 0 and below 3.40282e+38"),
        ("dynamic:1e39:2:2", "`initial` is 1e+39, expected a number above 0 and below 3.40282e+38"),
        (True, "`loss_scale` is True"),
        (None, "`loss_scale` is None"),
    ],
)
def test_wrong_scales(scale, told):
    with pytest.raises(ShardwrightError) as error:
        sw.compile(MLP, 2, loss_scale=scale)
    assert told in str(error.value)


def test_ranks_of_a_hand_written_program_do_not_skip_steps_alone():
    with pytest.raises(ShardwrightError, match="is not supported in the mode `hybrid_parallel`"):
        sw.compile(MLP, 1, mode="hybrid_parallel", loss_scale="dynamic")


def test_gradients_that_carry_another_scale():
    lines = (
        "graph g {",
        "  parameter w: f32[4]",
        "  l: f32[] = reduce_sum(w) {axis=None}",
        "  w.grad: f32[4] = identity(w)",
        "  return l, w.grad",
        "}",
    )
    update = AppendOptimizer(loss_scale="dynamic")
    with pytest.raises(ShardwrightError, match=r"no state `optimizer\.loss_scale`"):
        update.run(parse("\n".join(lines)))


def test_text_and_scale_are_inverse():
    for scale in (1.0, 1024.0, DynamicLossScale(), DynamicLossScale(3.7, 1.5, 9)):
        assert loss_scale(str(scale) if isinstance(scale, DynamicLossScale) else scale) == scale


class Network(nn.Cell):
    def __init__(self):
        self.layer1 = nn.Dense(8, 16)
        self.relu = nn.ReLU()
        self.layer2 = nn.Dense(16, 3)

    def construct(self, x):
        return self.layer2(self.relu(self.layer1(x)))


RANDOM = np.random.default_rng(0)
DATA = ArrayDataset(
    {"x": RANDOM.normal(size=(32, 8)).astype("f4"), "y": RANDOM.integers(0, 3, 32).astype("i4")}
).batch(16)


@pytest.mark.parametrize(
    "manager",
    [
        DynamicLossScaleManager(2.0**24, 2.0, 2),
        FixedLossScaleManager(128.0, drop_overflow_update=True),
    ],
)
def test_scripts_have_managers(manager):
    network = Network()
    rule = nn.Adam(network.trainable_params(), 1e-2)
    model = Model(network, nn.CrossEntropyLoss(), rule, amp_level="O2", loss_scale_manager=manager)
    losses = model.train(30, DATA)
    assert losses[-1] < 0.75 * losses[0]
    scale = model.session.state["optimizer.loss_scale"][0].item()
    fixed = isinstance(manager, FixedLossScaleManager)
    assert scale == 128.0 if fixed else scale < 2.0**24
    assert manager.get_drop_overflow_update()
