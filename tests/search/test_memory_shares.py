import re

import pytest

from shardwright import zoo
from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import ShardwrightError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.planner.options import CompileOptions
from tests.extent import long_after


@pytest.mark.parametrize(
    ("model", "most"),
    long_after(
        1,
        [
            ("mlp:hidden=64", "layer1.weight"),
            (
                "gpt:layers=2,hidden=64,heads=4,batch=32,sequence=64,vocabulary=64",
                "blocks/*/feed_forward",
            ),
        ],
    ),
)
def test_most_of_the_memory_is_named(model, most):
    options = CompileOptions(objective="serial", memory_limit=10.0, optimizer=Optimizer("adam"))
    with pytest.raises(ShardwrightError) as caught:
        compile_graph(zoo.load(model).graph, cluster("cpu"), 4, options)
    share = re.match(r"(\d+)% of it is taken by ", str(caught.value.hint))
    assert share
    assert int(share[1]) >= 75
    assert most in str(caught.value.hint)
