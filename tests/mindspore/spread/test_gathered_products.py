"""Products whose operands are both split over all ranks in one way."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.communication import world
from shardwright.ir.errors import ShardwrightError
from shardwright.mindspore import AutoParallel, Tensor
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.ops import operations
from tests.mindspore.cells import Applied

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.standard_normal(shape).astype("float32") for shape in ((16, 8), (8, 24)))


@pytest.mark.parametrize("counts", [(4, 2), (8, 1), (2, 4), (1, 8)])
def test_rows_and_columns_are_gathered(counts):
    product = Applied(operations.MatMul().shard((counts, counts)))
    with world(8):
        parallel = AutoParallel(product, "semi_auto", devices=8)
        found = parallel(Tensor(X), Tensor(Y))
    np.testing.assert_allclose(found.asnumpy(), X @ Y, rtol=1e-4, atol=1e-5)
    ms.set_auto_parallel_context(
        device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True
    )
    _cell_graph_executor.compile(product, Tensor(X), Tensor(Y))
    strategies = _cell_graph_executor._get_shard_strategy(product)
    assert strategies["Default/MatMul-op0"] == [[*counts], [*counts]]


@pytest.mark.parametrize(
    ("transposed", "counts", "sentence"),
    [
        (False, (2, 1), "that both operands are split in one way, over 2 of 8 ranks"),
        (True, (4, 2), r"`matmul` cannot be split by \(\(4, 2\), \(8, 1\)\)"),
    ],
)
def test_other_operands_that_are_split_in_one_way_are_refused(transposed, counts, sentence):
    ms.set_auto_parallel_context(
        device_num=8, global_rank=0, parallel_mode="semi_auto_parallel", full_batch=True
    )
    both = (counts, (8, 1) if transposed else counts)
    product = operations.MatMul(transpose_b=transposed).shard(both)
    with pytest.raises(ShardwrightError, match=sentence):
        _cell_graph_executor.compile(Applied(product), Tensor(X), Tensor(Y.T if transposed else Y))
