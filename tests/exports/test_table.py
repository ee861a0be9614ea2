"""The command `export`, and what every export of the table has."""

import ast
import json

import pytest

import shardwright as sw
from shardwright import nn, ops
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.vocabulary import MODULES
from shardwright.exports.table import EXPORTS, export, write_export
from shardwright.exports.torch.placements import placements
from shardwright.ir.errors import OutputError, ShardwrightError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.tools.main import main
from shardwright.tracing import InputSpec, trace
from tests.extent import ANY_PLAN

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 3)))


@pytest.fixture(scope="module")
def plan():
    return sw.compile("mlp", 4, mesh="2x2", optimizer="adam", **ANY_PLAN).plan


@pytest.fixture(scope="module")
def quantized():
    sizes = "layers=1,hidden=32,heads=2,kv_heads=2,inner=32,batch=4,sequence=8,vocabulary=32"
    how = {"plan": "data=2", "precision": "fp8-current"}
    return sw.compile(f"llama:{sizes}", 2, **how).plan


def test_the_command_writes_the_files_and_their_names(plan, tmp_path, capsys):
    sw.compile("mlp", 4, mesh="2x2", **ANY_PLAN).write(tmp_path / "plan")
    out = tmp_path / "out"
    arguments = ["export", str(tmp_path / "plan"), "--to", "placements", "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"folder": str(out), "files": ["placements.json"], "notes": []}
    assert [path.name for path in out.iterdir()] == ["placements.json"]


@pytest.mark.parametrize(
    ("to", "note"),
    [
        ("placements", "divided, not that products are by `fp8-current`"),
        ("mindspore", "divided, not that products are by `fp8-current`"),
        ("torch", None),
        ("parallelize", None),
    ],
)
def test_an_export_refuses_a_recipe_of_low_precision_or_says_what_it_leaves_out(
    quantized, to, note
):
    if note is None:
        with pytest.raises(ShardwrightError, match="quantize"):
            export(quantized, to)
    else:
        assert export(quantized, to).notes[-1].endswith(note)


def test_a_folder_with_files_is_not_written_to(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(OutputError, match="the folder has files"):
        write_export(tmp_path, Exported({"a": b"b"}))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_unknown_export_is_refused(plan):
    with pytest.raises(ShardwrightError, match="did you mean `placements`"):
        export(plan, "placement")


# `onnx` needs an ONNX file, the others a module of PyTorch.
@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*EXPORTS} - {"onnx", "parallelize", "pipelining"}))
def test_an_export_makes_the_same_files_twice(plan, name):
    assert export(plan, name) == export(plan, name)


def test_placements_name_every_parameter_and_input(plan):
    document = json.loads(export(plan, "placements").files["placements.json"])
    assert document["mesh_shape"] == [2, 2]
    assert document["mesh_dim_names"] == list(plan.mesh.names)
    assert list(document["parameters"]) == [p.name for p in plan.program.parameters]
    assert list(document["inputs"]) == [value.name for value in plan.program.inputs]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout(((), ())), ("Replicate()", "Replicate()")),
        (Layout((("x",), ("y",))), ("Shard(0)", "Shard(1)")),
        (Layout(((), ("x", "y"))), ("Shard(1)", "Shard(1)")),
        (Layout((("y", "x"), ())), ("_StridedShard(dim=0, sf=3)", "Shard(0)")),
        (Layout((("x",),), ("y",), "max"), ("Shard(0)", "Partial(max)")),
    ],
)
def test_placements_of_layouts(layout, expected):
    assert placements(layout, MESH) == expected


class Curved(nn.Cell):
    """A network with operators of rarer modules."""

    def __init__(self):
        self.dense = nn.Dense(8, 8)

    def construct(self, x):
        return ops.reduce_mean(ops.cumsum(ops.sinh(self.dense(x)), axis=1))


@pytest.mark.parametrize(
    ("target", "options"), [("torch", {}), ("torch", {"stages": 2}), ("jax", {})]
)
def test_a_program_imports_the_modules_that_it_calls(target, options):
    network = trace(Curved(), [InputSpec("x", TensorType("float32", (4, 8)))])
    files = export(sw.compile(network, 2, cluster="cpu", **options).plan, target).files
    called = set[str]()
    for name, text in files.items():
        if not name.startswith(("program", "group_")):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        read = (node.value for node in nodes if isinstance(node, ast.Attribute))
        own = {one.id for one in read if isinstance(one, ast.Name)} & set(MODULES)
        imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
        assert own <= {one.name for node in imports for one in node.names}, name
        called |= own
    assert {"functions", "scans"} <= called
