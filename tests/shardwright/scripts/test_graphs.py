import numpy as np
import pytest

import shardwright as sw
import shardwright.dataset as ds
from shardwright import nn
from shardwright.ir.errors import OptionError


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


def test_a_wrong_level_is_refused(monkeypatch):
    monkeypatch.setenv("MS_DEV_SAVE_GRAPHS", "yes")
    with pytest.raises(OptionError, match="`MS_DEV_SAVE_GRAPHS` is `yes`, expected 0, 1, 2 or 3"):
        train()
