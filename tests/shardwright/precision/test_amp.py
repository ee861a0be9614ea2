"""MindSpore's levels of mixed precision, as scripts write them."""

import numpy as np
import pytest

from shardwright import AutoParallel, InputSpec, Model, TensorType, amp, nn, trace
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ModelError, OptionError
from shardwright.operators.models.precision import AMP_LEVELS
from shardwright.train import FixedLossScaleManager


class Network(nn.Cell):
    def __init__(self):
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(4 * 6 * 6, 3)

    def construct(self, x):
        return self.dense(self.flatten(self.relu(self.norm(self.conv(x)))))


RANDOM = np.random.default_rng(0)
DATA = ArrayDataset(
    {
        "x": RANDOM.standard_normal((16, 1, 6, 6)).astype(np.float32),
        "y": RANDOM.integers(0, 3, 16).astype(np.int32),
    }
).batch(8)


def trained(network, epochs=2, parallel=None, **options):
    rule = nn.SGD(network.trainable_params(), 1e-2)
    whole = AutoParallel(network, "data_parallel", devices=2, **parallel) if parallel else network
    model = Model(whole, nn.CrossEntropyLoss(), rule, **options)
    return model.train(epochs, DATA), model.session


def types(session, *operators):
    program = session.compiled.program
    nodes = [n for n in program.nodes if n.operator in operators]
    return {program.values[name].type.dtype for n in nodes for name in n.operands} - {"int32"}


ALONE, _ = trained(Network())


@pytest.mark.parametrize("level", AMP_LEVELS)
def test_every_level_trains(level):
    losses, session = trained(
        Network(), amp_level=level, loss_scale_manager=FixedLossScaleManager(128.0)
    )
    np.testing.assert_allclose(losses, ALONE, rtol=2e-2)
    low = "float32" if level == "O0" else "float16"
    assert types(session, "matmul", "convolution") == {low}
    assert types(session, "exp_sum_and_pick") == {"float32"}
    assert types(session, "relu") == {"float32" if level in ("O0", "O1") else "float16"}
    assert types(session, "batch_normalize") == {"float16" if level == "O3" else "float32"}


def test_a_network_has_its_precision_in_parallel():
    network = amp.auto_mixed_precision(Network(), "O2", "bfloat16")
    losses, session = trained(network, parallel={"cluster": "cpu"})
    np.testing.assert_allclose(losses, ALONE, rtol=3e-2)
    assert types(session, "matmul") == {"bfloat16"}
    again, session = trained(Network(), parallel={"precision": "O2-bfloat16"})
    assert again == losses


def test_wrong_uses():
    with pytest.raises(OptionError, match="`amp_level` is `O4`, expected O0, O1, O2, O3 or auto"):
        amp.auto_mixed_precision(Network(), "O4")
    with pytest.raises(OptionError, match="`dtype` is `float32`, expected bfloat16 or float16"):
        amp.auto_mixed_precision(Network(), "O1", "float32")
    with pytest.raises(OptionError, match="`network` is 3, expected a cell"):
        amp.auto_mixed_precision(3)
    with pytest.raises(OptionError, match="`amp_level` is `O9`"):
        Model(Network(), amp_level="O9")
    network = amp.auto_mixed_precision(Network(), "O2")
    with pytest.raises(OptionError, match="has the precision `O2-float16`, and the options say"):
        trained(network, amp_level="O3")
    inner = Network()
    amp.auto_mixed_precision(inner.dense, "O2")
    spec = InputSpec("x", TensorType("float32", (2, 1, 6, 6)))
    with pytest.raises(ModelError, match="the cell `dense` has the precision `O2-float16`"):
        trace(inner, [spec])
