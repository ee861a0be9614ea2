import os
import signal

import numpy as np
import pytest

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.ir.errors import ModelError, OptionError, OutputError, PlanError
from shardwright.parallel import AutoParallel
from shardwright.train import Callback, Checkpoints
from tests.extent import long_after
from tests.shardwright.scripts.launching import needs_mpi, run

pytest.importorskip("safetensors")
EPOCHS, BATCHES = 3, 5


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(6, 8, activation="relu")
        self.dropout = nn.Dropout(p=0.2)
        self.second = nn.Dense(8, 3)

    def construct(self, x):
        return self.second(self.dropout(self.first(x)))


def rows():
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCHES * 8, 6)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(np.int32)


def drawn():
    """Return samples that code draws from numpy's global generator, when they are read."""
    x, y = rows()
    return [(a + np.random.normal(size=6).astype(np.float32), b) for a, b in zip(x, y, strict=True)]


class Indexed:
    def __len__(self):
        return BATCHES * 8

    def __getitem__(self, i):
        x, y = rows()
        return x[i] * np.float32(np.random.uniform(0.5, 2)), y[i]


def array_data():
    x, y = rows()
    return ds.ArrayDataset({"x": x, "y": y}, shuffle=True)


DATA = {
    "arrays": array_data,
    "shuffled": lambda: array_data().shuffle(7),
    "repeated": lambda: array_data().take(20).repeat(2),
    "fewer": lambda: array_data().take(16),
    "generator": lambda: ds.GeneratorDataset(drawn, ["x", "y"]),
    "indexed": lambda: ds.GeneratorDataset(Indexed(), ["x", "y"], shuffle=True),
    "mapped": lambda: array_data().map(lambda x: x + np.float32(np.random.normal()), "x"),
}


class StopError(Exception):
    pass


class StopAfter(Callback):
    """Ends the process's training as a kill would: nothing after it is run."""

    def __init__(self, step):
        self.step = step

    def step_end(self, run_context):
        if run_context.total_steps == self.step:
            raise StopError


def train(data, callbacks=(), mode="data_parallel", devices=1, optimizer="adam", epochs=EPOCHS):
    np.random.seed(3)
    net = Network()
    parameters = net.trainable_params()
    update = {
        "adam": lambda: nn.Adam(parameters, 0.01),
        "momentum": lambda: nn.Momentum(parameters, 0.1, 0.9),
    }[optimizer]()
    network = AutoParallel(net, mode, devices=devices) if devices > 1 else net
    model = sw.Model(network, nn.CrossEntropyLoss(), update)
    losses = model.train(epochs, DATA[data]().batch(8), list(callbacks))
    return losses, net.first.weight.asnumpy().tobytes()


@pytest.mark.parametrize("data", long_after(3, sorted({*DATA} - {"fewer"})))
def test_a_broken_run_goes_on_with_the_bits_of_the_unbroken_one(data, tmp_path):
    devices = 2 if data == "arrays" else 1
    losses, weight = train(data, devices=devices)
    for stop in (BATCHES, BATCHES + 2):
        folder = tmp_path / str(stop)
        with pytest.raises(StopError):
            train(data, [Checkpoints(folder, every=1), StopAfter(stop)], devices=devices)
        found, end = train(data, [Checkpoints(folder, 4, resume=True)], devices=devices)
        assert found == losses[stop:]
        assert end == weight


def test_nothing_is_left_of_a_run_that_ended(tmp_path):
    _, weight = train("arrays", [Checkpoints(tmp_path)], devices=1)
    resumed = train("arrays", [Checkpoints(tmp_path, resume=True)], devices=1)
    assert resumed == ([], weight)  # the network has what it learned


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_another_mode_and_number_of_devices_goes_on(optimizer, tmp_path):
    losses, _ = train("arrays", optimizer=optimizer)
    with pytest.raises(StopError):
        train("arrays", [Checkpoints(tmp_path, 2), StopAfter(7)], devices=2, optimizer=optimizer)
    found, _ = train("arrays", [Checkpoints(tmp_path, 2, resume=True)], "semi_auto", 4, optimizer)
    np.testing.assert_allclose(found, losses[6:], rtol=1e-5)


def test_a_batch_of_another_shape_at_the_end_of_an_epoch(tmp_path):
    def trained(callbacks=()):
        x, y = rows()
        net = Network()
        dataset = ds.ArrayDataset({"x": x, "y": y}).batch(16, drop_remainder=False)
        model = sw.Model(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.01))
        return model.train(3, dataset, list(callbacks))

    losses = trained()
    for stop in (2, 3, 4):
        folder = tmp_path / str(stop)
        with pytest.raises(StopError):
            trained([Checkpoints(folder, 1), StopAfter(stop)])
        assert trained([Checkpoints(folder, 1, resume=True)]) == losses[stop:]


class Kill(Callback):
    def __init__(self, number, step):
        self.number, self.step = number, step

    def step_begin(self, run_context):
        if run_context.total_steps == self.step - 1:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_an_interrupt_ends_the_step_and_saves(number, error, tmp_path):
    losses, weight = train("arrays")
    before = signal.getsignal(number)
    checkpoints = Checkpoints(tmp_path, every=0)
    with pytest.raises(error):
        train("arrays", [checkpoints, Kill(number, 4)])
    assert checkpoints.latest == tmp_path / "step-4"
    assert signal.getsignal(number) is before
    found = train("arrays", [Checkpoints(tmp_path, every=0, resume=True)])
    assert found == (losses[4:], weight)


def test_signals_are_given_back_after_an_error(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StopError):
        train("arrays", [Checkpoints(tmp_path), StopAfter(1)])
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_restart_goes_on_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_RESTART", "1")
    losses, _ = train("arrays")
    assert train("arrays", [Checkpoints(tmp_path, 4)])[0] == losses  # there is none yet
    monkeypatch.delenv("SHARDWRIGHT_RESTART")
    with pytest.raises(OutputError, match="those of another training run are there"):
        train("arrays", [Checkpoints(tmp_path, 4)])
    path = tmp_path / "step-8"
    assert train("arrays", [Checkpoints(tmp_path / "b", resume=path)])[0] == losses[8:]


def test_a_run_is_continued_on_its_own_data(tmp_path):
    train("arrays", [Checkpoints(tmp_path, keep=0)])
    resumed = [Checkpoints(tmp_path, resume=True)]
    with pytest.raises(PlanError) as caught:
        train("fewer", resumed)
    assert caught.value.what == (
        "the run had the data `5 batches of x, y`, and is to be continued with `2 batches of x, y`"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"directory": 3}, OptionError, "`directory` is 3, expected the path of a folder"),
        ({"every": -1}, OptionError, "`every` is -1, expected an integer of at least 0"),
        ({"every": 1.5}, OptionError, "`every` is 1.5, expected an integer of at least 0"),
        ({"seconds": -1}, OptionError, "`seconds` is -1, expected a number of at least 0"),
        ({"keep": -2}, OptionError, "`keep` is -2, expected an integer of at least 0"),
        ({"asynchronous": 1}, OptionError, "`asynchronous` is 1, expected True or False"),
        ({"resume": 2}, OptionError, "`resume` is 2, expected True, False, or the path of a check"),
        ({"resume": "nowhere"}, PlanError, "there is no such checkpoint"),
    ],
)
def test_wrong_arguments(arguments, error, message, tmp_path):
    with pytest.raises(error) as caught:
        train("arrays", [Checkpoints(**{"directory": tmp_path, **arguments})])
    assert caught.value.what.startswith(message)


def test_two_of_them_are_refused(tmp_path):
    with pytest.raises(ModelError, match="2 callbacks `Checkpoints` are given, expected one"):
        train("arrays", [Checkpoints(tmp_path / "a"), Checkpoints(tmp_path / "b")])


SCRIPT = """
import numpy as np
import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.communication import get_group_size, get_rank, init
from shardwright.parallel import AutoParallel
from shardwright.train import Callback, Checkpoints

init()
random = np.random.default_rng(0)
x = random.normal(size=(40, 6)).astype(np.float32)
data = ds.ArrayDataset({"x": x, "y": (x.sum(1) > 0).astype(np.int32)}, get_group_size(), get_rank())
net = nn.SequentialCell(nn.Dense(6, 8, activation="relu"), nn.Dense(8, 3))
network = AutoParallel(net, "data_parallel", cluster="cpu")
network.hsdp()
model = sw.Model(network, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.01))


class Break(Callback):
    def step_end(self, run):
        if run.total_steps == STOP:
            run.request_stop()


callbacks = [Checkpoints("checkpoints", every=1, resume=RESUME), Break()]
found = model.train(3, data.batch(4), callbacks)
if int(get_rank()) == 0:
    print([loss.hex() for loss in found])
"""


@needs_mpi
def test_processes_go_on_from_their_slices(tmp_path):
    def printed(stop, resume, folder):
        code = SCRIPT.replace("STOP", str(stop)).replace("RESUME", str(resume))
        return eval(run(code, 2, folder))

    unbroken = tmp_path / "unbroken"
    unbroken.mkdir()
    losses = printed(0, False, unbroken)
    assert len(losses) == 15
    assert printed(7, False, tmp_path) == losses[:7]
    assert printed(0, True, tmp_path) == losses[7:]
    names = {path.name for path in (tmp_path / "checkpoints" / "step-15").iterdir()}
    assert {"rank.0.safetensors", "rank.1.safetensors", "manifest.json"} <= names
