"""Rows that are joined for row-wise operators and parted again, and transposed operands."""

import numpy as np
import pytest

from shardwright.frontends.common.imported import finished
from shardwright.ir.graph import Graph, Node
from shardwright.ir.text import parse
from shardwright.operators.info import Array, operator_info, whole_kernel

_HEAD = """graph rows {
  input x: f64[2, 3, 4]
  input w: f64[5, 4]
  input c: f64[5]
"""
_ROUTER = """
  r: f64[6, 4] = reshape(x) {shape=(6, 4)}
  p: f64[6, 5] = matmul(r, w) {transpose_b=True}
  b: f64[6, 5] = add(p, c)
  s: f64[6, 5] = softmax(b) {axis=1}
  t: f64[6, 2], t.1: i64[6, 2] = top_k(s) {axis=-1, k=2}
  n: f64[6, 1] = reduce_sum(t) {axis=(1,), keep_dims=True}
  q: f64[6, 2] = div(t, n)
  m: f64[6] = reduce_max(q) {axis=(1,)}
  v: f64[2, 3] = reshape(m) {shape=(2, 3)}
  i: i64[2, 3, 2] = reshape(t.1) {shape=(2, 3, 2)}
  h: f64[2, 3] = scale(v) {factor=2.0}
"""


def _graph(body: str, *outputs: str) -> Graph:
    return parse(f"{_HEAD}{body}  return {', '.join(outputs)}\n}}\n")


def _run(graph: Graph) -> list[Array]:
    random = np.random.default_rng(0)
    arrays = {value.name: random.normal(size=value.type.shape) for value in graph.inputs}
    for node in graph.nodes:
        info = operator_info(
            node.operator, [graph.values[name].type for name in node.operands], node.attributes
        )
        found = whole_kernel(info, *(arrays[name] for name in node.operands))
        arrays.update(zip((r.name for r in node.results), found, strict=True))
    return [arrays[name] for name in graph.outputs]


def _finished(graph: Graph) -> list[Node]:
    """Return the nodes of the finished import, which computes what the program did."""
    after = finished(graph, {}).graph
    assert after.outputs == graph.outputs
    for one, other in zip(_run(graph), _run(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    return list(after.nodes)


@pytest.mark.parametrize("outputs", [("h",), ("h", "i"), ("v", "i", "h")])
def test_rows_stay_apart_where_all_readers_part_them_again(outputs: tuple[str, ...]) -> None:
    nodes = _finished(_graph(_ROUTER, *outputs))
    assert all(node.results[0].type.shape[:2] == (2, 3) for node in nodes)
    kept = len({"v", "i"} & set(outputs))  # outputs keep their names
    assert sum(node.operator == "reshape" for node in nodes) == kept


JOINED = {
    "an output": ("", "s"),
    "a reader of whole columns": ("  z: f64[6, 5] = softmax(s) {axis=0}\n", "z"),
    "a reader that regroups": ("  z: f64[3, 2, 5] = reshape(s) {shape=(3, 2, 5)}\n", "z"),
    "a product that contracts rows": ("  z: f64[5, 5] = matmul(s, s) {transpose_a=True}\n", "z"),
    "another join": ("  z: f64[30] = reshape(s) {shape=(30,)}\n", "z"),
    "a sum of all": ("  z: f64[] = reduce_sum(s)\n", "z"),
    "a scalar": ("  a: f64[1, 1] = reduce_max(s) {keep_dims=True}\n  z: f64[] = reshape(a)\n", "z"),
    "a broadcast along rows": ("  z: f64[2, 6, 5] = add(s, u)\n", "z"),
}


@pytest.mark.parametrize("reader", JOINED)
def test_rows_stay_joined_for(reader: str) -> None:
    more, output = JOINED[reader]
    body = _ROUTER + "  u: f64[2, 6, 5] = fill() {dtype='float64', shape=(2, 6, 5), value=1.0}\n"
    nodes = _finished(_graph(body + more, "h", output))
    joined = next(node for node in nodes if node.name == "s")
    assert joined.results[0].type.shape == (6, 5)


def test_operands_of_joins_of_other_rows_stay_joined() -> None:
    body = """
  a: f64[6, 4] = reshape(x) {shape=(6, 4)}
  y: f64[3, 2, 4] = reshape(x) {shape=(3, 2, 4)}
  b: f64[6, 4] = reshape(y) {shape=(6, 4)}
  s: f64[6, 4] = add(a, b)
  z: f64[2, 3, 4] = reshape(s) {shape=(2, 3, 4)}
"""
    assert next(n for n in _finished(_graph(body, "z")) if n.name == "s").results[0].type.rank == 2


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("order", "shape", "is_read"),
    [((1, 0), (4, 5), True), ((), (4, 5), True), ((0, 1), (5, 4), False)],
)
def test_a_product_reads_a_transposed_operand_as_it_lies(
    order: tuple[int, ...], shape: tuple[int, ...], is_read: bool, turned: bool
) -> None:
    inner, outer = shape[::-1] if turned else shape
    body = f"""
  g: f64[2, 3, 5] = matmul(x, w) {{transpose_b=True}}
  e: f64[{shape[0]}, {shape[1]}] = transpose(w) {{permutation={order}}}
  z: f64[2, 3, {outer}] = matmul({"x" if inner == 4 else "g"}, e) {{transpose_b={turned}}}
"""
    operators = [node.operator for node in _finished(_graph(body, "z"))]
    assert ("transpose" in operators) != is_read
