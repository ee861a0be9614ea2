"""Layouts by name, of DTensor, JAX and MindSpore: read, pinned, and each choice priced."""

import json
import random

import pytest

import shardwright as sw
from shardwright.exports.table import export
from shardwright.exports.torch.placements import placements
from shardwright.frontends.configs.layouts import is_layouts, read_layouts
from shardwright.frontends.configs.strategy_map import MatrixLayout, StrategyMap
from shardwright.ir.errors import ModelError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.tools.main import main
from shardwright.tools.plan_files.pins import pins_of

GPT = "gpt:layers=2,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64"
ONE = GPT.replace("layers=2", "layers=1")
MLP = "mlp:batch=16"


@pytest.fixture(scope="module")
def plan():
    return sw.compile(GPT, 4, plan="tensor=2,data=2,zero=1").plan


def written(folder, content, name="layouts.json"):
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def priced(capsys, model, name, *options):
    assert main(["estimate", model, "--plan", name, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["choices"]


def test_placements_of_any_layout_are_read_as_they_were_written(tmp_path):
    rng = random.Random(11)
    for _ in range(200):
        axes = [MeshAxis(f"a{i}", rng.choice([2, 3, 4])) for i in range(rng.randrange(1, 5))]
        mesh = Mesh(tuple(axes))
        splits = [[] for _ in range(3)]
        for name in rng.sample(mesh.names, len(axes)):
            if rng.random() < 0.8:
                rng.choice(splits).append(name)
        layout = Layout(tuple(map(tuple, splits)))
        content = {
            "mesh_shape": list(mesh.shape),
            "mesh_dim_names": list(mesh.names),
            "parameters": {"w": list(placements(layout, mesh))},
        }
        found = read_layouts(written(tmp_path, content)).parameters["w"]
        assert (*found, *[()] * (3 - len(found))) == layout.splits


def test_an_exported_plan_pins_the_strategies_that_it_has(plan, tmp_path):
    name = tmp_path / "placements.json"
    name.write_text(export(plan, "placements").files["placements.json"])
    pins = pins_of(load_model(GPT).graph, read_layouts(str(name)), str(name))
    assert len(pins.strategies) == 24
    for operator, counts in pins.strategies.items():
        assert counts == plan.document.strategies[operator].split_counts, operator
    assert any("storage" in note for note in pins.notes)
    assert pins.choices["blocks.*.attention.projection"] == (
        "matmul_1",
        "add_2",
        "matmul_5",
        "add_8",
    )


def test_partition_specs_say_the_same_as_placements(tmp_path):
    spec = {
        "mesh": {"data": 2, "model": 2},
        "inputs": {"tokens": ["data", None]},
        "parameters": {"embedding/embedding_table": [["model"], None]},
    }
    placed = {
        "mesh_shape": [2, 2],
        "mesh_dim_names": ["data", "model"],
        "inputs": {"tokens": ["Shard(0)", "Replicate()"]},
        "parameters": {"embedding.embedding_table": ["R", "S(0)"]},
    }
    graph = load_model(GPT).graph
    one, other = (
        pins_of(graph, read_layouts(written(tmp_path, content)), "file").strategies
        for content in (spec, placed)
    )
    assert one == other
    assert one["gather_0"] == ((2, 1), (2, 1))


@pytest.mark.long
def test_each_choice_is_released_alone_and_then_all(tmp_path, capsys):
    given = sw.compile(ONE, 4, plan="tensor=2,data=2,zero=1")
    content = json.loads(export(given.plan, "placements").files["placements.json"])
    kept = ("embedding.embedding_table", "blocks.0.attention.projection.weight")
    content["parameters"] = {name: content["parameters"][name] for name in kept}
    rows = priced(capsys, ONE, written(tmp_path, content))
    steps = {row["free"]: row["overlapped_step_seconds"] for row in rows}
    own = given.timeline_within(given.plan.document.memory.limit).step_seconds
    assert steps["nothing"] <= own * 1.001
    assert max(steps.values()) == steps["nothing"]
    best = sw.compile(ONE, 4, mesh="data=2,tensor=2")
    limit = best.plan.document.memory.limit
    assert steps["everything"] == pytest.approx(best.timeline_within(limit).step_seconds)
    choices = ["embedding", "blocks.*.attention.projection"]
    assert list(steps) == ["nothing", *choices, "everything"]


@pytest.mark.long
def test_a_bad_choice_costs_what_its_release_saves(tmp_path, capsys):
    layer = "blocks.0.feed_forward"
    spec = {
        "mesh": {"data": 2, "model": 2},
        "inputs": {"tokens": ["data"]},
        "parameters": {
            f"{layer}.mapping.weight": [None, "model"],
            f"{layer}.projection.weight": [None, None],
        },
    }
    rows = priced(capsys, ONE, written(tmp_path, spec))
    steps = {row["free"]: row["overlapped_step_seconds"] for row in rows}
    kept = {"matmul_3": ((2, 1, 1), (1, 1))}
    released = sw.compile(ONE, 4, mesh="data=2,model=2", strategies=kept)
    found = released.timeline_within(released.plan.document.memory.limit).step_seconds
    free = steps["blocks.*.feed_forward.mapping"]
    assert free == pytest.approx(found)
    assert free < steps["nothing"]


def test_a_strategy_file_of_mindspore_pins_its_operators(tmp_path):
    plan = sw.compile(ONE, 4, mesh="2x2").plan
    files = export(plan, "mindspore").files
    (tmp_path / "strategy.ckpt").write_bytes(files["strategy.ckpt"])
    (tmp_path / "strategy.json").write_text(files["strategy.json"])
    pinned = {n: one.split_counts for n, one in plan.document.strategies.items()}
    for name in ("strategy.ckpt", "strategy.json"):
        found = read_layouts(str(tmp_path / name))
        assert pins_of(load_model(ONE).graph, found, name).strategies == pinned
    again = sw.compile(ONE, 4, mesh="2x2", strategies=pinned).plan
    assert again.document.objective == pytest.approx(plan.document.objective)


def test_mindspore_names_operators_by_the_parameter_that_they_read():
    graph = load_model(MLP).graph
    weight = next(p.name for p in graph.parameters if "weight" in p.name)
    counts = ((2, 1), (1, 1))
    found = StrategyMap(0, {f"MatMul_{weight}": counts}, {weight: MatrixLayout((2,), (-1, -1))})
    assert pins_of(graph, found, "file").strategies == {"matmul_0": counts}


MESH = {"mesh": {"data": 2, "model": 2}}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({**MESH, "parameters": {"nothing": [None]}}, "the model has no parameter `nothing`"),
        ({**MESH, "inputs": {"nothing": [None]}}, "the model has no input `nothing`"),
        ({**MESH, "parameters": {"w": ["pipe"]}}, "expected axes of the mesh, data, model"),
        ({**MESH, "parameters": {"w": ["data", "data"]}}, "each once"),
        ({**MESH, "parameters": {"w": "data"}}, "expected a list"),
        ({**MESH, "parameters": []}, "`parameters` must be an object"),
        ({**MESH, "parameters": {}}, "says nothing of an operator"),
        ({"mesh": {"data": 0}}, "a size of at least 1"),
        ({"mesh": 3}, "the mesh must have a name"),
        ({"mesh_shape": [2], "mesh_dim_names": ["a", "b"]}, "the mesh must have a name"),
        (
            {"mesh_shape": [2], "mesh_dim_names": ["a"], "parameters": {"w": ["Partial(sum)"]}},
            "is no placement of a parameter",
        ),
        (
            {"mesh_shape": [2], "mesh_dim_names": ["a"], "parameters": {"w": []}},
            "expected 1 placements",
        ),
        (
            {
                "mesh_shape": [2, 2],
                "mesh_dim_names": ["a", "b"],
                "parameters": {"w": ["_StridedShard(dim=0, sf=3)", "Shard(0)"]},
            },
            "fits no later axes",
        ),
        ({"parallel_strategy_item": {"a": 3}}, "has not the form of MindSpore's strategies"),
        (
            {
                "parallel_layout_item": {
                    "w": {"dev_matrix": [2], "tensor_map": [0], "opt_weight_shard_size": 4}
                }
            },
            "divided over 4 ranks by the parallel optimizer",
        ),
        (
            {"parallel_layout_item": {"w": {"dev_matrix": [2], "tensor_map": [1]}}},
            "no places of the device matrix",
        ),
    ],
)
def test_a_file_that_says_something_else_is_refused(content, match, tmp_path):
    name = written(tmp_path, content)
    assert is_layouts(name)
    with pytest.raises(ModelError, match=match):
        pins_of(load_model(MLP).graph, read_layouts(name), name)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--devices", "8"], "has 4"),
        (["--mesh", "4"], "has a mesh"),
        (["--software", "megatron-core"], "`--software` has no effect"),
        (["--html", "page.html"], "`--html` has no effect"),
    ],
)
def test_an_option_that_contradicts_the_file_is_refused(options, match, tmp_path, capsys):
    name = written(tmp_path, {**MESH, "inputs": {"image": ["data"]}, "parameters": {}})
    assert main(["estimate", MLP, "--plan", name, *options]) == 2
    assert match in capsys.readouterr().err


def test_a_file_of_layouts_is_no_plan_of_degrees(tmp_path, capsys):
    name = written(tmp_path, {**MESH, "parameters": {}})
    assert main(["compile", MLP, "--devices", "4", "--plan", name]) == 2
    assert "the file holds layouts by name" in capsys.readouterr().err
