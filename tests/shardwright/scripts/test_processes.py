import numpy as np
import pytest

from tests.shardwright.scripts.launching import needs_mpi, run

pytestmark = needs_mpi

HEAD = """
import os

import numpy as np
import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn, ops
from shardwright.communication import get_group_size, get_rank, init
from shardwright.parallel import AutoParallel

init()
rank, ranks = get_rank(), get_group_size()
random = np.random.default_rng(0)
x = random.normal(size=(16, 12)).astype(np.float32)
y = random.integers(0, 4, 16).astype(np.int32)


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(12, 8, activation="relu")
        self.second = nn.Dense(8, 4)

    def construct(self, x):
        return self.second(self.first(x))


net = Network()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)


def tell(losses):
    if os.environ.get("PMI_RANK", "0") == "0":
        print([float(loss).hex() for loss in losses])
"""
MODEL = """
dataset = ds.ArrayDataset({"x": x, "y": y}SHARDS).batch(SIZE)
network = AutoParallel(net, "MODE", devices=4, cluster="cpu", deterministic=DETERMINISTIC)
tell(sw.Model(network, loss_fn, optimizer).train(3, dataset))
"""
STEP = """
def forward(x, y):
    return loss_fn(net(x), y)


grad_fn = sw.value_and_grad(forward, None, net.trainable_params())


@sw.jit
def step(x, y):
    loss, grads = grad_fn(x, y)
    optimizer(grads)
    return loss


network = AutoParallel(step, "data_parallel", devices=4, cluster="cpu")
network.hsdp()
rows = slice(rank * 4, rank * 4 + 4) if OWN else slice(None)
tell([network(x[rows], y[rows]) for _ in range(3)])
tell(net.first.weight.asnumpy().ravel()[:3])
"""


def filled(code, **values):
    for name, value in values.items():
        code = code.replace(name, str(value))
    return HEAD + code


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto", "auto"])
def test_a_model_has_the_losses_of_one_process_to_the_bit(mode, tmp_path):
    code = filled(MODEL, SHARDS="", SIZE=8, MODE=mode, DETERMINISTIC=True)
    assert run(code, 4, tmp_path) == run(code, 1, tmp_path)


def test_the_fast_setting_has_the_losses_to_rounding(tmp_path):
    code = filled(MODEL, SHARDS="", SIZE=8, MODE="data_parallel", DETERMINISTIC=False)
    several, one = (
        [float.fromhex(loss) for loss in eval(run(code, ranks, tmp_path))] for ranks in (4, 1)
    )
    np.testing.assert_allclose(several, one, rtol=1e-6)


@pytest.mark.parametrize("mode", ["data_parallel", "auto"])
def test_a_dataset_in_shards_gives_every_process_its_own_batches(mode, tmp_path):
    code = filled(
        MODEL,
        SHARDS=", num_shards=ranks, shard_id=rank",
        SIZE=2,
        MODE=mode,
        DETERMINISTIC=True,
    )
    assert run(code, 4, tmp_path) == run(code, 1, tmp_path, SHARDWRIGHT_WORLD="4")


@pytest.mark.parametrize("own", [True, False])
def test_a_step_function_takes_whole_or_own_batches(own, tmp_path):
    several = run(filled(STEP, OWN=own), 4, tmp_path)
    assert several == run(filled(STEP, OWN=False), 1, tmp_path)


MANUAL = """
size = 16 // ranks


class Loss(nn.Cell):
    def __init__(self):
        self.loss = nn.CrossEntropyLoss()
        self.all_reduce = ops.AllReduce()

    def construct(self, logits, label):
        label = label[rank * size : rank * size + size]
        return self.all_reduce(self.loss(logits, label)) / ranks


class Cut(nn.Cell):
    def __init__(self, net):
        self.net = net

    def construct(self, x):
        return self.net(x[rank * size : (rank + 1) * size])


dataset = ds.ArrayDataset({"x": x, "y": y}).batch(16)
losses = sw.Model(Cut(net), Loss(), optimizer).train(3, dataset)
tell(losses)
"""


def test_a_program_written_by_hand_slices_by_the_number_of_its_process(tmp_path):
    several, one = (
        [float.fromhex(loss) for loss in eval(run(HEAD + MANUAL, ranks, tmp_path))]
        for ranks in (4, 1)
    )
    np.testing.assert_allclose(several, one, rtol=1e-6)


def test_ranks_are_numbers_to_print_and_to_branch_on(tmp_path):
    printed = run(HEAD + "print(f'{rank} of {ranks}', rank == 0, rank // 2)", 2, tmp_path)
    assert sorted(printed.splitlines()) == ["0 of 2 True 0", "1 of 2 False 0"]


TRAIN = "sw.Model(net, loss_fn, optimizer).train(1, ds.ArrayDataset({'x': x, 'y': y}).batch(8))"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            TRAIN,
            "2 processes were started together, and the network has no communication operator: "
            "each would train alone; start one process, or set a parallel mode",
        ),
        (
            "net = AutoParallel(net, 'stand_alone')\n" + TRAIN,
            "2 processes were started together, and each would train alone; start one process, or "
            "give the network to `AutoParallel`",
        ),
        (
            "net = AutoParallel(net, 'auto', devices=4)\n" + TRAIN,
            "the options say 4 devices, 2 processes were started; leave `devices` out",
        ),
        (
            "class Other(nn.Cell):\n"
            "    def __init__(self):\n"
            "        self.net = net\n"
            "    def construct(self, x):\n"
            "        return self.net(x) * 2 if rank else self.net(x)\n"
            "net = AutoParallel(Other(), 'auto')\n" + TRAIN,
            "the processes 0 and 1 trace different programs; a network may slice by its rank, it "
            "may not branch or compute with it",
        ),
        (
            "net = AutoParallel(net, 'auto', memory_limit=2**30 + rank)\n" + TRAIN,
            "the processes have different options: `memory_limit` is 1073741824 in process 0, and "
            "1073741825 in process 1; give all processes the same `memory_limit`",
        ),
        (
            "net = AutoParallel(net, 'auto')\n"
            + TRAIN.replace("optimizer)", "optimizer, seed=rank)"),
            "the processes have different options: `seed` is 0 in process 0, and 1 in process 1; "
            "give all processes the same `seed`",
        ),
        (
            "from shardwright.mindspore import set_seed\nset_seed(rank + 1)\n"
            "net = AutoParallel(net, 'data_parallel')\n" + TRAIN,
            "the processes have different options: `set_seed` is 1 in process 0, and 2 in process "
            "1; give all processes the same `set_seed`",
        ),
        (
            "net = AutoParallel(net, 'data_parallel' if rank else 'auto')\n" + TRAIN,
            "the processes have different options: `mode` is 'auto_parallel' in process 0, and "
            "'data_parallel' in process 1; give all processes the same `mode`",
        ),
        (
            "def batches():\n"
            "    yield x, y\n"
            "    yield (x, y) if rank else (x + 1, y)\n"
            "    yield x, y\n"
            "net = AutoParallel(net, 'auto')\n"
            "data = ds.GeneratorDataset(batches, ['x', 'y'])\n"
            "sw.Model(net, loss_fn, optimizer).train(1, data)",
            "the processes read different batches in step 2, which were equal before; seed what "
            "draws random numbers, or give the dataset `num_shards` and `shard_id`",
        ),
    ],
)
def test_processes_that_would_not_train_together_refuse(code, message, tmp_path):
    told = run(HEAD + code, 2, tmp_path, fails=True)
    assert any(f"rank {rank}: {message}\n" in told for rank in range(2))  # who is first ends all


FAST = """
x = AutoParallel(net, 'data_parallel').options.deterministic
print(x, AutoParallel(net, 'data_parallel', deterministic=True).options.deterministic)
"""


def test_the_launcher_sets_what_the_script_does_not(tmp_path):
    assert run(HEAD + FAST, 1, tmp_path) == "True True\n"
    assert run(HEAD + FAST, 1, tmp_path, SHARDWRIGHT_FAST="1") == "False True\n"


def test_an_error_in_one_process_ends_all(tmp_path):
    code = (
        HEAD
        + filled(MODEL, SHARDS="", SIZE=8, MODE="auto", DETERMINISTIC=True)
        .replace("devices=4", "devices=2")
        .removeprefix(HEAD)
        + "\nif rank: raise ValueError('planted')\nnet.first.weight.asnumpy()\n"
    )
    code += "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"
    assert "ValueError: planted" in run(code, 2, tmp_path, fails=True)


def test_an_error_before_the_first_step_ends_all(tmp_path):
    code = HEAD + "if rank: raise ValueError('planted')\nnet = AutoParallel(net, 'auto')\n" + TRAIN
    told = run(code, 2, tmp_path, fails=True)
    assert "ValueError: planted" in told


SCHEDULED = """
import shardwright.mindspore as ms
from shardwright.mindspore import nn as msnn

groups = [
    {"params": net.first.trainable_params(), "lr": msnn.CosineDecayLR(0.01, 0.2, 4)},
    {"params": net.second.trainable_params(), "weight_decay": 0.1},
]
optimizer = msnn.Adam(groups, msnn.piecewise_constant_lr([1, 3], [0.1, 0.02]))
step = msnn.TrainOneStepCell(msnn.WithLossCell(net, loss_fn), optimizer)
network = AutoParallel(step, "MODE", devices=4, cluster="cpu")
tell([network(x, y) for _ in range(4)])
rates = [float(rate.asnumpy()) for rate in optimizer.get_lr()]
tell([*net.first.weight.asnumpy().ravel()[:3], *rates])
"""


@pytest.mark.parametrize("mode", ["data_parallel", "auto"])
def test_rates_that_follow_the_step_are_those_of_one_process(mode, tmp_path):
    code = filled(SCHEDULED, MODE=mode)
    assert run(code, 4, tmp_path) == run(code, 1, tmp_path)
