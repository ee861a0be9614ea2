"""MindSpore's cost profile finds the strategies that MindSpore's own tests assert."""

import json
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from shardwright import operators
from shardwright.cost_model.mindspore.costs import (
    MindSporeCosts,
    mesh_of_binary_axes,
    operator_volume,
)
from shardwright.ir.errors import ClusterError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo, operator_info

assert operators.__all__, "importing the package registers the operators"

DATA = Path(__file__).parents[1] / "data" / "mindspore_strategies.json"
PUBLISHED = Path(__file__).parents[3] / "shared" / "vectors" / "mindspore_strategies.json"
VECTORS = json.loads(DATA.read_text())["vectors"]


def info_of(name: str, *shapes: tuple[int, ...], **attributes) -> OperatorInfo:
    return operator_info(name, [TensorType("float32", shape) for shape in shapes], attributes)


# Published strategies


@dataclass(frozen=True)
class Line:
    name: str
    info: OperatorInfo
    operands: tuple[str, ...]


def read(text: list[str]) -> list[Line]:
    """Read lines like ``m = matmul(x[128,32], y[32,64])``."""
    types: dict[str, TensorType] = {}
    lines = []
    for line in text:
        name, operator, arguments = re.fullmatch(r"(\w+) = (\w+)\((.*)\)", line).groups()
        permutation = re.search(r", \(([\d,]+)\)$", arguments)
        attributes = {}
        if permutation:
            attributes["permutation"] = tuple(map(int, permutation[1].split(",")))
            arguments = arguments[: permutation.start()]
        found = re.findall(r"(\w+)(?:\[([\d,]+)\])?(?:, |$)", arguments)
        for operand, shape in found:
            if shape:
                types[operand] = TensorType("float32", tuple(map(int, shape.split(","))))
        operands = tuple(operand for operand, _ in found)
        info = operator_info(operator, [types[operand] for operand in operands], attributes)
        types[name] = info.result_types[0]
        lines.append(Line(name, info, operands))
    return lines


class Program:
    """A program whose assignments are priced one by one, from tables."""

    def __init__(self, vector: dict) -> None:
        self.mesh = mesh_of_binary_axes(vector["devices"])
        self.costs = MindSporeCosts(era=vector["era"])
        self.has_dataset = vector["era"] == "2025"  # which is replicated and feeds every input
        self.lines = read(vector["graph"])
        self.choices = [self.costs.strategies(line.info, self.mesh) for line in self.lines]
        self.place = {line.name: i for i, line in enumerate(self.lines)}
        self.nodes = [
            [self.node_cost(line, strategy) for strategy in choices]
            for line, choices in zip(self.lines, self.choices, strict=True)
        ]
        self.edges = [edge for line in self.lines for edge in self.edges_into(line)]

    def node_cost(self, line: Line, strategy: Strategy) -> float:
        inputs = [i for i, name in enumerate(line.operands) if name not in self.place]
        cost = self.costs.operator_cost(
            line.info, strategy, self.mesh, [False] * len(line.operands)
        )
        taken, _ = line.info.infer_tensor_layouts(strategy, self.mesh)
        for i in inputs if self.has_dataset else []:
            kind = line.info.operand_types[i]
            cost += self.costs.redistribution_cost(
                kind, Layout.replicated(kind.rank), taken[i], self.mesh
            )
        return cost

    def edges_into(self, line: Line):
        target = self.place[line.name]
        for position, name in enumerate(line.operands):
            if name in self.place:
                source = self.place[name]
                yield source, target, self.edge_table(source, target, position)

    def edge_table(self, source: int, target: int, position: int) -> list[list[float]]:
        tensor = self.lines[target].info.operand_types[position]
        lefts = [
            self.lines[source].info.infer_tensor_layouts(s, self.mesh)[1][0]
            for s in self.choices[source]
        ]
        rights = [
            self.lines[target].info.infer_tensor_layouts(s, self.mesh)[0][position]
            for s in self.choices[target]
        ]
        return [
            [self.costs.redistribution_cost(tensor, a, b, self.mesh) for b in rights] for a in lefts
        ]

    def all_costs(self):
        """Give every assignment with its cost."""
        for chosen in product(*(range(len(choices)) for choices in self.choices)):
            cost = sum(table[i] for table, i in zip(self.nodes, chosen, strict=True))
            yield cost + sum(t[chosen[a]][chosen[b]] for a, b, t in self.edges), chosen


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_published_strategies_are_the_only_optimum(vector):
    program = Program(vector)
    ranked = sorted(program.all_costs())
    assert len(ranked) >= vector["assignments"]  # those were counted without whole operators
    (best, chosen), (second, _) = ranked[:2]
    assert best < second
    assert round(best) == vector["cost"]
    found = {
        line.name: [list(counts) for counts in line.info.split_counts(choices[i], program.mesh)]
        for line, choices, i in zip(program.lines, program.choices, chosen, strict=True)
    }
    assert found == vector["expected"]


def test_our_copy_is_what_was_published():
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is absent")
    assert json.loads(PUBLISHED.read_text()) == json.loads(DATA.read_text())


# Strategies


def counts_of(info: OperatorInfo, era: str, devices: int) -> list[tuple[int, ...]]:
    mesh = mesh_of_binary_axes(devices)
    found = MindSporeCosts(era=era).strategies(info, mesh)
    return [info.infer_device_matrix(strategy, mesh) for strategy in found]


def test_r1_0_uses_all_devices():
    assert counts_of(info_of("matmul", (4, 4), (4, 4)), "r1.0", 4) == [
        (4, 1, 1),
        (2, 2, 1),
        (2, 1, 2),
        (1, 4, 1),
        (1, 2, 2),
        (1, 1, 4),
    ]


def test_r1_0_also_has_every_device_do_all_the_work():
    # `generate_strategy_test` of MindSpore counts 5 for two equal operands on 8 devices.
    info = info_of("add", (64, 32), (64, 32))
    found = counts_of(info, "r1.0", 8)
    assert found == [(8, 1), (4, 2), (2, 4), (1, 8), (1, 1)]


def test_2025_may_use_fewer():
    assert counts_of(info_of("relu", (4, 4)), "2025", 4) == [
        (4, 1),
        (2, 2),
        (2, 1),
        (1, 4),
        (1, 2),
        (1, 1),
    ]


def test_factors_have_neighbouring_axes_in_their_order():
    info, mesh = info_of("matmul", (4, 4), (4, 4)), mesh_of_binary_axes(16)
    for strategy in MindSporeCosts(era="2025").strategies(info, mesh):
        axes = strategy.of_factors(("m", "k", "n"))
        assert axes == mesh.names[: len(axes)]


def test_a_transposed_product_has_the_device_matrix_of_a_plain_one():
    plain = info_of("matmul", (4, 8), (8, 16))
    transposed = info_of("matmul", (8, 4), (8, 16), transpose_a=True)
    mesh = mesh_of_binary_axes(16)
    one, other = (MindSporeCosts().strategies(info, mesh) for info in (plain, transposed))
    assert [s.axes for s in one] == [s.axes for s in other]


def test_the_repeated_axis_stands_first_in_r1_0_and_last_in_2025():
    info, mesh = info_of("relu", (2,)), mesh_of_binary_axes(4)
    split, whole = MindSporeCosts(era="r1.0").strategies(info, mesh)
    assert (split, whole) == (Strategy.of({"d0": ("d1",)}), Strategy())
    first, nothing = MindSporeCosts(era="2025").strategies(info, mesh)
    assert (first, nothing) == (Strategy.of({"d0": ("d0",)}), Strategy())


@pytest.mark.parametrize("era", ["r1.0", "2025"])
def test_a_scalar_and_a_whole_dimension_are_not_split(era):
    mesh, costs = mesh_of_binary_axes(8), MindSporeCosts(era=era)
    assert costs.strategies(info_of("relu", ()), mesh) == (Strategy(),)
    for strategy in costs.strategies(info_of("softmax", (64, 64)), mesh):
        assert "i1" not in strategy.axes


@pytest.mark.parametrize("devices", [0, 6])
def test_only_powers_of_two_make_a_mesh(devices):
    with pytest.raises(ClusterError) as error:
        mesh_of_binary_axes(devices)
    assert error.value.what == (
        f"there are {devices} devices, the `mindspore` profile takes a power of two"
    )


# Costs of operators

MESH = mesh_of_binary_axes(8)
NAMES = MESH.names


def split(**axes: int) -> Strategy:
    """Give factors the axes of the mesh in turn, as many as each is to have."""
    start, chosen = 0, {}
    for factor, count in axes.items():
        chosen[factor] = NAMES[start : start + count]
        start += count
    return Strategy.of(chosen)


def test_a_contracted_dimension_costs_the_result():
    info = info_of("matmul", (64, 32), (32, 128))
    volume = operator_volume(info, split(m=1, k=2), MESH, (False, False))
    reads, result = 4 * (32 * 8 + 8 * 128), 4 * 32 * 128
    assert volume == (reads + result, 0, result, 0)


def test_a_parameter_costs_its_slice_unless_every_device_has_another():
    info = info_of("matmul", (64, 32), (32, 128))
    slice_bytes = 4 * 32 * 128 // 4
    split_4 = operator_volume(info, split(m=1, n=2), MESH, (False, True))
    assert (split_4.gradient_computation, split_4.backward) == (slice_bytes, slice_bytes)
    split_8 = operator_volume(info, split(n=3), MESH, (False, True))
    assert (split_8.gradient_computation, split_8.backward) == (0, 0)


def test_the_published_prelu():
    info, mesh = info_of("prelu", (32, 32, 32, 32), (32,)), mesh_of_binary_axes(64)
    (batch,), _, (rows,), (columns,) = info.rule.operands[0]
    strategy = Strategy.of({batch: ("d0", "d1"), rows: ("d2", "d3"), columns: ("d4", "d5")})
    volume = operator_volume(info, strategy, mesh, (False, True))
    assert volume == (8 * 32 * 8 * 8 * 4 + 128, 128, 0, 128)


def test_the_objective_of_an_operator():
    costs = MindSporeCosts(beta=10, gamma=0.5, threshold=100, constant=1000, bias=7)
    info = info_of("matmul", (64, 32), (32, 128))
    reads, weight, result = 4 * (64 * 16 + 16 * 128), 4 * 16 * 128, 4 * 64 * 128
    cost = costs.operator_cost(info, split(k=1), MESH, [False, True])
    assert cost == reads + result + 10 * (result + 7 + 0.5 * weight)


def test_little_communication_costs_a_constant():
    info = info_of("matmul", (1, 32), (32, 1))
    reads, result = 4 * (16 + 16), 4
    cost = MindSporeCosts().operator_cost(info, split(k=1), MESH, [False, False])
    assert cost == reads + result + 400 * 3072


def test_data_parallel_wins_ties():
    info = info_of("relu", (64, 64))
    rows, columns = (split(d0=3), split(d1=3))
    costs = [MindSporeCosts().operator_cost(info, s, MESH, [False]) for s in (rows, columns)]
    assert costs == [64 * 64 * 4 / 8 - 1, 64 * 64 * 4 / 8]


def test_a_mean_over_devices_counts_twice():
    info = info_of("reduce_mean", (64, 64), axis=0)
    volume = operator_volume(info, split(i0=3), MESH, (False,))
    assert (volume.computation, volume.forward) == (64 * 64 * 4 / 8 + 2 * 256, 256)
