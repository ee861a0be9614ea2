"""Graphs for other programs: both forms show where a node comes from."""

import json

from shardwright.ir.export import to_dot, to_json
from shardwright.ir.networkx_view import to_networkx
from shardwright.ir.text import parse

GRAPH = parse("""\
graph g on x=2 {
  input x: f32[4@x, 2]
  parameter w: f32[2@x, 2]
  state w.m of w: f32[2@x, 2]
  w.to_0: f32[2, 2]* = all_gather(w) {axes=('x',), dimension=0} from h as redistribution of w
  h: f32[4@x, 2] = matmul(x, w.to_0)
  return h
}
""")


def test_json() -> None:
    document = json.loads(to_json(GRAPH))
    assert [node["provenance"] for node in document["nodes"]] == [
        {"operator": "h", "role": "redistribution", "tensor": "w", "target": ""},
        {"operator": "h", "role": "forward", "tensor": "", "target": ""},
    ]
    roles = {name: (p["role"], p["weight"]) for name, p in document["parameters"].items()}
    assert roles == {"w": ("weight", ""), "w.m": ("state", "w")}


def test_dot() -> None:
    moves = [line for line in to_dot(GRAPH).splitlines() if "lightblue" in line]
    label = "all_gather\\nw.to_0: f32[2, 2]*\\nfrom h as redistribution of w"
    assert moves == [f'  "w.to_0" [shape=box, style=filled, fillcolor=lightblue, label="{label}"];']


def test_networkx() -> None:
    view = to_networkx(GRAPH)
    kinds = {"x": "input", "w": "parameter", "w.m": "parameter", "w.to_0": "move", "h": "node"}
    assert dict(view.nodes(data="kind")) == kinds
    edges = {("x", "h", "x"), ("w", "w.to_0", "w"), ("w.to_0", "h", "w.to_0")}
    assert set(view.edges(data="value")) == edges
