"""The text of a program for PyTorch: its lines, and what is refused. Needs no PyTorch."""

import re
from collections import Counter

import pytest

import shardwright as sw
from shardwright.exports.emission.expressions import Expressions
from shardwright.exports.table import export
from shardwright.exports.torch.torch_program import VOCABULARY
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_class, operator_names
from tests.extent import ANY_PLAN

GPT = "gpt:layers=1,hidden=32,heads=4,batch=8,sequence=16,vocabulary=64"
MESH = Mesh((MeshAxis("x", 2),))


def program_of(plan):
    text = export(plan, "torch").files["program.py"]
    compile(text, "program.py", "exec")
    return text


@pytest.mark.parametrize("options", [ANY_PLAN, {"plan": "data=4,zero=3,micro_batch=1"}])
def test_the_program_has_a_line_for_each_operator_and_no_other_collective(options):
    plan = sw.compile(GPT, 4, optimizer="adam", **options).plan
    text = program_of(plan)
    expected = Counter(node.operator for node in plan.program.nodes)
    found = Counter(re.findall(r" = \w+\.(\w+)\(", text))
    passes = len(re.findall(r"^        totals\.(?:reduce|append)\(", text, re.MULTILINE))
    collectives = Counter(re.findall(r" = mesh\.((?!own)\w+)\(", text))
    assert sum(found.values()) - found["own"] + passes == sum(expected.values())
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert collectives[kind] == expected[kind]
    assert collectives["all_reduce"] + passes == expected["all_reduce"]


def test_an_operator_without_a_translation_is_named_with_its_module():
    kind, layout = TensorType("float32", (4,)), Layout((("x",),))
    x, y = Value("x", kind, layout), Value("y", kind, layout)
    node = Node("l2_normalize", ("x",), (y,), scope="layer/noise")
    graph = Graph("one", (x,), (), (node,), ("y",), mesh=MESH)
    with pytest.raises(
        PlanError, match="`l2_normalize` of `y` in `layer/noise` has no translation"
    ):
        Expressions(graph, MESH, VOCABULARY).of(node)


def test_every_function_is_that_of_an_operator_and_takes_its_attributes():
    helpers = {"widened", "dtype_of"}
    for name, signature in VOCABULARY.signatures.items():
        if name in helpers or name[0].isupper():  # types
            continue
        assert name in operator_names(), name
        own = set(operator_class(name).defaults)
        told = {"shape", "shapes", "starts", "whole_shape", "whole", "kernel", "stride", "padding"}
        told |= {"keys"}
        others = signature.keywords - own - told
        assert all(k.startswith(("start_", "size_", "whole_")) for k in others), (name, others)


def test_values_of_any_name_become_distinct_variables():
    kind = TensorType("float32", ())
    names = ("a.b", "a_b", "for", "1", "mesh", "a/b")
    values = tuple(Value(name, kind, Layout(())) for name in names)
    graph = Graph("names", values, (), (), (), mesh=MESH)
    found = [Expressions(graph, MESH, VOCABULARY).name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(name.isidentifier() and name not in ("mesh", "for") for name in found)
