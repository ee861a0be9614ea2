"""What MindSpore's own tests assert of networks with convolutions, and of its faster searches.

Sources, in MindSpore's repository: ``test_auto_parallel_resnet.py`` (r1.0),
``test_sharding_propagation_for_conv2ds.py``, ``test_auto_parallel_resnet_sharding_propagation.py``
(2.7), and the ``sapp`` tests of recursive programming (2.7).
"""

from collections.abc import Sequence
from functools import cache

import pytest

from shardwright import nn, ops
from shardwright.cost_model.cluster import cluster, mesh_for
from shardwright.cost_model.mindspore.costs import MindSporeCosts, mesh_of_binary_axes
from shardwright.cost_model.mindspore.profile import MindSporeProfile
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Strategy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.passes.canonicalize import Canonicalize
from shardwright.search.driver import search
from shardwright.search.heuristics.recursive import recursive_programming
from shardwright.search.space.builder import build_search_space
from shardwright.tensor import Tensor
from shardwright.tracing import InputSpec, trace
from shardwright.zoo.resnet import ResNet

DEVICES = 8


class SoftmaxCrossEntropyExpand(nn.Cell):
    """Cross entropy in single operators, as MindSpore's test writes it."""

    def construct(self, scores: Tensor, label: Tensor) -> Tensor:
        # Nothing depends on the maximum that is taken off, so that it needs no gradient.
        largest = ops.ReduceMax(keep_dims=True, differentiable=False)(scores, -1)
        exp = ops.Exp()(ops.Sub()(scores, largest))
        softmax = ops.Div()(exp, ops.ReduceSum(keep_dims=True)(exp, -1))
        chosen = ops.Mul()(ops.Log()(softmax), ops.OneHot()(label, scores.shape[1]))
        return ops.ReduceMean()(-ops.ReduceSum()(chosen, -1), (0,))


@cache
def resnet(classes: int) -> Graph:
    specs = (
        InputSpec("image", TensorType("float32", (256, 3, 224, 224))),
        InputSpec("label", TensorType("int32", (256,)), classes),
    )
    network = ResNet(50, 64, classes, False, "float32")
    return Canonicalize().run(trace(network, specs, loss_fn=SoftmaxCrossEntropyExpand()).graph)


def counts(graph: Graph, node: Node, strategy: Strategy, mesh: Mesh) -> SplitCounts:
    types = [value.type for value in graph.operand_values(node)]
    return operator_info(node.operator, types, node.attributes).split_counts(strategy, mesh)


def found(
    graph: Graph, mode: str, beta: float, pins: dict[str, SplitCounts] | None = None
) -> dict[str, list[SplitCounts]]:
    """Return the strategies that a search with MindSpore's costs finds, by operator."""
    mesh = mesh_of_binary_axes(DEVICES)
    follow = mode in ("exact", "dynamic_programming")  # as MindSpore's test sets it
    costs = MindSporeCosts(era="r1.0", beta=beta, elementwise_follow=follow, readers_agree=follow)
    profile = MindSporeProfile(costs, mesh)
    space = build_search_space(graph, profile, pins=pins or {})
    result = search(space, mode)
    strategies = space.decisions(result.assignment).strategies
    by_operator: dict[str, list[SplitCounts]] = {}
    for node in graph.nodes:
        split = counts(graph, node, strategies[node.name], mesh)
        by_operator.setdefault(node.operator, []).append(split)
    return by_operator


# MindSpore's test gives each of the 8 devices a batch of 32, so that the network has 256. Ascend's
# factor on communication is 400, a GPU's 50.
@pytest.mark.long
@pytest.mark.parametrize(
    ("classes", "beta", "product", "sums"),
    [
        (32_768, 400, ((8, 1), (1, 1)), ((8, 1),)),
        (65_536, 400, ((1, 1), (8, 1)), ((1, 8),)),
        (4096, 50, ((8, 1), (1, 1)), ((8, 1),)),
        (8192, 50, ((1, 1), (8, 1)), ((1, 8),)),
    ],
)
def test_a_wide_head_is_split_by_classes(
    classes: int, beta: float, product: SplitCounts, sums: SplitCounts
) -> None:
    strategies = found(resnet(classes), "exact", beta)
    assert {split[0][0] for split in strategies["convolution"]} == {8}
    assert strategies["matmul"] == [product]
    assert strategies["reduce_sum"] == [sums] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("pin", "product", "sums"),
    [
        (((1, 8),), ((1, 1), (8, 1)), ((1, 8),)),
        (((8, 1),), ((8, 1), (1, 1)), ((8, 1),)),
    ],
)
def test_sharding_propagates_from_the_loss_of_a_resnet(
    pin: SplitCounts, product: SplitCounts, sums: SplitCounts
) -> None:
    strategies = found(resnet(4096), "sharding_propagation", 400, {"exp_0": pin})
    assert strategies["matmul"] == [product]
    assert strategies["reduce_sum"] == [sums] * 2


class Convolutions(nn.Cell):
    def __init__(self, pin: tuple[int, ...]) -> None:
        self.relu = ops.ReLU().shard((pin,))
        self.conv2d = nn.Conv2d(16, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.max_pool = nn.MaxPool2d(2, 2)
        self.conv2d_transpose = nn.Conv2dTranspose(8, 16, 4, 2)

    def construct(self, x: Tensor) -> Tensor:
        x = self.max_pool(self.bn(self.conv2d(self.relu(x))))
        return ops.relu(self.conv2d_transpose(x)).sum()


# The last is MindSpore's with leave to use fewer devices than there are.
@pytest.mark.parametrize(
    ("pin", "shape"), [((8, 1, 1, 1), "2x2x2"), ((1, 1, 1, 8), "2x2x2"), ((1, 1, 2, 1), "2")]
)
def test_sharding_propagates_through_convolutions(pin: tuple[int, ...], shape: str) -> None:
    image = InputSpec("image", TensorType("float32", (32, 16, 64, 64)))
    definition = trace(Convolutions(pin), (image,))
    described = cluster("cpu")
    mesh = mesh_for(described, max(pin), shape)
    profile = TimeProfile(mesh, described)
    space = build_search_space(definition.graph, profile, pins=definition.pins)
    result = search(space, "sharding_propagation")
    strategies = space.decisions(result.assignment).strategies
    for node in definition.graph.nodes:
        split = counts(definition.graph, node, strategies[node.name], mesh)
        if node.operator == "convolution":
            assert split == (pin, (1, 1, 1, 1))
        if node.operator in ("max_pool", "batch_normalize"):
            assert split[0] == pin


def recursive(
    operators: Sequence[tuple[str, Sequence[str]]], shapes: dict[str, tuple[int, ...]], devices: int
) -> list[SplitCounts]:
    """Return what recursive programming makes of operators; ``x`` and ``i`` are inputs."""
    build = Builder()
    known: dict[str, Value] = {}
    for name, shape in shapes.items():
        value = Value(name, TensorType("int32" if name == "i" else "float32", shape))
        known[name] = build.input(value) if name in "xi" else build.parameter(value, {})
    for operator, operands in operators:
        known["made"] = build.emit(operator, *(known[name] for name in operands))
    graph, mesh = build.graph("vector", (known["made"].name,)), mesh_of_binary_axes(devices)
    strategies = recursive_programming(graph, mesh)
    return [counts(graph, node, strategies[node.name], mesh) for node in graph.nodes]


@pytest.mark.parametrize(
    ("operators", "shapes", "devices", "expected"),
    [
        (  # sapp_custom_strategy, the configured strategy left aside
            [("matmul", "xy"), ("matmul", ("made", "z"))],
            {"x": (32_768, 1024), "y": (1024, 1024), "z": (1024, 1024)},
            8,
            ((8, 1), (1, 1)),
        ),
        ([("matmul", "xy")], {"x": (160, 320), "y": (320, 3_200_000)}, 8, ((1, 1), (1, 8))),
        (
            [("matmul", "xy"), ("rms_norm", ("made", "w"))],
            {"x": (8, 320), "y": (320, 409_600), "w": (409_600,)},
            8,
            ((8, 1), (1,)),
        ),
        ([("gather", "ti")], {"t": (64, 64), "i": (64, 64)}, 8, ((1, 1), (8, 1))),
        ([("gather", "ti")], {"t": (1024, 128), "i": (2, 1024)}, 8, ((4, 1), (2, 1))),
        ([("gather", "ti")], {"t": (128,), "i": (4,)}, 8, ((1,), (4,))),
        ([("l2_normalize", "x")], {"x": (2, 2, 2)}, 2, ((2, 1, 1),)),
    ],
    ids=[
        "custom_strategy",
        "opt_restrict",
        "rms_norm",
        "gather",
        "gather_2",
        "gather_3",
        "batch_parallel",
    ],
)
def test_recursive_programming(
    operators: Sequence[tuple[str, Sequence[str]]],
    shapes: dict[str, tuple[int, ...]],
    devices: int,
    expected: SplitCounts,
) -> None:
    assert recursive(operators, shapes, devices)[-1] == expected
