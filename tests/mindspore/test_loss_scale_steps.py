"""Training steps with a scaled loss, against the definition, on one rank and on several."""

import json

import numpy as np
import pytest

from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import Tensor, nn
from shardwright.mindspore.dataset import NumpySlicesDataset
from shardwright.mindspore.train import DynamicLossScaleManager, Model
from tests.extent import long_after
from tests.shardwright.scripts.launching import needs_mpi, run

CODE = """
import json
import numpy as np
import shardwright.mindspore as ms
from shardwright.mindspore import nn, ops
from shardwright.mindspore.communication import get_group_size, get_rank, init

init()
rank, ranks = get_rank(), get_group_size()
ms.set_auto_parallel_context(parallel_mode="MODE", gradients_mean=True)
X = np.random.default_rng(0).standard_normal((6, 4, 6)).astype("float32")
X[BAD, 3] = 1e30


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.ones((6, 3), np.float32)), name="weight")

    def construct(self, x):
        return (ops.matmul(x, self.weight) ** 2).mean()


network = Network()
step = nn.TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params(), 0.1), SENSE)
rows = 4 // ranks if "MODE" == "data_parallel" else 4
first = rank * rows % 4
told = []
for x in X[:, first : first + rows]:
    loss, overflow, scale = step(ms.Tensor(x))
    weight = network.weight.asnumpy().tolist()  # by every rank
    told.append([bool(overflow.asnumpy()), float(scale.asnumpy()), weight])
if rank == 0:
    print(json.dumps(told))
"""
X = np.random.default_rng(0).standard_normal((6, 4, 6)).astype("float32")
DYNAMIC = "nn.DynamicLossScaleUpdateCell(1024, 2, 3)"
SENSES = {
    DYNAMIC: [1024, 1024, 512, 512, 512, 1024],
    "nn.FixedLossScaleUpdateCell(64.0)": [64] * 6,
    "ms.Tensor(0.5)": [0.5] * 6,
    "nn.DynamicLossScaleUpdateCell(0.5, 1, 1)": [0.5] * 6,
}


def check(found, bad, scales):
    """Compare each step: whether it is skipped, its scale, and the weight after it."""
    weight = np.ones((6, 3))
    for i, (overflow, scale, after) in enumerate(found):
        assert (overflow, scale) == (i in bad, scales[i]), i
        if i not in bad:
            weight = weight - 0.1 * X[i].T @ (X[i] @ weight) * 2 / 12
        np.testing.assert_allclose(after, weight, rtol=1e-5, atol=1e-6)


def told(tmp_path, ranks=1, mode="stand_alone", sense=DYNAMIC, bad=(1,)):
    code = CODE.replace("MODE", mode).replace("SENSE", sense).replace("BAD", str(list(bad)))
    return json.loads(run(code, ranks, tmp_path))


@pytest.mark.parametrize("sense", long_after(1, SENSES))
def test_a_step_that_overflows_is_skipped_and_says_so(sense, tmp_path):
    check(told(tmp_path, sense=sense), (1,), SENSES[sense])


def test_a_scale_grows_after_a_window_and_falls_to_one(tmp_path):
    found = told(tmp_path, sense="nn.DynamicLossScaleUpdateCell(2, 2, 2)", bad=(0, 1, 3))
    check(found, (0, 1, 3), [2, 1, 1, 1, 1, 1])


@needs_mpi
@pytest.mark.parametrize("mode", ["data_parallel", "auto_parallel"])
def test_all_ranks_skip_a_step_that_overflows_on_one(mode, tmp_path):
    check(told(tmp_path, 2, mode), (1,), SENSES[DYNAMIC])


def network():
    dense = nn.Dense(4, 4, weight_init="ones", has_bias=False)
    return dense, nn.SGD(dense.trainable_params(), 0.1)


def test_what_is_no_scale_is_refused():
    with pytest.raises(ShardwrightError) as caught:
        nn.TrainOneStepWithLossScaleCell(*network(), "1024")
    expected = "expected a number above 0 and below 3.40282e+38"
    assert caught.value.what == f"`scale_sense` is the text `1024`, {expected}"


def test_a_step_in_a_model_has_one_loss_scale():
    backbone, optimizer = network()
    whole = nn.WithLossCell(backbone, nn.MSELoss())
    step = nn.TrainOneStepWithLossScaleCell(whole, optimizer, Tensor(2.0))
    data = NumpySlicesDataset((np.ones((4, 4), "f4"), np.ones((4, 4), "f4"))).batch(4)
    Model(step).train(1, data)
    made = backbone.weight.asnumpy()
    np.testing.assert_allclose(made, 1 - 0.1 * 2 * 3 / 4, rtol=1e-6)  # 3: what results are above 1
    again = nn.TrainOneStepWithLossScaleCell(whole, optimizer, Tensor(2.0))
    with pytest.raises(ShardwrightError) as caught:
        Model(again, loss_scale_manager=DynamicLossScaleManager()).train(1, data)
    assert caught.value.what == (
        "the training step has the loss scale `dynamic:2:1:4611686018427387904`, and the loss "
        "scale manager `dynamic:16777216:2:2000`"
    )
