"""Groups of ranks, lists and messages: the same losses in one process and in four."""

import pytest

from tests.shardwright.scripts.launching import needs_mpi, run

pytestmark = needs_mpi

SCRIPT = """
import os

import numpy as np
import shardwright.mindspore as ms
from shardwright.dataset import ArrayDataset
from shardwright.mindspore import nn, ops
from shardwright.mindspore.communication import create_group, get_group_size, get_rank, init

init()
ms.set_context(deterministic="ON")
rank, size = get_rank(), get_group_size()
GROUPS
create_group("columns", [rank % 2, rank % 2 + 2])
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
data = ArrayDataset({"x": x, "y": np.zeros(64, "int32")}).batch(16)


class Network(nn.Cell):
    def __init__(self):
        self.first, self.second = nn.Dense(8, 8), nn.Dense(8, 4)
        after, before = (rank + 1) % size, (rank + size - 1) % size
        self.around = ops.NeighborExchange([after], [before], [(4, 8)], [(4, 8)], "float32")
        self.rows = ops.AllGather(group="rows")

    def construct(self, x):
        part = x.shape[0] // size
        h = ops.tanh(self.first(x[rank * part : rank * part + part]))
        (h,) = self.around((h,))
        ops.Send(5, dest_rank=rank + 1)(h)
        ops.Barrier()()
        h = h + ops.Receive(5, rank - 1, (4, 8), "float32")()
        return self.second(self.rows(h))


class Loss(nn.Cell):
    def construct(self, y, label):
        return ops.AllReduce(group="columns")((y * y).sum()) / 16


net = Network()
model = ms.Model(net, loss_fn=Loss(), optimizer=nn.SGD(net.trainable_params(), 0.05))
losses = model.train(2, data)
if int(os.environ.get("PMI_RANK", "0")) == 0:
    print([float(loss).hex() for loss in losses or model.session.losses])
"""
TOGETHER = 'create_group("rows", [rank // 2 * 2, rank // 2 * 2 + 1])'
APART = """
if rank < 2:
    create_group("rows", [0, 1])
else:
    create_group("rows", [2, LAST])
"""


def test_one_process_and_four(tmp_path):
    script = SCRIPT.replace("GROUPS", TOGETHER)
    alone = run(script, 1, tmp_path, SHARDWRIGHT_WORLD="4")
    assert run(script, 4, tmp_path) == alone
    assert run(SCRIPT.replace("GROUPS", APART.replace("LAST", "3")), 4, tmp_path) == alone


@pytest.mark.parametrize(
    ("last", "what"),
    [
        ("1", "rank 0 is not in the group `rows`, which has the ranks [1, 2]"),
        ("9", "the group `rows` has rank 9, there are 4 ranks"),
    ],
)
def test_wrong_groups_end_all_processes(last, what, tmp_path):
    script = SCRIPT.replace("GROUPS", APART.replace("LAST", last))
    assert what in run(script, 4, tmp_path, fails=True)
