"""Ranks with equal checkpoints, and ranks whose checkpoints a rank needs."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ModelError, OptionError, OutputError
from shardwright.mindspore import Parameter, Tensor, nn, ops
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.nn import Momentum, TrainOneStepCell
from shardwright.mindspore.parallel._utils import _infer_rank_list
from shardwright.mindspore.train.serialization import restore_group_info_list

pytestmark = pytest.mark.usefixtures("eight_ranks")


class Network(nn.Cell):
    def __init__(self, strategy):
        super().__init__()
        self.matmul = ops.MatMul().shard(strategy)
        self.weight = Parameter(Tensor(np.ones((16, 8)), "float32"), name="w")

    def construct(self, x):
        return self.matmul(x, self.weight)


@pytest.mark.parametrize(
    ("strategy", "sharded", "ranks"),
    [
        (((2, 1), (1, 4)), False, [1, 5]),
        (((8, 1), (1, 1)), False, [0, 1, 2, 3, 4, 5, 6, 7]),
        (((1, 1), (1, 8)), False, [5]),
        (((2, 1), (1, 4)), True, [5]),
    ],
)
def test_a_file_lists_the_ranks_with_the_same_slices(
    strategy, sharded, ranks, tmp_path, monkeypatch
):
    path = tmp_path / "groups.pb"
    monkeypatch.setenv("GROUP_INFO_FILE", str(path))
    config = {"parallel_optimizer_threshold": 0}
    ms.set_auto_parallel_context(
        enable_parallel_optimizer=sharded, parallel_optimizer_config=config
    )
    network = Network(strategy)
    step = TrainOneStepCell(network, Momentum(network.trainable_params(), 0.1, 0.9))
    _cell_graph_executor.compile(step, Tensor(np.ones((16, 16)), "float32"))
    assert restore_group_info_list(str(path)) == ranks


def test_ranks_are_numbered_by_the_slices_of_strategies(tmp_path, monkeypatch):
    path = tmp_path / "groups.pb"
    monkeypatch.setenv("GROUP_INFO_FILE", str(path))
    ms.set_auto_parallel_context(device_num=32)
    network = Network(((8, 1), (1, 4)))
    step = TrainOneStepCell(network, Momentum(network.trainable_params(), 0.1, 0.9))
    _cell_graph_executor.compile(step, Tensor(np.ones((16, 16)), "float32"))
    assert restore_group_info_list(str(path)) == [1, 5, 9, 13, 17, 21, 25, 29]


def test_the_context_names_the_file_too(tmp_path):
    path = tmp_path / "groups.pb"
    ms.set_auto_parallel_context(group_ckpt_save_file=str(path))
    _cell_graph_executor.compile(Network(None), Tensor(np.ones((16, 16)), "float32"))
    assert restore_group_info_list(str(path)) == [*range(8)]
    ms.set_auto_parallel_context(group_ckpt_save_file="")


def test_another_file_is_neither_read_nor_replaced(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text("a shopping list")
    monkeypatch.setenv("GROUP_INFO_FILE", str(path))
    with pytest.raises(OutputError, match="a file that is something else is there"):
        _cell_graph_executor.compile(Network(None), Tensor(np.ones((16, 16)), "float32"))
    assert path.read_text() == "a shopping list"
    with pytest.raises(ModelError, match="is no file of groups"):
        restore_group_info_list(str(path))
    with pytest.raises(ModelError, match="there is no such file of groups"):
        restore_group_info_list(str(tmp_path / "none"))
    with pytest.raises(OptionError, match="`group_info_file_name` is 3"):
        restore_group_info_list(3)


def test_ranks_whose_slices_are_needed():
    train = {"w": [[4, 2], [-1, 0]]}
    assert _infer_rank_list(train) == {"w": ([0, 1], False)}
    assert _infer_rank_list(train, train) == {"w": ([5], True)}
    assert _infer_rank_list(train, {"w": [[2], [-1, 0]]}) == {"w": ([1], True)}
    assert _infer_rank_list(train, {"w": [[2, 4], [-1, 1]]}) == {"w": ([1], True)}
    assert _infer_rank_list(train, {"w": [[2, 4], [-1, 0]]}) == {"w": ([0, 1], False)}
    assert _infer_rank_list(train, {"w": [[2, 4], [1, -1]]}) == {"w": ([0, 1], False)}
    assert _infer_rank_list(train, {"v": [[2], [-1, 0]]}) == {}
    assert _infer_rank_list({"w": [[2, 4], [1, 0]]}, {"w": [[2, 4, 1], [2, 1]]}) == {
        "w": ([5], True)
    }
