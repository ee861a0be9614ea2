import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import Cluster, Device, Level, cluster
from shardwright.cost_model.collectives import collective_seconds
from shardwright.cost_model.roofline import (
    node_axes,
    node_seconds,
    operator_seconds,
    operator_work,
    program_seconds,
    seconds_of_nodes,
)
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout, Strategy, local_bytes
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse
from shardwright.ir.types import TensorType
from shardwright.operators.info import OperatorInfo, operator_info
from tests.random_graphs import random_graph

LAUNCH = 1e-6
CARD = Device(
    name="card",
    peak_flops={"float32": 1e12, "float16": 4e12},
    memory_bandwidth=1e11,
    memory_bytes=1 << 30,
    launch_seconds=LAUNCH,
)
LAB = Cluster(
    name="lab",
    device=CARD,
    levels=(
        Level(name="node", size=8, bandwidth=1e11, latency=1e-6),
        Level(name="row", size=8, bandwidth=1e10, latency=5e-6),
    ),
)
MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 4)))


def laid(*dimensions: str, partial: tuple[str, ...] = ()) -> Layout:
    return Layout(tuple(tuple(axes) for axes in dimensions), partial)


def matmul(m: int, k: int, n: int, dtype: str = "float32") -> OperatorInfo:
    return operator_info("matmul", [TensorType(dtype, (m, k)), TensorType(dtype, (k, n))], {})


def seconds(info: OperatorInfo, *layouts: Layout) -> float:
    count = len(info.operand_types)
    return operator_seconds(info, layouts[:count], layouts[count:], MESH, LAB)


WHOLE = (laid("", ""), laid("", ""), laid("", ""))


def test_bytes_on_a_rank() -> None:
    tensor = TensorType("float32", (8, 16))
    assert local_bytes(tensor, laid("", ""), MESH) == 512
    assert local_bytes(tensor, laid("x", "y"), MESH) == 64
    assert local_bytes(tensor, laid("", "y", partial=("x",)), MESH) == 128


def test_a_large_product_is_bound_by_computation() -> None:
    found = seconds(matmul(4096, 4096, 4096), *WHOLE)
    assert found == pytest.approx(2 * 4096**3 / 1e12 + LAUNCH)


def test_a_thin_product_is_bound_by_memory() -> None:
    moved = 4 * (4096 * 4096 + 4096 + 4096)
    assert seconds(matmul(1, 4096, 4096), *WHOLE) == pytest.approx(moved / 1e11 + LAUNCH)


def test_half_precision_has_its_own_rate_and_unknown_types_that_of_float32() -> None:
    work = 2 * 4096**3
    half = seconds(matmul(4096, 4096, 4096, "float16"), *WHOLE)
    assert half == pytest.approx(work / 4e12 + LAUNCH)
    double = seconds(matmul(4096, 4096, 4096, "float64"), *WHOLE)
    assert double == pytest.approx(work / 1e12 + LAUNCH)


@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param((laid("x", ""), laid("", "y"), laid("x", "y")), id="rows-and-columns"),
        pytest.param((laid("x", "y"), laid("y", ""), laid("x", "", partial=("y",))), id="inner"),
        pytest.param((laid("", "xy"), laid("xy", ""), laid("", "", partial=("x", "y"))), id="k"),
    ],
)
def test_split_work_is_divided(layouts: tuple[Layout, ...]) -> None:
    found = seconds(matmul(4096, 4096, 4096), *layouts)
    assert found == pytest.approx(2 * 4096**3 / 8 / 1e12 + LAUNCH)


def test_work_that_ranks_repeat_is_not_divided() -> None:
    x_alone = (laid("x", ""), laid("", ""), laid("x", ""))
    found = seconds(matmul(4096, 4096, 4096), *x_alone)
    assert found == pytest.approx(2 * 4096**3 / 2 / 1e12 + LAUNCH)


def test_views_cost_nothing() -> None:
    view = operator_info("reshape", [TensorType("float32", (8, 16))], {"shape": (128,)})
    assert seconds(view, laid("", ""), laid("")) == 0
    rows, columns = (
        operator_info("split", [TensorType("float32", (8, 16))], {"axis": axis, "parts": 2})
        for axis in (0, 1)
    )
    assert seconds(rows, laid("", ""), laid("", ""), laid("", "")) == 0
    assert seconds(columns, laid("", ""), laid("", ""), laid("", "")) > 0
    constant = operator_info("fill", [], {"shape": (8,), "dtype": "float32", "value": 0.0})
    assert seconds(constant, laid("")) == 0


def program(lines: str, mesh: str = "x=2 y=4:1") -> Graph:
    return parse(f"graph g on {mesh} {{\n{lines}\n  return\n}}")


# 8 x 16 numbers of 4 bytes are 512 bytes; along `y` the slice has 128.
@pytest.mark.parametrize(
    ("lines", "kind", "nbytes", "axes"),
    [
        ("input p: f32[8, 16] +x\n r: f32[8, 16]* = all_reduce(p) {axes=('x',)}",)
        + ("all_reduce", 512, "x"),
        ("input p: f32[8@y, 16] +x\n r: f32[8@y, 16] = all_reduce(p) {axes=('x',)}",)
        + ("all_reduce", 128, "x"),
        ("input p: f32[8@y, 16]\n r: f32[8, 16]* = all_gather(p) {axes=('y',), dimension=0}",)
        + ("all_gather", 512, "y"),
        (
            "input p: f32[8, 16] +x+y\n"
            "r: f32[8@x@y, 16] = reduce_scatter(p) {axes=('x', 'y'), dimension=0}",
        )
        + ("reduce_scatter", 512, "xy"),
        (
            "input p: f32[8@y, 16]\n r: f32[8, 16@y] = all_to_all(p) "
            "{axes=('y',), concat_dimension=0, split_dimension=1}",
        )
        + ("all_to_all", 128, "y"),
        (
            "input p: f32[8@x@y, 16]\n r: f32[8@y@x, 16] = collective_permute(p) "
            "{axes=('y', 'x'), dimension=0, previous=('x', 'y')}",
        )
        + ("permute", 64, "xy"),
        (
            "input p: f32[8@y, 16]\n r: f32[8@y, 16] = neighbor_exchange(p) {axes=('y',)}",
            "permute",
            128,
            "y",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_communication_costs_a_launch_and_its_collective(
    lines: str, kind: str, nbytes: float, axes: str
) -> None:
    graph = program(lines)
    assert graph.mesh is not None
    members = [graph.mesh.axis(axis) for axis in axes]
    expected = LAUNCH + collective_seconds(kind, nbytes, members, LAB).seconds
    assert node_seconds(graph.nodes[0], graph, LAB) == pytest.approx(expected, rel=1e-12)
    assert set(node_axes(graph.nodes[0], graph)) == set(axes)


def test_local_moves_read_and_write_what_they_keep() -> None:
    graph = program(
        "input p: f32[8, 16]*\n"
        "s: f32[8@y, 16] = local_slice(p) {axes=('y',), dimension=0}\n"
        "t: f32[8, 16] +x = to_partial(p) {axes=('x',)}"
    )
    cut, cleared = (node_seconds(node, graph, LAB) for node in graph)
    assert cut == pytest.approx(LAUNCH + 2 * 128 / 1e11)
    assert cleared == pytest.approx(LAUNCH + 2 * 512 / 1e11)
    assert [node_axes(node, graph) for node in graph] == [(), ()]


def test_what_only_marks_costs_nothing() -> None:
    graph = program(
        "input p: f32[8, 16]*\n"
        "m: f32[8, 16]* = mirror(p) {axes=('x',)}\n"
        "r: f32[8@x, 16] = redistribute(m)"
    )
    assert program_seconds(graph, LAB) == 0


BY_HAND = """
graph by_hand on world=4 {
  input x: f32[8, 16]
  s: f32[8, 16] = all_reduce(x) {group_size=4}
  t: f32[8, 16] = all_reduce(x) {axes=('world',), group_size=4}
  o: f32[8, 16] = own_gradient(s) {axes=('world',), members=(0,)}
  i: f32[8, 16] = send_receive(o) {axes=('world',), pairs=((0, 1),)}
  g: f32[8, 16] = all_reduce(x) {axes=('world',), groups=((0, 1), (2, 3))}
  y: f32[8, 16] = relu(i)
  return y
}
"""


def test_hand_written_programs_speak_of_a_rank_and_of_all_ranks() -> None:
    graph = parse(BY_HAND)
    assert graph.mesh is not None
    found = {node.name: node_seconds(node, graph, LAB) for node in graph}
    world = [graph.mesh.axis("world")]
    reduced = collective_seconds("all_reduce", 512, world, LAB).seconds
    assert found["s"] == found["t"] == pytest.approx(LAUNCH + reduced)
    assert found["o"] == 0
    pair = collective_seconds("all_reduce", 512, [MeshAxis("pair", 2)], LAB).seconds
    assert found["g"] == pytest.approx(LAUNCH + pair)
    message = collective_seconds("permute", 512, world, LAB).seconds
    assert found["i"] == pytest.approx(LAUNCH + message)
    assert found["y"] == pytest.approx(LAUNCH + 1024 / 1e11)
    assert program_seconds(graph, LAB) == pytest.approx(sum(found.values()))


def test_a_program_without_a_mesh_runs_whole() -> None:
    graph = parse("graph g {\n  input x: f32[8, 16]\n  y: f32[8, 16] = relu(x)\n  return y\n}")
    assert program_seconds(graph, LAB) == pytest.approx(LAUNCH + 1024 / 1e11)


def test_more_devices_never_make_a_node_dearer_than_the_whole_operator() -> None:
    cpu = cluster("cpu")
    for seed in range(5):
        compiled = compile_graph(random_graph(seed, nodes=6), cpu, 8)
        program_ = compiled.program
        assert program_.mesh is not None
        for node in program_:
            if node_axes(node, program_) or node.operator in ("local_slice", "to_partial"):
                continue
            values = program_.operand_values(node)
            info = operator_info(node.operator, [v.type for v in values], node.attributes)
            whole = [Layout.replicated(v.type.rank) for v in (*values, *node.results)]
            taken, left = whole[: len(values)], whole[len(values) :]
            limit = operator_seconds(info, taken, left, program_.mesh, cpu)
            assert node_seconds(node, program_, cpu) <= limit


def test_equal_nodes_are_priced_once_and_cost_the_same() -> None:
    cpu = cluster("cpu")
    for seed in range(3):
        program_ = compile_graph(random_graph(seed, nodes=6), cpu, 8).program
        one_by_one = [node_seconds(node, program_, cpu) for node in program_]
        assert seconds_of_nodes(program_, cpu) == one_by_one


def test_windows_split_unevenly_cost_the_most_that_a_rank_has() -> None:
    """Of seven windows a rank has four, though runs are equally long."""
    info = operator_info(
        "transposed_convolution",
        [TensorType("float32", (1, 256, 7, 64)), TensorType("float32", (256, 256, 3, 3))],
        {"space": (7, 64), "slices": (2, 1), "padding": ((1, 1), (1, 1)), "size": (7, 64)},
    )
    mesh = Mesh((MeshAxis("x", 2),))
    split, whole = Layout(((), (), ("x",), ())), Layout.replicated(4)
    pod = cluster("a100-pod:figures=datasheet")
    found = operator_seconds(info, (split, whole), (split,), mesh, pod)
    peak = pod.device.flops_per_second("float32")
    expected = info.flops * 4 / 7 / peak + pod.device.launch_seconds
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("operator", ["pack", "concat"])
def test_putting_many_tensors_together_computes_nothing(operator: str) -> None:
    """The factors of 200 operands have a product beyond any floating-point number."""
    info = operator_info(operator, [TensorType("float32", (512, 512))] * 200, {})
    assert info.flops == 0.0


def test_heads_of_queries_split_further_than_their_keys_are_counted_once():
    mesh = Mesh((MeshAxis("x", 4), MeshAxis("y", 2)))
    kinds = [TensorType("float32", (2, heads, 16, 8)) for heads in (8, 4, 4)]
    info = operator_info("scaled_dot_product_attention", kinds, {})
    whole = operator_work(info, *info.infer_tensor_layouts(Strategy(), mesh), mesh)
    strategy = Strategy.of({"h": ("x",), "g": ("y",)})
    split = operator_work(info, *info.infer_tensor_layouts(strategy, mesh), mesh)
    assert split.flops == pytest.approx(whole.flops / 8)
