"""What sharding propagation does with ranks that no strategy uses."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.mindspore import AutoParallel, Parameter, Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.ops import operations
from shardwright.mindspore.parallel import reset_algo_parameters, set_algo_parameters
from tests.mindspore.cells import ones


@pytest.fixture(autouse=True)
def eight_ranks():
    reset_algo_parameters()
    ms.set_auto_parallel_context(
        device_num=8,
        global_rank=0,
        parallel_mode="auto_parallel",
        search_mode="sharding_propagation",
        full_batch=True,
    )
    yield
    reset_algo_parameters()


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.relu, self.matmul = operations.ReLU().shard(((2, 1),)), operations.MatMul()
        self.weight = Parameter(ones(32, 64), name="weight")

    def construct(self, x):
        return self.matmul(self.relu(x), self.weight)


def slices():
    network = Network().set_train()
    _cell_graph_executor.compile(network, ones(64, 32))
    return _cell_graph_executor._get_shard_strategy(network)["Default/MatMul-op1"]


def test_operators_are_split_no_further_than_their_neighbours_where_ranks_may_be_idle():
    assert np.prod(slices()) > 2
    set_algo_parameters(fully_use_devices=False)
    assert slices() == [[2, 1], [1, 1]]


def test_the_results_are_the_same():
    set_algo_parameters(fully_use_devices=False)
    x = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
    with world(8):
        parallel = AutoParallel(Network(), "sharding_propagation", devices=8)
        found = parallel(Tensor(x)).asnumpy()
    expected = np.maximum(x, 0).sum(1, keepdims=True).repeat(64, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
