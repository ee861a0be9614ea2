"""Experts with capacities, by MindSpore's formulas."""

from math import ceil

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import ModelError, ShardwrightError
from shardwright.mindspore import Tensor, nn
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.parallel.nn import (
    FeedForward,
    MoE,
    MoEConfig,
    MoEParallelConfig,
    OpParallelConfig,
    Transformer,
    TransformerOpParallelConfig,
)

OPTIONS = {"hidden_size": 8, "ffn_hidden_size": 16, "num_heads": 2}
LENGTHS = {"src_seq_length": 6, "tgt_seq_length": 4}


def routed(shares, chosen, capacity):
    """Return the weights of the experts of each token of a group, and the loss of balance."""
    tokens, experts = shares.shape
    shares, count, loss = shares.copy(), np.zeros(experts, int), 0.0
    taken, weights = np.zeros((tokens, experts), bool), np.zeros((tokens, experts))
    for _ in range(chosen):
        shares[taken] = 0
        best = shares.argmax(-1)
        normal = shares / (shares.sum(-1, keepdims=True) + 1e-9)
        loads = np.bincount(best, minlength=experts) / tokens
        loss += (loads * normal.mean(0)).mean() * experts**2
        for token, expert in enumerate(best):
            if count[expert] < capacity:
                weights[token, expert], taken[token, expert] = shares[token, expert], True
            count[expert] += 1
        count = np.minimum(count, capacity)
    return weights / (weights.sum(-1, keepdims=True) + 1e-9), loss


def through(ffn, expert, rows):
    wide, narrow = ffn.mapping, ffn.projection
    inner = rows @ wide.weight.asnumpy()[expert] + wide.bias.asnumpy()[0, expert, 0]
    return (
        np.maximum(inner, 0) @ narrow.weight.asnumpy()[expert] + narrow.bias.asnumpy()[0, expert, 0]
    )


def made(cell, x, groups, config):
    """Return what a cell makes of tokens, one after the other, and its loss."""
    capacity = ceil(
        config.num_experts_chosen * len(x) // groups * config.capacity_factor / config.expert_num
    )
    logits = x @ cell.router.dense.weight.asnumpy().T
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = [routed(part, config.num_experts_chosen, capacity) for part in np.split(shares, groups)]
    weights = np.concatenate([part for part, _ in found])
    outputs = [weights[:, [e]] * through(cell.ffn, e, x) for e in range(config.expert_num)]
    return sum(outputs), np.mean([loss for _, loss in found]) * config.aux_loss_factor, weights


@pytest.mark.parametrize(
    ("experts", "chosen", "factor", "spread"),
    [
        (2, 1, 1.0, (1, 1)),
        (4, 3, 1.1, (2, 1)),
        (4, 3, 1.0, (2, 2)),
        (5, 2, 1.3, (3, 1)),
        (6, 2, 5.0, (4, 2)),
    ],
)
def test_experts_compute_what_the_formulas_say(experts, chosen, factor, spread):
    config = MoEConfig(experts, factor, 0.1, chosen)
    groups, parts = spread
    cell = MoE(
        8, 16, 0.0, "relu", moe_config=config, parallel_config=MoEParallelConfig(groups, 1, parts)
    )
    generator = np.random.default_rng(experts * chosen)
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(generator.normal(size=parameter.shape) / 2, "float32"))
    x = generator.normal(size=(groups * 2, 6, 8)).astype("float32")
    output, loss = cell(Tensor(x))
    expected, balance, weights = made(cell, x.reshape(-1, 8), groups, config)
    assert factor > 1.2 or (weights > 0).sum(-1).min() < chosen  # some token found no room
    # Products are of float16, whose numbers have 11 bits.
    assert np.abs(output.asnumpy().reshape(-1, 8) - expected).max() < 4e-2
    assert loss.asnumpy() == pytest.approx(balance, rel=1e-5)


class Trained(nn.Cell):
    def __init__(self, config, experts):
        super().__init__()
        self.network = Transformer(
            encoder_layers=1,
            decoder_layers=1,
            moe_config=experts,
            parallel_config=config,
            **LENGTHS,
            **OPTIONS,
        )

    def construct(self, x, x_mask, y, y_mask, memory):
        output, _, _, loss = self.network(x, x_mask, y, y_mask, memory)
        return (output**2).mean() + loss


@pytest.mark.long
@pytest.mark.parametrize(
    ("spread", "slices"),
    [((4, 2, 2), (2, 8, 8)), ((2, 2, 2), (2, 8, 8)), ((2, 2, 1), (4, 8, 8))],
)
def test_a_configuration_is_the_strategy_of_experts(spread, slices):
    ms.set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel", full_batch=True)
    network = Trained(TransformerOpParallelConfig(*spread), MoEConfig(4, num_experts_chosen=2))
    inputs = [np.ones(shape, np.float32) for shape in ((4, 6, 8), (4, 6, 6), (4, 4, 8))]
    inputs += [np.ones(shape, np.float32) for shape in ((4, 4, 4), (4, 4, 6))]
    step = nn.TrainOneStepCell(network, nn.AdamWeightDecay(network.trainable_params()))
    _cell_graph_executor.compile(step, *map(Tensor, inputs))
    layouts = step.parameter_layout_dict
    found = {tuple(v[2]) for k, v in layouts.items() if k.endswith("ffn.mapping.weight")}
    assert found == {slices}


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: MoEConfig(0), ValueError, "`expert_num` is 0"),
        (lambda: MoEConfig(2, 0.5), ValueError, "`capacity_factor` is 0.5"),
        (lambda: MoEConfig(2, 1.1, 1.0), ValueError, "`aux_loss_factor` is 1.0"),
        (lambda: MoEConfig(2, group_wise_a2a=1), TypeError, "`group_wise_a2a` is 1"),
        (lambda: MoEConfig(2, expert_group_size=0), ValueError, "`expert_group_size` is 0"),
        (lambda: MoEParallelConfig(1, 1, 0), ValueError, "`expert_parallel` is 0"),
        (
            lambda: MoE(
                8, 16, 0.0, moe_config=MoEConfig(3), parallel_config=MoEParallelConfig(2, 1, 2)
            ),
            ValueError,
            "`expert_num` is 3, expected a multiple of `expert_parallel`, 2",
        ),
        (
            lambda: MoE(
                8, 16, 0.0, moe_config=MoEConfig(4), parallel_config=MoEParallelConfig(1, 1, 2)
            ),
            ValueError,
            "`data_parallel` is 1, expected a multiple of `expert_parallel`, 2",
        ),
        (
            lambda: FeedForward(8, 16, 0.0, expert_num=2)(Tensor(np.ones((3, 8)), "float32")),
            ModelError,
            "2 experts on 1 parts of the batch are given rows of the shape",
        ),
        (
            lambda: MoE(8, 16, 0.0, parallel_config=OpParallelConfig(2))(
                Tensor(np.ones((3, 8)), "float32")
            ),
            ModelError,
            "3 tokens",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert isinstance(caught.value, ShardwrightError)
