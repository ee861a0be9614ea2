"""Parameters that the model itself updates: moving averages, and the step that dropout counts."""

import pytest

from shardwright import nn
from shardwright.api import compile, verify
from shardwright.ir.types import TensorType
from shardwright.search.driver import SEARCHES
from shardwright.tracing import InputSpec, trace
from tests.extent import long_after


class Normalized(nn.Cell):
    def __init__(self):
        self.layer1 = nn.Dense(16, 8)
        self.normalization = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)
        self.layer2 = nn.Dense(8, 4)

    def construct(self, x):
        return self.layer2(self.dropout(self.normalization(self.layer1(x))))


@pytest.fixture(scope="module")
def definition():
    inputs = (
        InputSpec("x", TensorType("float32", (16, 16))),
        InputSpec("label", TensorType("int32", (16,)), 4),
    )
    return trace(Normalized(), inputs, loss_fn=nn.CrossEntropyLoss())


@pytest.mark.parametrize("search", long_after(3, SEARCHES))
def test_updates_of_the_model_are_kept_and_priced(definition, search):
    compilation = compile(definition, 4, search=search)
    updated = dict(compilation.plan.program.updates)
    assert {"step", "normalization.moving_mean", "normalization.moving_variance"} <= set(updated)
    result = verify(compilation)
    assert (result.equal, result.first_difference) == (True, None)
    assert "normalization.moving_variance" in result.errors
