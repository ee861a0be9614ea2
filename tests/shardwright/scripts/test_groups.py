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
# Rank 0 sends nothing, and rank 3 receives nothing.
sent = [rank * (i + 1) % 4 // 2 for i in range(size)]
received = [(rank + 1) * i % 4 // 2 for i in range(size)]
LISTS
create_group("columns", [rank % 2, rank % 2 + 2])
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
data = ArrayDataset({"x": x, "y": np.zeros(64, "int32")}).batch(16)


class Network(nn.Cell):
    def __init__(self):
        self.first, self.second = nn.Dense(8, 8), nn.Dense(8, 4)
        after, before = (rank + 1) % size, (rank + size - 1) % size
        self.around = ops.NeighborExchange([after], [before], ([4, 8],), ([4, 8],), "float32")
        self.rows, self.runs = ops.AllGather(group="rows"), ops.AlltoAllV(block_size=2)

    def construct(self, x):
        part = x.shape[0] // size
        h = ops.tanh(self.first(x[rank * part : rank * part + part]))
        (h,) = self.around((h,))
        ops.Send(5, dest_rank=rank + 1)(h)
        ops.Barrier()()
        h = h + ops.Receive(5, rank - 1, (4, 8), "float32")()
        h = h + self.runs(h, sent, received)
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
PLAIN = """
sent, received = [[int(n) for n in numbers] for numbers in (sent, received)]
"""


def script(groups, lists=""):
    return SCRIPT.replace("GROUPS", groups).replace("LISTS", lists)


def test_one_process_and_four(tmp_path):
    alone = run(script(TOGETHER), 1, tmp_path, SHARDWRIGHT_WORLD="4")
    assert run(script(TOGETHER), 4, tmp_path) == alone
    assert run(script(APART.replace("LAST", "3"), PLAIN), 4, tmp_path) == alone


def test_lists_that_do_not_fit_end_all_processes(tmp_path):
    wrong = PLAIN + "if rank == 2:\n    received[1] += 1\n"
    printed = run(script(TOGETHER, wrong), 4, tmp_path, fails=True)
    assert "rank 2 expects 2 elements of rank 1, which sends it 1" in printed


@pytest.mark.parametrize(
    ("last", "what"),
    [
        ("1", "rank 0 is not in the group `rows`, which has the ranks [1, 2]"),
        ("9", "the group `rows` has rank 9, there are 4 ranks"),
    ],
)
def test_wrong_groups_end_all_processes(last, what, tmp_path):
    assert what in run(script(APART.replace("LAST", last)), 4, tmp_path, fails=True)
