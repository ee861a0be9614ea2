"""`nn.GradAccumulation`: a network that is trained in micro-batches."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.api import compile
from shardwright.dataset import ArrayDataset
from shardwright.ir.errors import ModelError, OptionError
from shardwright.ir.text import to_text
from shardwright.ir.types import TensorType
from shardwright.parallel import AutoParallel
from shardwright.tracing import InputSpec, trace
from shardwright.train import Model

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, 6)).astype(np.float32)
DATA = ArrayDataset({"x": X, "label": (X[:, 0] > 0).astype(np.int32)}).batch(16)


class Net(nn.Cell):
    def __init__(self, inner: int = 1) -> None:
        self.first, self.tanh, self.second = nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 3)
        self.dropout = nn.Dropout(p=0.25)
        if inner > 1:
            self.first = nn.GradAccumulation(self.first, inner)

    def construct(self, x):
        return self.second(self.dropout(self.tanh(self.first(x))))


def losses(network, mode: str = "stand_alone", **options: object) -> tuple[list[float], int]:
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    parallel = AutoParallel(network, mode, devices=1 if mode == "stand_alone" else 2, **options)
    model = Model(parallel, nn.CrossEntropyLoss(), optimizer)
    found = model.train(2, DATA)
    return found, model.session.executor.mesh.passes


def test_a_network_learns_as_on_the_whole_batch() -> None:
    whole, passes = losses(Net())
    assert passes == 1
    for mode in ("stand_alone", "data_parallel", "auto"):
        found, passes = losses(nn.GradAccumulation(Net(), 4), mode)
        assert passes == 4
        assert found == pytest.approx(whole, rel=1e-5)
    found, passes = losses(Net(), "auto", micro_batches=2)
    assert passes == 2


def test_names_are_those_of_the_network() -> None:
    specs = [InputSpec("x", TensorType("float32", (8, 6)))]
    graphs = [trace(net, specs, name="net").graph for net in (Net(), nn.GradAccumulation(Net(), 2))]
    assert to_text(graphs[0]) == to_text(graphs[1])


def test_refusals() -> None:
    with pytest.raises(OptionError, match="`micro_size` is 0"):
        nn.GradAccumulation(Net(), 0)
    with pytest.raises(ModelError, match="the cell `first` accumulates gradients"):
        losses(Net(inner=2))
    with pytest.raises(OptionError, match="the network has 4 micro-batches"):
        losses(nn.GradAccumulation(Net(), 4), "auto", micro_batches=2)
    with pytest.raises(OptionError, match="the batch of 16 samples cannot be divided"):
        losses(nn.GradAccumulation(Net(), 3))


def test_the_number_of_a_definition_is_a_default() -> None:
    specs = [
        InputSpec("x", TensorType("float32", (8, 6))),
        InputSpec("label", TensorType("int32", (8,)), 3),
    ]
    definition = trace(nn.GradAccumulation(Net(), 2), specs, loss_fn=nn.CrossEntropyLoss())
    assert compile(definition, 1, mode="stand_alone").plan.document.micro_batches == 2
    assert (
        compile(definition, 1, mode="stand_alone", micro_batches=4).plan.document.micro_batches == 4
    )
