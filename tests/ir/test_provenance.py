"""Provenance: defaults, phases and text."""

from dataclasses import replace

import pytest

from shardwright.ir.graph import Node, Value
from shardwright.ir.provenance import ROLES, Provenance
from shardwright.ir.text import parse
from shardwright.ir.types import TensorType

VALUE = Value("h", TensorType("float32", (2,)))


def test_a_node_is_an_operator_of_the_model_unless_told_otherwise() -> None:
    node = Node("relu", ("x",), (VALUE,))
    assert node.provenance == Provenance("h", "forward")
    assert replace(node, results=(replace(VALUE, name="g"),)).provenance.operator == "h"
    assert replace(node, provenance=Provenance("", "update")).provenance.operator == ""


@pytest.mark.parametrize(
    ("provenance", "text"),
    [
        (Provenance("h"), ""),
        (Provenance("g"), "from g"),
        (Provenance("h", "backward"), "from h as backward"),
        (Provenance("", "update", "w"), "as update of w"),
        (
            Provenance("h", "redistribution", "w", "w.to_0"),
            "from h as redistribution of w to w.to_0",
        ),
    ],
)
def test_the_text_tells_what_differs_from_an_operator_of_the_model(
    provenance: Provenance, text: str
) -> None:
    assert provenance.text("h") == text


def test_every_role_belongs_to_a_phase() -> None:
    phases = {role: Provenance("h", role).phase for role in ROLES}
    forward = ["forward", "redistribution", "mirror", "offload"]
    assert [role for role in ROLES if phases[role] == "forward"] == forward
    assert [r for r in ROLES if phases[r] == "update"] == ["update"]


def test_a_copy_is_the_tensor_that_it_copies() -> None:
    graph = parse("""\
graph g {
  parameter w: f32[2]
  w.to_0: f32[2] = redistribute(w) from h as redistribution of w
  w.mirror: f32[2] = mirror(w.to_0) from h as mirror of w
  h: f32[2] = relu(w.mirror)
  return h
}
""")
    assert [graph.copied_tensor(name) for name in graph.values] == ["w", "w", "w", "h"]
