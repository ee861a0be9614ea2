"""The text of a program for JAX: its lines, and what is refused. Needs no JAX."""

import re
from collections import Counter

import pytest

import shardwright as sw
from shardwright.exports.emission.expressions import Expressions
from shardwright.exports.emission.vocabulary import RINGS
from shardwright.exports.jax.jax_program import VOCABULARY
from shardwright.exports.table import export
from shardwright.exports.torch.torch_program import VOCABULARY as OF_TORCH
from shardwright.ir.errors import PlanError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_class

GPT = "gpt:layers=1,hidden=32,heads=4,batch=8,sequence=16,vocabulary=64,dtype=float32"
MESH = Mesh((MeshAxis("x", 2),))


def package_of(**options):
    plan = sw.compile(GPT, 4, **options).plan
    files = export(plan, "jax").files
    compile(files["program.py"], "program.py", "exec")
    return plan, files


def test_the_program_calls_the_collectives_of_the_plan_and_repeats_what_is_gathered_again():
    plan, files = package_of(optimizer="adam", plan="data=4,zero=3")
    text = files["program.py"]
    expected = Counter(node.operator for node in plan.program.nodes)
    found = Counter(re.findall(r" = mesh\.((?!own)\w+)\(", text))
    assert all(found[kind] == expected[kind] for kind in ("all_gather", "reduce_scatter"))
    assert found["all_reduce"] == expected["all_reduce"]
    again = Counter(re.findall(r"mesh\.all_gather\(again\(state\['([^']*)'\]", text))
    gathered = Counter(re.findall(r"mesh\.all_gather\((?:again\()?state\['([^']*)'\]", text))
    assert again
    assert again == gathered - Counter(gathered.keys())


def test_micro_batches_run_one_after_the_other():
    _, files = package_of(plan="data=4,micro_batch=1")
    loop = re.search(
        r"    for _ in mesh.each_micro_batch\(\):\n        (.*)\n", files["program.py"]
    )
    assert re.match(r"state.* = totals.before\(state", loop[1])


def test_layouts_are_those_of_the_plan():
    plan, files = package_of(plan="tensor=2,data=2")
    lines = [line for line in files["shardings.mlir"].splitlines() if "shardwright.name" in line]
    program = plan.program
    assert len(lines) == len(program.parameters) + len(program.inputs) + len(program.outputs)
    for line, parameter in zip(lines, program.parameters, strict=False):
        found = re.findall(r"\{([^{}]*)\}", line.partition("[")[2].partition("]")[0])
        splits = [tuple(re.findall(r'"(\w+)"', axes)) for axes in found]
        assert splits == list(parameter.value.layout.splits)
        assert f'shardwright.name = "{parameter.name}"' in line


def test_pipeline_stages_are_refused():
    plan = sw.compile(GPT.replace("layers=1", "layers=2"), 4, plan="pipeline=2").plan
    with pytest.raises(PlanError, match="has 2 pipeline stages, `export --to jax` writes plans"):
        export(plan, "jax")


def test_parts_of_different_sizes_are_refused():
    plan = sw.compile("mlp:batch=8,hidden=6,classes=5", 4, search="tensor_parallel", mesh="4").plan
    with pytest.raises(PlanError, match=r"have parts of different sizes of `.*JAX splits evenly"):
        export(plan, "jax")


@pytest.mark.parametrize(
    ("operator", "attributes", "message"),
    [
        ("dropout", {"rate": 0.5}, "`dropout` of `y` in `layer/noise` has no translation to JAX"),
        (
            "reduce_scatter",
            {"axes": ("x",), "dimension": 0, "reduction": "max"},
            "with the reduction `max` has no translation to JAX",
        ),
    ],
)
def test_an_operator_without_a_translation_is_named_with_its_module(operator, attributes, message):
    kind, layout = TensorType("float32", (4,)), Layout((("x",),))
    x, y = Value("x", kind, layout), Value("y", kind, layout)
    node = Node(operator, ("x",), (y,), attributes, scope="layer/noise")
    graph = Graph("one", (x,), (), (node,), ("y",), mesh=MESH)
    with pytest.raises(PlanError, match=message):
        Expressions(graph, MESH, VOCABULARY).of(node)


def test_every_operator_that_draws_nothing_and_is_no_ring_has_functions_in_both_systems():
    ours, theirs = VOCABULARY.signatures, OF_TORCH.signatures
    operators = {n for n, s in theirs.items() if not n[0].isupper() and s.module != RINGS}
    lacking = {"dropout", "nf4_matmul", "random_uniform", "erfcx", "erfcx_gradient"}
    assert operators - ours.keys() == lacking
    for name in operators & ours.keys() - {"widened", "dtype_of"}:
        attributes = ours[name].keywords ^ theirs[name].keywords
        assert not attributes & set(operator_class(name).defaults), name
