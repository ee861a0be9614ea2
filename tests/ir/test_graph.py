import copy
import pickle

import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.text import parse, to_text

BEFORE = """graph chain {
  input x: f32[4]
  parameter w: f32[4]
  a: f32[4] = identity(x)
  b: f32[4] = identity(a)
  c: f32[4] = mul(a, b)
  d: f32[4] = identity(c)
  update w = d
  return b, d
}
"""
AFTER = """graph chain {
  input x: f32[4]
  parameter w: f32[4]
  c: f32[4] = mul(x, x)
  update w = c
  return x, c
}
"""


def test_replaced_values_have_no_readers_and_no_producers_left():
    graph = parse(BEFORE)
    copies = {node.name: node.operands[0] for node in graph if node.operator == "identity"}
    assert to_text(graph.replacing(copies)) == AFTER


def test_a_node_with_a_result_that_stays_stays():
    text = "graph two {\n  input x: f32[4]\n  a: f32[2], b: f32[2] = split(x)\n  return a, b\n}\n"
    graph = parse(text).replacing({"b": "a"})
    assert len(graph) == 1
    assert graph.outputs == ("a", "a")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a": "b", "b": "a"}, "`a` is replaced by itself, through `a` (in graph chain); "),
        ({"a": "a"}, "`a` is replaced by itself, through `a` (in graph chain); "),
        ({"nosuch": "x"}, "graph `chain` has no value `nosuch`"),
        ({"a": "nosuch"}, "graph `chain` has no value `nosuch`"),
    ],
)
def test_replacements_that_cannot_be(names, message):
    with pytest.raises(IRError) as error:
        parse(BEFORE).replacing(names)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda attributes: attributes.update(factor=5.0),
        lambda attributes: attributes.__setitem__("factor", 5.0),
        lambda attributes: attributes.pop("factor"),
        lambda attributes: attributes.clear(),
    ],
)
def test_attributes_cannot_be_changed(change):
    text = "graph g {\n  input x: f32[4]\n  a: f32[4] = scale(x) {factor=2.0}\n  return a\n}\n"
    (node,) = parse(text)
    with pytest.raises(IRError, match="the attributes of a node cannot be changed"):
        change(node.attributes)
    assert node.attributes == {"factor": 2.0}
    assert pickle.loads(pickle.dumps(node)) == copy.deepcopy(node) == node


def test_an_analysis_is_made_once_and_stays_with_the_program() -> None:
    graph, made = parse(BEFORE), []
    for _ in range(2):
        assert graph.analysed("length", lambda: made.append(1) or 4) == 4
    assert made == [1]
    assert graph.with_nodes(graph.nodes).analysed("length", lambda: -1) == -1
    sent = pickle.loads(pickle.dumps(graph))
    assert sent == graph
    assert sent.analysed("length", lambda: -1) == -1
    graph.forget()
    assert graph.analysed("length", lambda: -1) == -1
    assert graph.values.keys() == sent.values.keys()
