"""Stretches: each operator is in one, and what one receives another sends."""

from itertools import pairwise

import pytest

from shardwright.dataflow.stretches import Line
from shardwright.ir.reachability import live
from shardwright.ir.text import parse
from shardwright.operators.verify import verify
from shardwright.passes.canonicalize import Canonicalize
from shardwright.zoo import load
from tests.random_graphs import random_graph
from tests.zoo_sizes import SMALL

TIED = """graph tied {
  input x: f32[4, 3]
  parameter w: f32[3, 3]
  parameter b: f32[3]
  scaled: f32[4, 3] = scale(x) {factor=2.0}
  h: f32[4, 3] = matmul(scaled, w)
  r: f32[4, 3] = relu(h)
  p: f32[3, 3] = relu(w)
  y: f32[4, 3] = matmul(r, p)
  z: f32[4, 3] = add(y, b)
  s: f32[4, 3] = mul(z, scaled)
  loss: f32[] = reduce_sum(s)
  return loss
}
"""


def test_a_parameter_is_at_home_where_it_is_read_first() -> None:
    line = Line(parse(TIED))
    assert [node.name for node in line.operators] == ["h", "r", "y", "z", "s", "loss"]
    assert line.everywhere == {"scaled"}
    first, last = line.stretch(0, 2), line.stretch(2, 6)
    assert first.sent == ("w", "r")
    assert [node.name for node in last.graph.nodes] == ["scaled", "p", "y", "z", "s", "loss"]
    assert last.received == {"r", "w"}
    assert [parameter.name for parameter in last.graph.parameters] == ["b"]
    assert last.graph.outputs == ("loss",)
    assert first.graph.outputs == ()


def test_alone_a_stretch_returns_nothing_that_it_does_not_compute() -> None:
    line = Line(parse(TIED.replace("return loss", "return loss, scaled")))
    first, alone = (line.stretch(0, 2, alone=one).graph for one in (False, True))
    assert [node.name for node in first.nodes] == ["scaled", "h", "r"]
    assert first.outputs == ("scaled",)
    assert [node.name for node in alone.nodes] == ["h", "r"]
    assert alone.outputs == ()


def test_stages_ascend_in_program_order() -> None:
    stages = Line(parse(TIED)).stages([2, 4])
    assert list(stages.values()) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert stages["p"] == 1


@pytest.mark.parametrize("model", [*range(12), "gpt", "llama", "mixtral", "vit"])
def test_stretches_divide_a_program(model: int | str) -> None:
    graph = random_graph(model, 7) if isinstance(model, int) else load(SMALL[model]).graph
    line = Line(Canonicalize().run(graph))
    count = len(line.operators)
    cuts = sorted({0, count // 3, count // 2, count})
    pairs = list(pairwise(cuts))
    parts = [line.stretch(*pair) for pair in pairs]
    sent = {name for part in parts for name in part.sent}
    assert {name for part in parts for name in part.received} == sent
    held = [p.name for part in parts for p in part.graph.parameters if p.trainable]
    assert sorted(held) == sorted(p.name for p in line.graph.parameters if p.trainable)
    made = [n.name for part in parts for n in part.graph.nodes if n.name not in line.everywhere]
    alive = {node.name for node in live(line.graph.nodes, line.graph.kept()).nodes}
    assert sorted(made) == sorted(alive & line.position.keys())
    stages = line.stages(cuts[1:-1])
    assert list(stages.values()) == sorted(stages.values())
    for number, part in enumerate(parts):
        verify(part.graph)
        assert all(stages[n.name] == number or n.name in line.everywhere for n in part.graph.nodes)
