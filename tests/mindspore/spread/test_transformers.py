"""Transformers that are spread by a configuration, and operands of several element types."""

import numpy as np
import pytest

import shardwright.mindspore as ms
from shardwright.ir.errors import OptionError, ShardwrightError
from shardwright.mindspore import Tensor, nn, ops
from shardwright.mindspore.common.api import _cell_graph_executor
from shardwright.mindspore.parallel.nn import (
    CrossEntropyLoss,
    FeedForward,
    FixedSparseAttention,
    MoEConfig,
    MultiHeadAttention,
    OpParallelConfig,
    Transformer,
    TransformerEncoder,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
    VocabEmbedding,
)

OPTIONS = {"hidden_size": 8, "ffn_hidden_size": 16, "num_heads": 2}
CALM = {"attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0}
LENGTHS = {"src_seq_length": 6, "tgt_seq_length": 4}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def product(layer, x):
    return x @ layer.weight.asnumpy().T + layer.bias.asnumpy()


def attended(cell, q, k, v, mask):
    """Return attention as the formula says, in float64."""

    def heads(x):
        return x.reshape(*x.shape[:2], cell.num_heads, -1).transpose(0, 2, 1, 3)

    q, k, v = (
        heads(product(layer, x))
        for layer, x in ((cell.dense1, q), (cell.dense2, k), (cell.dense3, v))
    )
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 - 10000 * (1 - mask[:, None])
    read = (softmax(scores) @ v).transpose(0, 2, 1, 3)
    return product(cell.projection, read.reshape(*read.shape[:2], -1))


def normalized(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def gelu(x):
    return 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


def real(array):
    return Tensor(array, "float32")


@pytest.mark.parametrize("flat", [False, True])
def test_encoder_and_decoder_compute_what_the_formulas_say(flat):
    network = Transformer(encoder_layers=1, decoder_layers=1, **LENGTHS, **OPTIONS, **CALM)
    for i, parameter in enumerate(network.get_parameters()):
        if parameter.name.split(".")[-1] in ("weight", "bias"):
            generator = np.random.default_rng(i)
            parameter.set_data(real(generator.normal(size=parameter.shape) / 3))
    x, y = draw(3, 6, 8), draw(3, 4, 8)
    own, other, cross = (np.tril(np.ones((3, *s))) for s in ((6, 6), (4, 4), (4, 6)))
    first, second = (x.reshape(-1, 8), y.reshape(-1, 8)) if flat else (x, y)
    made, _, _ = network(real(first), real(own), real(second), real(other), real(cross))

    def fed(layer, z):
        part = layer.output
        return z + product(part.projection, gelu(product(part.mapping, normalized(z))))

    encoder, decoder = network.encoder.blocks[0], network.decoder.blocks[0]
    z = normalized(x)
    x = fed(encoder, x + attended(encoder.attention, z, z, z, own))
    z = normalized(y)
    y = y + attended(decoder.attention, z, z, z, other)
    y = fed(decoder, y + attended(decoder.cross_attention, normalized(y), x, x, cross))
    # Products are of float16, whose numbers have 11 bits.
    assert np.abs(made.asnumpy().reshape(y.shape) - y).max() < 2e-2


class Trained(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.embedding = VocabEmbedding(16, 8, config.embedding_dp_mp_config)
        self.encoder = TransformerEncoder(
            num_layers=2, seq_length=4, parallel_config=config, **OPTIONS
        )
        self.loss = CrossEntropyLoss(config.dp_mp_config)

    def construct(self, ids, mask, labels, weights):
        rows, _ = self.embedding(ids)
        made, _ = self.encoder(rows, mask)
        return self.loss(made.reshape((-1, 8)), labels, weights)


def test_a_configuration_is_the_strategy_of_products():
    ms.set_auto_parallel_context(device_num=4, parallel_mode="semi_auto_parallel", full_batch=True)
    network = Trained(TransformerOpParallelConfig(2, 2, vocab_emb_dp=False))
    inputs = (
        Tensor(np.zeros((4, 4)), "int32"),
        real(np.ones((4, 4, 4))),
        Tensor(np.zeros(16), "int32"),
        real(np.ones(16)),
    )
    step = nn.TrainOneStepCell(network, nn.AdamWeightDecay(network.trainable_params()))
    _cell_graph_executor.compile(step, *inputs)
    slices = {name: layout[2] for name, layout in step.parameter_layout_dict.items()}
    assert [v for k, v in slices.items() if k.endswith("embedding_table")] == [[8, 8]]
    assert {tuple(v) for k, v in slices.items() if k.endswith("mapping.weight")} == {(8, 8)}
    assert {tuple(v) for k, v in slices.items() if k.endswith("output.projection.weight")} == {
        (8, 8)
    }
    wrong = Trained(TransformerOpParallelConfig(2, 2))
    wrong.encoder.blocks[0].output.mapping.matmul.shard(((3, 1), (1, 1)))
    step = nn.TrainOneStepCell(wrong, nn.AdamWeightDecay(wrong.trainable_params()))
    with pytest.raises(RuntimeError, match="cannot be split"):
        _cell_graph_executor.compile(step, *inputs)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: OpParallelConfig(0), ValueError, "`data_parallel` is 0"),
        (lambda: OpParallelConfig(True), TypeError, "`data_parallel` is True"),
        (lambda: TransformerOpParallelConfig(recompute=1), TypeError, "`recompute` is 1"),
        (lambda: TransformerRecomputeConfig("yes"), TypeError, "`recompute` is the text `yes`"),
        (lambda: MoEConfig(1, num_experts_chosen=2), ValueError, "`num_experts_chosen` is 2"),
        (lambda: FeedForward(8, 16, 0.1, expert_num=0), ValueError, "`expert_num` is 0"),
        (lambda: FeedForward(8, 16, 1.5), ValueError, "`dropout_rate` is 1.5"),
        (lambda: FeedForward(8, 16, 0.0, 3), TypeError, "`hidden_act` is 3"),
        (lambda: MultiHeadAttention(2, 4, 4, 9, 2), ValueError, "`hidden_size` is 9"),
        (
            lambda: MultiHeadAttention(2, 4, 4, 8, 2, parallel_config=OpParallelConfig(1, 4)),
            ValueError,
            "`num_heads` is 2, expected a multiple of `model_parallel`, 4",
        ),
        (
            lambda: Transformer(encoder_layers=0, **LENGTHS, **OPTIONS),
            ValueError,
            "`encoder_layers` is 0",
        ),
        (lambda: Transformer(colour=3, **LENGTHS, **OPTIONS), ValueError, "no `colour`"),
        (lambda: FixedSparseAttention(), OptionError, "is not supported"),
    ],
)
def test_what_does_not_fit_is_refused(make, kind, message):
    with pytest.raises(kind, match=message) as caught:
        make()
    assert isinstance(caught.value, ShardwrightError)


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("float16", "float32", "float32"),
        ("float16", "bfloat16", "float32"),
        ("int64", "float16", "float16"),
        ("int32", "int64", "int64"),
        ("bool", "int32", "int32"),
        ("int8", "uint8", "int16"),
    ],
)
def test_operands_of_two_element_types_meet(first, second, common):
    x, y = Tensor(np.array([1, 0]), first), Tensor(np.array([1, 1]), second)
    for made in (x + y, y + x, ops.Sub()(x, y), ops.Maximum()(y, x)):
        assert made.dtype == common
    with pytest.raises(ShardwrightError, match="the operands are int64 and uint64"):
        Tensor(np.ones(2), "int64") + Tensor(np.ones(2), "uint64")
