"""Functions that are not training steps, on several processes: what they return has values."""

import json

import numpy as np

from tests.shardwright.scripts.launching import needs_mpi, run

pytestmark = needs_mpi

HEAD = """
import json
import numpy as np
import shardwright.mindspore as ms
from shardwright.mindspore import nn, ops
from shardwright.mindspore.communication import get_group_size, get_rank, init

init()
rank, ranks = get_rank(), get_group_size()
X = np.random.default_rng(0).standard_normal((4, 6))
Y = np.random.default_rng(1).standard_normal((4, 3))
W = np.random.default_rng(2).standard_normal((6, 3))


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(W), name="weight")
        self.product = ops.MatMul()

    def construct(self, x):
        return self.product(x, self.weight)


network = Network()
optimizer = nn.SGD(network.trainable_params(), 0.1)


def forward(x, y):
    made = network(x)
    return ((made - y) ** 2).mean(), made


gradients = ms.value_and_grad(forward, None, network.trainable_params(), has_aux=True)


def tell(**arrays):
    values = {n: np.asarray(a.asnumpy()).tolist() for n, a in arrays.items()}  # by every rank
    if rank == 0:
        print(json.dumps(values))
"""
X = np.random.default_rng(0).standard_normal((4, 6))
Y = np.random.default_rng(1).standard_normal((4, 3))
W = np.random.default_rng(2).standard_normal((6, 3))


def told(code, tmp_path, processes=2):
    text = run(HEAD + code, processes, tmp_path)
    return {name: np.array(array) for name, array in json.loads(text).items()}


def formulas(x, y, weight):
    made = x @ weight
    return ((made - y) ** 2).mean(), made, x.T @ (made - y) * 2 / made.size


def test_ranks_with_batches_of_their_own_reduce_gradients_and_step(tmp_path):
    """In `DATA_PARALLEL` each process differentiates its own loss; the reducer averages."""
    found = told(
        """
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
x, y = (ms.Tensor(a[2 * rank : 2 * rank + 2]) for a in (X, Y))
(loss, made), grads = gradients(x, y)
mean = nn.DistributedGradReducer(optimizer.parameters)(grads)
total = nn.DistributedGradReducer(optimizer.parameters, False)(grads)
optimizer(mean)
again, _ = gradients(x, y)
tell(loss=loss, made=made, own=grads[0], mean=mean[0], total=total[0], weight=network.weight)
""",
        tmp_path,
    )
    own = [formulas(X[i : i + 2], Y[i : i + 2], W) for i in (0, 2)]
    np.testing.assert_allclose(found["loss"], own[0][0])
    np.testing.assert_allclose(found["made"], own[0][1])
    np.testing.assert_allclose(found["own"], own[0][2])
    np.testing.assert_allclose(found["total"], own[0][2] + own[1][2])
    np.testing.assert_allclose(found["mean"], (own[0][2] + own[1][2]) / 2)
    np.testing.assert_allclose(found["weight"], W - 0.1 * (own[0][2] + own[1][2]) / 2)


def test_a_split_function_returns_whole_values_and_an_optimizer_takes_them(tmp_path):
    found = told(
        """
network.product.shard(((1, 2), (2, 1)))
spread = ms.AutoParallel(gradients, "semi_auto")
(loss, made), grads = spread(X, Y)
optimizer(grads)
(after, _), _ = spread(X, Y)
alone = ms.AutoParallel(network, "semi_auto")
forward_only = alone(X)
both = ms.AutoParallel(ms.grad(lambda a, b: (network(a) * b).sum(), (0, 1)), "semi_auto")(X, Y)
tell(loss=loss, made=made, own=grads[0], after=after, weight=network.weight,
     forward=forward_only, by_x=both[0], by_y=both[1])
""",
        tmp_path,
    )
    loss, made, gradient = formulas(X, Y, W)
    weight = W - 0.1 * gradient
    np.testing.assert_allclose(found["loss"], loss)
    np.testing.assert_allclose(found["made"], made)
    np.testing.assert_allclose(found["own"], gradient)
    np.testing.assert_allclose(found["weight"], weight)
    np.testing.assert_allclose(found["after"], formulas(X, Y, weight)[0])
    np.testing.assert_allclose(found["forward"], X @ weight)
    np.testing.assert_allclose(found["by_x"], Y @ weight.T)
    np.testing.assert_allclose(found["by_y"], X @ weight)


def test_parts_of_inputs_are_those_of_the_strategy(tmp_path):
    """Four ranks have a half of the columns each, twice; labels are equal everywhere."""
    found = told(
        """
half = X[:, 3 * (rank % 2) : 3 * (rank % 2) + 3]
spread = ms.AutoParallel(gradients, "semi_auto")
spread.dataset_strategy(((1, 2), (1, 1)))
(loss, made), grads = spread(half, Y)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
eager = network(ms.Tensor(X))
tell(loss=loss, made=made, own=grads[0], eager=eager)
""",
        tmp_path,
        4,
    )
    loss, made, gradient = formulas(X, Y, W)
    np.testing.assert_allclose(found["loss"], loss)
    np.testing.assert_allclose(found["made"], made)
    np.testing.assert_allclose(found["own"], gradient)
    np.testing.assert_allclose(found["eager"], made)


def test_neighbours_have_the_same_part_where_the_network_says_so(tmp_path):
    found = told(
        """
from shardwright.mindspore.ops import operations
network.dataset = operations._VirtualDataset().add_prim_attr("repeat_dim_direct", "right")
spread = ms.AutoParallel(network, "semi_auto")
spread.dataset_strategy(((1, 2),))
tell(made=spread(X[:, 3 * (rank // 2) : 3 * (rank // 2) + 3]))
""",
        tmp_path,
        4,
    )
    np.testing.assert_allclose(found["made"], X @ W)
