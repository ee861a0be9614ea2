"""LazyAdam: the rows of tables that a batch touches, and the optimizers under MindSpore's names."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright import nn, ops
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import OptionError
from shardwright.parallel import AutoParallel
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, TensorType, trace
from shardwright.train import Model
from tests.extent import ANY_PLAN

ROWS, WIDTH = 16, 4
IDS = np.array([[1, 3], [3, 5], [1, 1], [9, 5]], np.int32)
OTHERS = np.array([[1, 2], [2, 3], [0, 1], [5, 5]], np.int32)
BATCHES = ArrayDataset({"ids": np.concatenate([IDS, OTHERS])}).batch(4)
TABLE = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


class Network(nn.Cell):
    """The mean square of rows, so that the gradient of a row is known."""

    def __init__(self):
        self.table = Parameter(Tensor(TABLE))
        self.scale = Parameter(Tensor(np.ones(WIDTH, np.float32)))
        self.gather = ops.Gather()

    def construct(self, ids):
        rows = self.gather(self.table, ids, 0) * self.scale
        return (rows * rows).mean()


def state_after(make, mode=None, **options):
    network = Network()
    optimizer = make(network.trainable_params())
    how = {**options, **ANY_PLAN} if mode == "auto" else options
    whole = AutoParallel(network, mode, cluster="cpu", **how) if mode else network
    model = Model(whole, optimizer=optimizer)
    model.train(1, BATCHES)
    return model.session.values()


def lazily(table, scale, rate, decay):
    """Return table and states after both batches, row by row."""
    table, scale = table.astype(float), scale.astype(float)
    m, v = np.zeros_like(table), np.zeros_like(table)
    sm, sv = np.zeros_like(scale), np.zeros_like(scale)
    for step, ids in enumerate((IDS, OTHERS), 1):
        touched, counts = np.unique(ids, return_counts=True)
        share = 2 * counts[:, None] / (ids.size * WIDTH)
        grad = share * table[touched] * scale**2 + decay * table[touched]
        dscale = (share * table[touched] ** 2 * scale).sum(0) + decay * scale
        m[touched] = 0.9 * m[touched] + 0.1 * grad
        v[touched] = 0.999 * v[touched] + 0.001 * grad**2
        sm, sv = 0.9 * sm + 0.1 * dscale, 0.999 * sv + 0.001 * dscale**2
        now = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        table[touched] -= now * m[touched] / (np.sqrt(v[touched]) + 1e-8)
        scale = scale - now * sm / (np.sqrt(sv) + 1e-8)
    return {"table": table, "table.m": m, "table.v": v, "scale": scale}


@pytest.mark.parametrize(
    ("options", "decay"),
    [
        ({}, 0.0),
        ({}, 0.1),
        ({"mode": "data_parallel", "devices": 2}, 0.0),
        ({"mode": "auto", "devices": 4}, 0.1),
        ({"mode": "auto", "devices": 4, "optimizer_parallel": True}, 0.1),
        ({"mode": "auto", "devices": 4, "stages": 2, "micro_batches": 2}, 0.1),
    ],
)
def test_rows_that_no_batch_reads_keep_value_and_states(options, decay):
    found = state_after(lambda p: ms.nn.LazyAdam(p, 0.1, weight_decay=decay), **options)
    untouched = np.setdiff1d(np.arange(ROWS), np.concatenate([IDS, OTHERS]))
    np.testing.assert_array_equal(found["table"][untouched], TABLE[untouched])
    for state in ("table.m", "table.v"):
        assert not found[state][untouched].any()
    expected = lazily(TABLE, np.ones(WIDTH), 0.1, decay)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-7)


def test_rows_without_a_gradient_lose_value_under_adam():
    found = state_after(lambda p: ms.nn.Adam(p, 0.1))
    once = np.setdiff1d(IDS, OTHERS)  # touched by the first batch alone
    lazy = state_after(lambda p: ms.nn.Adam(p, 0.1, use_lazy=True))
    assert (found["table"][once] != lazy["table"][once]).all()


class Tied(Network):
    """Uses the table as a matrix too."""

    def construct(self, ids):
        return super().construct(ids) + (self.table * self.table).mean()


def test_a_table_that_is_read_whole_is_updated_whole():
    def lazy(network):
        rule = nn.LazyAdam(network.trainable_params())
        spec = InputSpec("ids", TensorType("int32", (4, 2)), ROWS)
        settings = trace(network, [spec], optimizer=rule).optimizer
        return {name: settings.settings_of(name)["lazy"] for name in ("table", "scale")}

    assert lazy(Network()) == {"table": True, "scale": False}
    assert lazy(Tied()) == {"table": False, "scale": False}


# MindSpore's arguments


class Normalized(nn.Cell):
    def __init__(self):
        self.dense = ms.nn.Dense(4, 4)
        self.norm = ms.nn.BatchNorm2d(4)


@pytest.mark.parametrize(
    ("make", "decay"),
    [
        (lambda p: ms.nn.Momentum(p, 0.1, 0.9, weight_decay=0.1), "weight_decay"),
        (lambda p: ms.nn.Adam(p, weight_decay=0.1), "l2"),
        (lambda p: ms.nn.AdamWeightDecay(p, weight_decay=0.1), "weight_decay"),
        (lambda p: ms.nn.SGD(p, weight_decay=0.1), "weight_decay"),
    ],
)
def test_scales_and_shifts_of_normalizations_do_not_decay(make, decay):
    network = Normalized()
    own = {p.name: settings for p, settings in make(network.trainable_params()).updates}
    left_out = {decay: 0.0}
    assert own == {
        "dense.weight": {},
        "dense.bias": {},
        "norm.gamma": left_out,
        "norm.beta": left_out,
    }
    grouped = make([{"params": network.trainable_params()}]).updates
    assert [settings for _, settings in grouped] == [{}] * 4
    plain = ms.nn.FTRL(network.trainable_params(), weight_decay=0.1).updates
    assert [settings for _, settings in plain] == [{}] * 4


WEIGHT = [Parameter("ones", shape=2)]
REFUSED = [
    (lambda: ms.nn.SGD(WEIGHT, dampening=1.1), "`dampening` is 1.1, expected a number of at"),
    (lambda: ms.nn.SGD(WEIGHT, momentum=0.9, dampening=0.1, nesterov=True), "`dampening` is 0.1"),
    (
        lambda: ms.nn.Momentum(WEIGHT, 0.1, 0.9, loss_scale=0),
        "`loss_scale` is 0, expected a number",
    ),
    (lambda: ms.nn.Adam(WEIGHT, use_nesterov=1), "`use_nesterov` is 1, expected True or False"),
    (lambda: ms.nn.Adam(WEIGHT, use_amsgrad=True, use_lazy=True), "`use_amsgrad` is True, expect"),
    (lambda: ms.nn.LazyAdam(WEIGHT, use_locking=True), "`use_locking` is True, expected False"),
    (lambda: ms.nn.RMSProp(WEIGHT, centered=1), "`centered` is 1, expected True or False"),
    (lambda: ms.nn.Adagrad(WEIGHT, update_slots=False), "`update_slots` is False, expected True"),
    (lambda: ms.nn.FTRL(WEIGHT, use_locking=0), "`use_locking` is 0, expected False"),
]


@pytest.mark.parametrize(("make", "expected"), REFUSED)
def test_other_arguments_are_refused(make, expected):
    with pytest.raises(OptionError) as caught:
        make()
    assert expected in str(caught.value)


def test_names_of_parameters_choose_groups():
    network = Normalized()
    names = [p.name for p in network.trainable_params() if "bias" not in p.name]
    assert names == ["dense.weight", "norm.gamma", "norm.beta"]
    assert [p.name for p in network.dense.trainable_params()] == ["dense.weight", "dense.bias"]
