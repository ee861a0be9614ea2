"""Strategies that MindSpore 2.7 asserts where operators are given layouts over named axes."""

import pytest

from shardwright import nn, ops
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.plans.accounting import split_counts
from shardwright.cost_model.cluster import cluster
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.parallel import Layout
from shardwright.planner.options import CompileOptions
from shardwright.tracing import InputSpec, trace

FOUR_BY_TWO = Layout((4, 2), ("a0", "a1"))
TWOS = Layout((2, 2, 2, 1), ("a0", "a1", "a2", "a3"))


class Pinned(nn.Cell):
    """One operator, given layouts of its operands, and the sum of what it makes."""

    def __init__(self, operator, layouts):
        self.operator = operator.shard(layouts)

    def construct(self, *inputs):
        return self.operator(*inputs).sum()


@pytest.mark.parametrize(
    ("operator", "shapes", "layouts", "expected"),
    [
        (
            ops.MatMulExt(),
            ((128, 96), (96, 96)),
            (FOUR_BY_TWO("a0", "a1"), FOUR_BY_TWO("a1", "None")),
            ((4, 2), (2, 1)),
        ),
        (
            ops.MatMulExt(),
            ((128, 96), (96, 96)),
            (TWOS("a3", "a1"), TWOS("a1", "a0")),
            ((1, 2), (2, 2)),
        ),
        (
            ops.AddExt(),
            ((96, 96), (96, 96)),
            (Layout((2, 1, 2, 2), ("a0", "a1", "a2", "a3"))("a3", "a1"),) * 2,
            ((2, 1), (2, 1)),
        ),
        (
            ops.AddExt(),
            ((128, 96), (1, 96)),
            (FOUR_BY_TWO("a0", "a1"), FOUR_BY_TWO("None", "a1")),
            ((4, 2), (1, 2)),
        ),
    ],
)
def test_layouts_over_named_axes(operator, shapes, layouts, expected):
    specs = [InputSpec(f"x{i}", TensorType("float32", s)) for i, s in enumerate(shapes)]
    definition = trace(Pinned(operator, layouts), specs)
    mesh = Mesh(tuple(MeshAxis(name, 2) for name in "xyz"))
    options = CompileOptions(mode="semi_auto_parallel", pins=definition.pins)
    compiled = compile_graph(definition.graph, cluster("cpu"), 8, options, mesh)
    (name,) = definition.pins
    assert split_counts(compiled)[name] == expected
