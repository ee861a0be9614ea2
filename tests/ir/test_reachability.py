"""Live nodes and values, and where values die."""

from shardwright.ir.liveness import dying_values
from shardwright.ir.reachability import live
from shardwright.ir.text import parse

GRAPH = parse("""
graph chain {
  input x: f32[4]
  parameter w: f32[4]*
  a: f32[4] = mul(x, w)
  dead: f32[4] = exp(a)
  b: f32[4] = relu(a)
  w.next: f32[4] = add(w, b)
  return b
  update w = w.next
}
""")


def test_nodes_that_an_end_depends_on_are_live() -> None:
    nodes, values = live(GRAPH.nodes, ["b"])
    assert [node.name for node in nodes] == ["a", "b"]
    assert values == {"x", "w", "a", "b"}


def test_values_die_after_their_last_use() -> None:
    assert dying_values(GRAPH) == (("x",), ("dead",), ("a",), ("b", "w.next"))


def test_a_parameter_dies_where_an_update_replaces_it() -> None:
    assert dying_values(GRAPH, {"w"})[-1] == ("w", "b", "w.next")
