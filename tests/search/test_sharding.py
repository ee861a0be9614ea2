"""Parameters are divided among as many ranks as asked for, from a size on, level by level."""

import pytest

from shardwright.api import compile, prove, verify
from shardwright.ir.errors import OptionError
from shardwright.planner.options import CompileOptions
from shardwright.search.space.sharding import OptimizerSharding
from shardwright.tools.main import main
from tests.extent import first

MLP = "mlp:batch=16,inputs=32,hidden=64,classes=8,layers=3"
OPTIONS = {
    "mode": "data_parallel",
    "mesh": "2x2x2",
    "cluster": "h100-pod:figures=datasheet",
    "optimizer": "adam",
}


def divided(compiled):
    """Return among how many ranks each trained parameter is divided."""
    graph = compiled.program
    return {
        p.name: graph.mesh.extent(p.value.layout.split_axes)
        for p in graph.parameters
        if p.trainable
    }


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (2, 2), (4, 4), (8, 8), (-1, 8)])
def test_every_number_of_ranks(size, expected):
    rule = f"shard_size={size}"
    compilation = compile(MLP, 8, optimizer_parallel=rule, **OPTIONS)
    assert set(divided(compilation.compiled).values()) == {expected}
    result = verify(compilation)
    assert (result.equal, prove(compilation).proven) == (True, True)


def test_the_threshold_is_obeyed():
    """64 x 64 elements of float32 are 16 KiB, 32 x 64 are 8."""
    compilation = compile(MLP, 8, optimizer_parallel="shard_size=4,threshold=9", **OPTIONS)
    found = divided(compilation.compiled)
    sizes = {p.name: p.value.type.nbytes for p in compilation.compiled.program.parameters}
    assert {found[name] for name in found if sizes[name] >= 9 * 1024} == {4}
    assert {found[name] for name in found if sizes[name] < 9 * 1024} == {1}
    assert verify(compilation).equal


@pytest.mark.parametrize(
    ("level", "count"),
    first(
        3,
        [("level1", 1), ("level2", 2), ("level3", 2), ("level1", 2), ("level2", 1), ("level3", 1)],
    ),
)
def test_levels(level, count):
    rule = f"shard_size=4,level={level}"
    options = {**OPTIONS, "micro_batches": count}
    compilation = compile(MLP, 8, optimizer_parallel=rule, **options)
    compiled = compilation.compiled
    regathered = {p.name for p in compiled.program.parameters if p.attributes.get("regathered")}
    gathers = [n for n in compiled.program if n.operator == "all_gather"]
    again = [n for n in gathers if n.provenance.role == "recompute"]
    assert bool(again or regathered) == (level == "level3")
    body = compiled.program.nodes
    if count > 1:  # where gradients are reduced: in every pass, or once behind the loop
        totals = {n.operator for n in body if n.attributes.get("axes") == ("micro",)}
        assert totals <= {"all_reduce", "all_gather"}
        first = next(i for i, n in enumerate(body) if n.operator == "reduce_scatter")
        last = max(i for i, n in enumerate(body) if n.attributes.get("axes") == ("micro",))
        assert (first < last) == (level != "level1")
    result = verify(compilation)
    assert (result.equal, prove(compilation).proven) == (True, True)


@pytest.mark.long
@pytest.mark.parametrize("search", ["exact", "data_parallel", "recursive_programming"])
def test_every_search_obeys(search):
    options = {**OPTIONS, "mode": "auto_parallel", "search": search}
    compilation = compile(MLP, 8, optimizer_parallel="shard_size=2,level=level1", **options)
    program = compilation.compiled.program
    gathered = [n for n in program if n.operator == "all_gather" and "grad" not in n.name]
    assert all(program.mesh.extent(n.attributes["axes"]) <= 8 for n in gathered)
    assert verify(compilation).equal


def test_no_axes_of_the_mesh_make_the_number():
    with pytest.raises(OptionError) as caught:
        compile(MLP, 8, optimizer_parallel="shard_size=3", **OPTIONS)
    assert caught.value.what == (
        "`shard_size` is 3, the axes of the mesh x=2 x y=2 x z=2 make groups of 1, 2, 4, 8"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("shards=2", "`optimizer_parallel` has no setting `shards`"),
        ("shard_size=many", "`shard_size` is the text `many`, expected -1, or an integer of at"),
        ("shard_size=0", "`shard_size` is 0, expected -1, or an integer of at least 1"),
        ("threshold=-1", "`threshold` is -1, expected a number of at least 0"),
        ("level=4", "`optimizer_level` is 4, expected"),
    ],
)
def test_wrong_rules_are_refused(text, what):
    with pytest.raises(OptionError) as caught:
        CompileOptions(optimizer_parallel=text)
    assert what in str(caught.value)


def test_the_command_line_takes_a_rule(tmp_path, capsys):
    out = str(tmp_path / "plan")
    options = ["--devices", "8", "--mesh", "2x2x2", "--mode", "data_parallel", "--out", out]
    assert main(["compile", MLP, *options, "--hsdp", "shard_size=2,threshold=0"]) == 0
    assert main(["compile", MLP, *options[:-1], f"{out}2", "--hsdp"]) == 0
    capsys.readouterr()
    assert main(["verify", out]) == 0
    assert main(["compile", MLP, *options, "--hsdp", "shard_size=5"]) == 2
    assert "`shard_size` is 5" in capsys.readouterr().err


def test_rules_are_values():
    assert OptimizerSharding.parse("shard_size=4, level=level2") == OptimizerSharding(
        4, level="level2"
    )
