"""Fused gradients are the gradients, and there are fewer all-reduces."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.mindspore.allreduce_fusion import fusion_ids_by_size
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse, to_text
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.verify import verify
from shardwright.passes.append_optimizer import AppendOptimizer
from shardwright.passes.differentiate import Differentiate
from shardwright.passes.fuse_all_reduces import fused_by_ids, reduced_gradients
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.runtime.communicator import LocalCommunicator
from shardwright.runtime.executor import Executor
from shardwright.runtime.state import initialize

MESH = Mesh((MeshAxis("data", 2), MeshAxis("model", 2)))
CLUSTER = cluster("cpu")
PARAMETERS = ("w1", "b1", "w2", "b2")


def value(name: str, shape: tuple[int, ...], *splits: str) -> Value:
    layout = Layout(tuple((axis,) if axis else () for axis in splits))
    return Value(name, TensorType("float32", shape), layout)


def training_program(optimizer: str = "momentum") -> Graph:
    """Build two layers, data parallel; the first split by columns, the second by rows."""
    build = Builder(MESH)
    x = build.input(value("x", (8, 6), "data", ""))
    shapes = [((6, 4), "", "model"), ((4,), "model"), ((4, 2), "model", ""), ((2,), "")]
    w1, b1, w2, b2 = (
        build.emit("mirror", build.parameter(value(name, shape, *splits)), axes=("data",))
        for name, (shape, *splits) in zip(PARAMETERS, shapes, strict=True)
    )
    h = build.emit("tanh", build.emit("bias_add", build.emit("matmul", x, w1), b1))
    part = build.emit("matmul", h, w2)
    y = build.emit("bias_add", build.emit("all_reduce", part, axes=("model",)), b2)
    loss = build.emit("reduce_sum", build.emit("mul", y, y))
    build.emit("all_reduce", loss, name="loss", axes=("data",))
    graph = Differentiate().run(build.graph("net", ("loss",)))
    graph = LowerRedistributions(CLUSTER).run(graph)
    return AppendOptimizer(optimizer).run(graph)  # type: ignore[arg-type]


def same(fusion: int) -> dict[str, int]:
    return dict.fromkeys(PARAMETERS, fusion)


def fused(graph: Graph, ids: Mapping[str, int]) -> Graph:
    """Fuse, and check that what comes out is well formed and survives text and a second run."""
    result = fused_by_ids(graph, ids)
    verify(result)
    assert parse(to_text(result)) == result
    assert fused_by_ids(result, ids) == result
    assert set(graph.values) <= set(result.values)
    return result


def reduced(graph: Graph) -> list[tuple[int, int]]:
    """Return fusion id and whole elements of every marked all-reduce."""
    return [
        (int(node.attributes["fusion"]), node.results[0].type.elements)
        for node in graph
        if node.operator == "all_reduce" and node.attributes.get("fusion")
    ]


def trained(program: Graph, steps: int = 3) -> dict[str, list[np.ndarray]]:
    """Return the loss and every parameter on every rank after some steps."""
    communicator = LocalCommunicator(program.mesh)
    executor = Executor(program, communicator, float_dtype="float64")
    state = initialize(program, 0, communicator, float_dtype="float64")
    random, losses = np.random.default_rng(1), []
    for _ in range(steps):
        inputs = {v.name: random.normal(size=v.type.shape) for v in program.inputs}
        losses += list(executor.step(inputs, state).outputs[program.outputs[0]].values())
    kept = {p.name: list(state[p.name].values()) for p in program.parameters}
    return {"loss": losses, **kept}


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("ids", [same(1), {"w1": 1, "b2": 1, "w2": 2, "b1": 2}])
def test_a_fused_program_trains_the_same(ids, optimizer):
    plain = training_program(optimizer)
    program = fused(plain, ids)
    count = sum(node.operator == "all_reduce" for node in plain)
    groups = len(set(ids.values()))
    assert sum(node.operator == "all_reduce" for node in program) == count - 4 + groups
    expected, found = trained(plain), trained(program)
    assert expected.keys() == found.keys()
    for name, arrays in expected.items():
        np.testing.assert_array_equal(found[name], arrays, err_msg=name)


def test_slices_are_packed_whatever_their_layouts():
    # On a rank: 6 x 2 and 2 and 2 x 2 split elements, and 2 that are the same along `model`.
    assert reduced(fused(training_program(), same(3))) == [(3, (12 + 2 + 4 + 2) * 2)]


def test_what_is_written():
    text = """
graph g on x=2 {
  parameter w: f32[4, 8]*
  parameter b: f32[8@x]
  input g1.copy: f32[4, 8]*
  input g2.copy: f32[8]*
  g1: f32[4, 8] +x = to_partial(g1.copy) {axes=('x',)}
  g2: f32[8] +x = to_partial(g2.copy) {axes=('x',)}
  w.grad: f32[4, 8]* = all_reduce(g1) {axes=('x',)} from h as gradient_redistribution of w
  w.next: f32[4, 8]* = add(w, w.grad)
  b.whole: f32[8]* = all_reduce(g2) {axes=('x',)} from h as gradient_redistribution of b
  b.grad: f32[8@x] = local_slice(b.whole) {axes=('x',), dimension=0}
  update w = w.next
  return b.grad
}
"""
    expected = """
graph g on x=2 {
  input g1.copy: f32[4, 8]*
  input g2.copy: f32[8]*
  parameter w: f32[4, 8]*
  parameter b: f32[8@x]
  g1: f32[4, 8] +x = to_partial(g1.copy) {axes=('x',)}
  g2: f32[8] +x = to_partial(g2.copy) {axes=('x',)}
  w.grad.packed: f32[40] +x = pack(g1, g2) {length=40} from h as fusion of w
  w.grad.reduced: f32[40]* = all_reduce(w.grad.packed) {axes=('x',), fusion=1} \
from h as fusion of w
  w.grad: f32[4, 8]*, b.whole: f32[8]* = unpack(w.grad.reduced) \
{shapes=((4, 8), (8,)), splits=(((), ()), ((),))} from h as fusion of w
  w.next: f32[4, 8]* = add(w, w.grad)
  b.grad: f32[8@x] = local_slice(b.whole) {axes=('x',), dimension=0}
  update w = w.next
  return b.grad
}
"""
    assert to_text(fused(parse(text), {"w": 1, "b": 1})).strip() == expected.strip()


def test_id_zero_and_no_id_are_no_fusion():
    graph = training_program()
    assert fused(graph, {}) == graph
    assert fused(graph, same(0)) == graph


def test_one_gradient_alone_is_marked():
    assert reduced(fused(training_program(), {"w1": 5})) == [(5, 24)]


def with_attribute(graph: Graph, name: str, fusion: int) -> Graph:
    parameters = tuple(
        replace(p, attributes={**p.attributes, "fusion": fusion}) if p.name == name else p
        for p in graph.parameters
    )
    return replace(graph, parameters=parameters)


def test_what_a_person_asked_for_goes_first():
    graph = with_attribute(with_attribute(training_program(), "w1", 2), "b1", 0)
    assert sorted(reduced(fused(graph, same(1)))) == [(1, (4 + 2) * 2), (2, 24)]


def gradients(lines: str, b: str = "f32") -> Graph:
    """Return a program with gradients of `a` and `b` made by `lines`."""
    return parse(
        f"""
graph g on x=2 y=2 {{
  input both.copy: f32[4]*
  input one.copy: {b}[4]*
  parameter a: f32[4]*
  parameter b: {b}[4]*
  both: f32[4] +x+y = to_partial(both.copy) {{axes=('x', 'y')}}
  one: {b}[4] +x = to_partial(one.copy) {{axes=('x',)}}
{lines}
  return a.grad, b.grad
}}
"""
    )


A = "a.grad: f32[4]* = all_reduce(one) {axes=('x',)}\n"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(
            gradients(A + "b.grad: f32[4]* = all_reduce(both) {axes=('x', 'y')}"), id="axes"
        ),
        pytest.param(
            gradients(
                "a.grad: f32[4]* = all_reduce(both) {axes=('x', 'y')}\n"
                "b.grad: f16[4]* = all_reduce(one) {axes=('x',)}",
                b="f16",
            ),
            id="element-type",
        ),
        pytest.param(
            gradients(
                A + "some: f32[4] +y = all_reduce(both) {axes=('x',)}\n"
                "b.grad: f32[4@y] = reduce_scatter(some) {axes=('y',), dimension=0}"
            ),
            id="partial-axes",
        ),
        pytest.param(
            gradients(
                A + "b.part: f32[4] +x = to_partial(a.grad) {axes=('x',)}\n"
                "b.grad: f32[4]* = all_reduce(b.part) {axes=('x',)}"
            ),
            id="dependent",
        ),
    ],
)
def test_what_cannot_be_one_all_reduce_is_not_fused(graph):
    assert reduced(fused(graph, {"a": 1, "b": 1})) == [(1, 4), (1, 4)]


def test_groups_that_wait_for_each_other_are_not_fused():
    lines = """
  a.grad: f32[4]* = all_reduce(one) {axes=('x',)}
  c: f32[4] +x = to_partial(a.grad) {axes=('x',)}
  b.grad: f32[4]* = all_reduce(c) {axes=('x',)}
  p.grad: f32[4]* = all_reduce(one) {axes=('x',)}
  d: f32[4] +x = to_partial(p.grad) {axes=('x',)}
  q.grad: f32[4]* = all_reduce(d) {axes=('x',)}"""
    text = to_text(gradients(lines)).replace(
        "  parameter b: f32[4]*",
        "  parameter b: f32[4]*\n  parameter p: f32[4]*\n  parameter q: f32[4]*",
    )
    # Group 1 waits for `p`, of group 2, which therefore cannot wait for `b`, behind group 1.
    program = fused(parse(text), {"a": 1, "q": 1, "b": 2, "p": 2})
    assert sorted(reduced(program)) == [(1, 8), (2, 4), (2, 4)]


def test_a_program_of_one_rank_s_own_view_is_fused():
    graph = parse(
        """
graph g {
  input g1: f32[4, 2]
  input g2: f32[3]
  parameter a: f32[4, 2]
  parameter b: f32[3]
  a.grad: f32[4, 2] = all_reduce(g1) {group_size=2}
  b.grad: f32[3] = all_reduce(g2) {group_size=2}
  return a.grad, b.grad
}
"""
    )
    assert reduced(fused(graph, {"a": 1, "b": 1})) == [(1, 11)]


def test_sizes_are_those_of_slices_the_latest_first():
    sizes = reduced_gradients(training_program())
    assert sizes == {"w1": 6 * 2, "b1": 2, "w2": 2 * 2, "b2": 2}
    assert list(sizes) == ["w1", "b1", "w2", "b2"]
    program = fused(training_program(), fusion_ids_by_size(sizes, megabytes=16 / (1 << 18)))
    assert reduced(program) == [(2, (4 + 2) * 2), (1, (12 + 2) * 2)]
