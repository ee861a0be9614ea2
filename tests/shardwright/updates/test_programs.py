"""AdamW, Muon and AdamW with states of 8 bits: ten steps on several ranks as on one, and proven."""

import numpy as np
import pytest

import shardwright as sw
from shardwright import AutoParallel, Model, nn
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.tensor import Tensor
from tests.extent import ANY_PLAN, crossed, first, long_after

GPT = "gpt:layers=1,hidden=64,heads=4,vocabulary=64,sequence=4,batch=8,dtype=float32"
MIXTRAL = (
    "mixtral:layers=1,hidden=32,heads=4,kv_heads=2,inner=48,batch=8,sequence=8,vocabulary=64,"
    "dtype=float32"
)
RULES = (
    "adamw:learning_rate=0.01",
    "muon:learning_rate=0.02,adamw_learning_rate=0.003",
    "adamw8bit:learning_rate=0.01",
    "lamb:learning_rate=0.01",
    "lars:learning_rate=0.5,weight_decay=0.01",
)
VARIANTS = (
    "amsgrad:learning_rate=0.01",
    "dampened:learning_rate=0.05,dampening=0.3",
    "centered:learning_rate=0.01,initial_square=1",
    "adam:learning_rate=0.01,nesterov=true",
)
TEN = {"plan": "tensor=2,zero=3,micro_batch=2", "precision": "bfloat16"}
PLANS = {
    "searched": ANY_PLAN,
    "zero 1": {"plan": "zero=1"},
    "dynamic scale": {"plan": "zero=2,micro_batch=1", "loss_scale": "dynamic"},
    "pipeline": {"plan": "pipeline=2,data=2,zero=1,micro_batch=2"},
}


def compiled(model, rule, **options):
    return sw.compile(model, 4, cluster="cpu", optimizer=rule, **options)


@pytest.mark.long
@pytest.mark.parametrize("rule", [*RULES, *VARIANTS])
def test_ten_steps_are_those_of_one_device(rule):
    compilation = compiled(GPT, rule, **TEN)
    assert sw.prove(compilation).proven
    assert sw.verify(compilation, steps=10).equal


@pytest.mark.long
@pytest.mark.parametrize(("rule", "plan"), first(len(PLANS), crossed(RULES[1:], PLANS)))
def test_steps_of_every_kind_of_plan_are_those_of_one_device(rule, plan):
    model = GPT.replace("layers=1", "layers=2") if plan == "pipeline" else GPT
    compilation = compiled(model, rule, **PLANS[plan])
    assert sw.prove(compilation).proven
    assert sw.verify(compilation, steps=2).equal


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES[1:])
def test_experts_on_several_ranks(rule):
    compilation = compiled(MIXTRAL, rule, plan="expert=2,zero=3")
    assert sw.prove(compilation).proven
    assert sw.verify(compilation, steps=2).equal


def test_muon_gathers_whole_matrices_and_each_rank_takes_its_part():
    program = compiled(GPT, "muon", plan="zero=1").plan.program
    weight = "blocks.0.attention.projection.weight"
    own = [n for n in program.nodes if n.provenance.tensor == weight]
    updates = [n.operator for n in own if n.provenance.role == "update"]
    assert updates == [
        "muon_direction",
        "all_gather",
        "orthogonalize",
        "local_slice",
        "muon_update",
    ]
    assert next(n for n in own if n.operator == "orthogonalize").results[0].type.dtype == "bfloat16"


def test_states_of_8_bits_take_a_quarter_of_the_memory():
    plans = {rule: compiled(GPT, rule, plan="zero=0") for rule in ("adamw", "adamw8bit", "muon")}
    taken = {n: p.compiled.memory.by_kind["optimizer states"] for n, p in plans.items()}
    assert 0.25 < taken["adamw8bit"] / taken["adamw"] < 0.3
    assert 0.5 < taken["muon"] / taken["adamw"] < 0.6


@pytest.mark.parametrize(("rule", "states"), [("amsgrad", 3), ("dampened", 1), ("centered", 3)])
def test_memory_has_the_states_of_a_rule(rule, states):
    taken = compiled(GPT, rule, plan="zero=0").compiled.memory.by_kind
    assert taken["optimizer states"] == pytest.approx(states * taken["parameters"], abs=8)


def test_a_parameter_whose_parts_would_cut_blocks_is_updated_in_larger_ones():
    network = "mlp:batch=8,inputs=48,hidden=96,classes=48"  # 48 rows are 3 blocks of 16
    compilation = compiled(network, "adamw8bit", plan="zero=3")
    assert sw.prove(compilation).proven
    assert sw.verify(compilation, steps=2).equal
    states = {p.name: p.value.layout for p in compilation.plan.program.parameters}
    assert "layer2.weight.m_scale" in states


class Network(nn.Cell):
    def __init__(self):
        self.first, self.relu = nn.Dense(16, 64), nn.ReLU()
        self.hidden, self.last = nn.Dense(64, 64), nn.Dense(64, 3)

    def construct(self, x):
        return self.last(self.relu(self.hidden(self.relu(self.first(x)))))


RANDOM = np.random.default_rng(0)
DATA = ArrayDataset(
    {
        "x": RANDOM.standard_normal((16, 16)).astype(np.float32),
        "y": RANDOM.integers(0, 3, 16).astype(np.int32),
    }
).batch(8)


def losses(make, devices):
    network = Network()
    rule = make(network.trainable_params())
    whole = AutoParallel(network, "auto", devices=devices, **ANY_PLAN) if devices > 1 else network
    return Model(whole, nn.CrossEntropyLoss(), rule).train(5, DATA)


@pytest.mark.parametrize(
    "make",
    long_after(
        2,
        [
            nn.AdamW,
            nn.AdamW8bit,
            lambda p: nn.Muon(p, 0.02, adamw_learning_rate=0.001, product_type="float32"),
            lambda p: nn.Muon([{"params": p[:2], "optimizer": "adam"}, {"params": p[2:]}], 0.02),
        ],
    ),
)
def test_networks_train_with_them(make):
    alone, four = losses(make, 1), losses(make, 4)
    assert alone[-1] < alone[0]
    np.testing.assert_allclose(four, alone, rtol=2e-3)


def test_muon_outside_of_a_step_is_refused():
    network = Network()
    rule = nn.Muon(network.trainable_params())
    with pytest.raises(ModelError) as caught:
        rule([Tensor(np.zeros(p.shape, np.float32)) for p in network.trainable_params()])
    assert str(caught.value) == (
        "`Muon` is applied outside of a training step, where it does not know which parameters are "
        "hidden matrices; write `@jit` before the function that calls it, or use `AdamW`"
    )


def test_muon_of_a_vector_is_refused():
    own = {"blocks.0.layernorm1.gamma": {"optimizer": "muon"}}
    with pytest.raises(ShardwrightError) as caught:
        compiled(GPT, Optimizer("muon", {}, own))
    assert str(caught.value) == (
        "`muon` updates matrices, and `blocks.0.layernorm1.gamma` has the shape [64]; let `adam` "
        "update it: `overrides={'blocks.0.layernorm1.gamma': {'optimizer': 'adam'}}`"
    )
