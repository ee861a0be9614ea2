import numpy as np
import pytest

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.communication import world
from shardwright.ir.errors import OptionError, OutputError


def train(devices=2):
    net = nn.Dense(4, 3)
    data = ds.ArrayDataset({"x": np.ones((8, 4), np.float32), "y": np.zeros(8, np.int32)})
    network = sw.AutoParallel(net, "data_parallel", devices=devices, cluster="cpu")
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    return sw.Model(network, nn.CrossEntropyLoss(), optimizer).train(1, data.batch(8))


@pytest.mark.parametrize("prefix", ["SHARDWRIGHT", "MS_DEV"])
def test_a_script_writes_its_graphs_where_the_environment_asks(prefix, tmp_path, monkeypatch):
    monkeypatch.setenv(f"{prefix}_SAVE_GRAPHS", "2")
    monkeypatch.setenv(f"{prefix}_SAVE_GRAPHS_PATH", str(tmp_path))
    train()
    names = {path.name[3:] for path in (tmp_path / "rank_0").iterdir()}
    assert {"differentiate.ir", "append_optimizer.ir"} <= names
    for rank in (0, 1):
        text = (tmp_path / f"rank_{rank}" / "program.ir").read_text()
        assert text.startswith(f"# rank {rank} of 2 at x={rank}\n")
        assert "sgd_update" in text
    train()  # replaces what it wrote


def test_every_rank_of_a_program_written_by_hand_has_its_text(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS", "1")
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS_PATH", str(tmp_path))
    net = nn.Dense(4, 3)
    reduce = sw.ops.AllReduce()

    def loss(y, label):
        return reduce(nn.CrossEntropyLoss()(y, label)) / 2

    data = ds.ArrayDataset({"x": np.ones((8, 4), np.float32), "y": np.zeros(8, np.int32)})
    with world(2):
        sw.Model(net, loss, nn.SGD(net.trainable_params(), 0.1)).train(1, data.batch(8))
    for rank in (0, 1):
        text = (tmp_path / f"rank_{rank}" / "program.ir").read_text()
        assert text.startswith(f"# rank {rank} of 2 at world={rank}\n")


def test_a_file_of_another_kind_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS", "1")
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS_PATH", str(tmp_path))
    (tmp_path / "rank_1").mkdir()
    (tmp_path / "rank_1" / "program.ir").write_text("mine")
    with pytest.raises(OutputError, match="the program of rank 1"):
        train()
    assert (tmp_path / "rank_1" / "program.ir").read_text() == "mine"


def test_a_wrong_level_is_refused(monkeypatch):
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS", "yes")
    with pytest.raises(OptionError, match="`MS_DEV_SAVE_GRAPHS` is `yes`, expected 0, 1, 2 or 3"):
        train()
