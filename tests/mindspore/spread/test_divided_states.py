"""Parameters and states that ranks with copies divide, as MindSpore divides them."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.mindspore import Parameter, Tensor, nn, ops
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.nn import Momentum, TrainOneStepCell
from tests.mindspore.cells import ones


class Product(nn.Cell):
    def __init__(self, rows, strategy):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((rows, 64)), "float32"), name="weight")
        self.matmul = ops.MatMul().shard(strategy)

    def construct(self, x):
        return self.matmul(x, self.weight)


@pytest.mark.parametrize(
    ("rows", "strategy", "size", "ranks"),
    [
        (64, ((4, 2), (2, 1)), -1, 16),
        (48, ((4, 8), (8, 1)), -1, 1),  # a slice of six rows for four ranks, each with 64 columns
        (48, ((4, 8), (8, 1)), 2, 2),
        (44, ((8, 1), (1, 4)), -1, 1),
        (44, ((8, 1), (1, 4)), 4, 4),
        (7, ((4, 1), (1, 8)), 2, 1),
    ],
)
def test_rows_are_divided_evenly_among_all_copies_or_not_at_all(rows, strategy, size, ranks):
    ms.set_auto_parallel_context(
        device_num=32,
        parallel_mode="semi_auto_parallel",
        full_batch=True,
        enable_parallel_optimizer=True,
        optimizer_weight_shard_size=size,
        parallel_optimizer_config={"parallel_optimizer_threshold": 0},
    )
    network = Product(rows, strategy)
    step = TrainOneStepCell(network, Momentum(network.trainable_params(), 0.1, 0.9))
    _cell_graph_executor.compile(step, ones(32, rows))
    read = step.parameter_layout_dict["weight"]
    assert int(read[5].partition("-")[0] or 1) == ranks
    program = _cell_graph_executor._newest[step].program
    stored = next(p.value for p in program.parameters if p.name == "weight")
    assert stored.layout.counts(program.mesh) == (strategy[1][0] * ranks, strategy[1][1])


@pytest.mark.parametrize(
    ("kind", "target", "mode", "count", "ranks", "why"),
    [
        (nn.Lamb, "CPU", "stand_alone", 2, 1, "in `stand_alone`, expected `data_parallel` or a"),
        (nn.SGD, "CPU", "hybrid_parallel", 2, 1, "in `hybrid_parallel`, expected"),
        (nn.Lamb, "GPU", "data_parallel", 2, 2, "on `GPU` in `data_parallel`, expected `Ascend`"),
        (nn.Adam, "Ascend", "data_parallel", 2, 2, "for `Adam` in `data_parallel`, expected `Lam"),
        (nn.Lamb, "Ascend", "data_parallel", 2, 4, "for 2 parameters on 4 ranks, expected one"),
        (nn.Lamb, "Ascend", "data_parallel", 2, 2, None),
        (nn.Adam, "Ascend", "semi_auto_parallel", 2, 4, None),
        (nn.Adam, "CPU", "data_parallel", 2, 4, None),
    ],
)
def test_states_are_divided_where_mindspore_divides_them(kind, target, mode, count, ranks, why):
    ms.set_context(device_target=target)
    ms.set_auto_parallel_context(
        parallel_mode=mode, device_num=ranks, enable_parallel_optimizer=True
    )
    parameters = [Parameter(Tensor(np.ones(4), "float32"), name=str(i)) for i in range(count)]
    if why is None:
        kind(parameters, learning_rate=0.1)
        return
    with pytest.raises(RuntimeError, match=f"`enable_parallel_optimizer` is True {why}"):
        kind(parameters, learning_rate=0.1)


def test_a_size_below_zero_is_refused():
    with pytest.raises(ValueError, match="`parallel_optimizer_threshold` is -1"):
        ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": -1})
