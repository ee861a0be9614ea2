"""MindSpore's calls for optimizer parallelism, costs, recomputation and stages."""

import pytest

from shardwright import ops
from shardwright.ir.errors import OptionError
from shardwright.ir.types import TensorType
from shardwright.mindspore import nn
from shardwright.mindspore.context import reset_auto_parallel_context, set_auto_parallel_context
from shardwright.mindspore.parallel import AutoParallel
from shardwright.mindspore.parallel._cost_model_context import (
    get_cost_model_context,
    reset_cost_model_context,
    set_cost_model_context,
)
from shardwright.mindspore.parallel.rows import ShardedRows
from shardwright.mindspore.spread import from_context
from shardwright.tracing import InputSpec, trace


@pytest.fixture(autouse=True)
def _reset():
    yield
    reset_cost_model_context()
    reset_auto_parallel_context()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ShardedRows(-1, 64, "level1")),
        ({"parallel_optimizer_threshold": 8}, ShardedRows(-1, 8, "level1")),
        ({"optimizer_weight_shard_size": 2}, ShardedRows(2, 64, "level1")),
        ({"gradient_accumulation_shard": True}, ShardedRows(-1, 64, "level2")),
        ({"optimizer_level": "level3"}, ShardedRows(-1, 64, "level3")),
    ],
)
def test_the_configuration_of_optimizer_parallelism(config, expected):
    set_auto_parallel_context(enable_parallel_optimizer=True, parallel_optimizer_config=config)
    spread = from_context(nn.Dense(4, 4), "semi_auto_parallel")
    assert spread.options.how.optimizer_parallel == expected


def test_the_constants_of_the_cost_model():
    set_cost_model_context(
        costmodel_beta=50.0,
        costmodel_allreduce_fusion_algorithm=1,
        costmodel_allreduce_fusion_times=2,
    )
    how = AutoParallel(nn.Dense(4, 4), "auto").options.how
    assert (how.cost_model, how.cost_weights.beta, how.cost_weights.alpha) == ("mindspore", 50, 1)
    assert (how.fusion.algorithm, how.fusion.times) == (1, 2)
    assert get_cost_model_context("costmodel_beta") == 50.0
    assert get_cost_model_context("costmodel_gamma") == 0.001
    assert AutoParallel(nn.Dense(4, 4), "stand_alone").options.how.cost_model == "time"
    reset_cost_model_context()
    assert AutoParallel(nn.Dense(4, 4), "auto").options.how.cost_model == "time"


def test_wrong_constants_are_refused():
    with pytest.raises(OptionError, match=r"`set_cost_model_context` has no setting `alpha`"):
        set_cost_model_context(alpha=1)
    set_cost_model_context(costmodel_alpha=-1.0)
    with pytest.raises(OptionError, match=r"`alpha` of `cost_weights` is -1.0, expected a number"):
        AutoParallel(nn.Dense(4, 4), "auto")


def test_primitives_are_recomputed_and_placed():
    class Network(nn.Cell):
        def __init__(self):
            self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
            self.tanh = ops.Tanh().recompute()
            self.exp = ops.Exp().set_stage(1)

        def construct(self, x):
            return self.exp(self.second(self.tanh(self.first(x)))).sum()

    graph = trace(Network(), [InputSpec("x", TensorType("float32", (8, 4)))]).graph
    assert graph.recomputed == ("tanh_0",)
    assert graph.stages == 2
    with pytest.raises(OptionError, match="`stage` is -1"):
        ops.Tanh().set_stage(-1)
