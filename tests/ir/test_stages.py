"""Pipeline stages in the IR: place as part of the layout, the axis of stages, cuts, text."""

from dataclasses import replace

import pytest

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, joined_stage
from shardwright.ir.mesh import Mesh, MeshAxis, StageMap
from shardwright.ir.text import parse, to_text
from shardwright.operators.verify import verify

MESH = Mesh(
    (
        MeshAxis("micro", 3, in_time=True),
        MeshAxis("stage", 2, 1, of_stages=True),
        MeshAxis("x", 2),
        MeshAxis("y", 3),
    )
)

TEXT = """graph two on micro=2:time stage=2:1:stages x=2 {
  input a: f32[8@micro@x, 4]
  parameter w: f32[4, 4]* stage 0
  parameter v: f32[4@x, 4] stage 1
  h: f32[8@micro@x, 4] stage 0 = matmul(a, w)
  h.to: f32[8@micro@x, 4] stage 1 = transfer(h) {stage=1} from g as redistribution of h
  v.to: f32[4, 4]* stage 1 = all_gather(v) {axes=('x',)}
  g: f32[8@micro@x, 4] stage 1 = matmul(h.to, v.to)
  total: f32[] +micro+x stage 1 = reduce_sum(g)
  sum: f32[] +x stage 1 = all_reduce(total) {axes=('micro',)}
  loss: f32[]* stage 1 = all_reduce(sum) {axes=('x',)}
  schedule 1f1b
  return loss
}
"""


def test_place_is_part_of_a_layout_and_every_change_keeps_it() -> None:
    layout = Layout((("x",), ())).with_partial(("y",)).at(1)
    assert layout != layout.at(0)
    assert layout.at(1) is layout
    assert str(layout) == "[x, *] +y stage 1"
    changed = (
        layout.reduced(),
        layout.with_partial(()),
        layout.without(("x",)),
        layout.without(("z",)),
        layout.renamed({"x": "y", "y": "x"}, MESH),
        Layout(((), ())).at(1).along(layout, MESH),
    )
    assert {found.stage for found in changed} == {1}
    assert layout.at(None).stage is None


def test_operands_are_in_one_stage_or_on_every_stage() -> None:
    everywhere, first, second = (Layout(((),), stage=stage) for stage in (None, 0, 1))
    assert joined_stage([]) is None
    assert joined_stage([everywhere, everywhere]) is None
    assert joined_stage([everywhere, first, first]) == 0
    with pytest.raises(StrategyError) as error:
        joined_stage([first, everywhere, second])
    assert "operands are in the stages 0 and 1, they must be in one" in str(error.value)


def test_the_axis_of_stages_groups_the_ranks() -> None:
    assert (MESH.stages, MESH.of_stages, MESH.size, MESH.passes) == (2, ("stage",), 12, 3)
    assert MESH.of_ranks.names == ("x", "y")
    assert [MESH.device_group(rank) for rank in range(12)] == [0] * 6 + [1] * 6
    assert list(MESH.ranks_of(1)) == list(MESH.ranks_of(3)) == [6, 7, 8, 9, 10, 11]
    assert list(MESH.ranks_of(2)) == [0, 1, 2, 3, 4, 5]
    assert MESH.ranks_of(None) == range(12)
    pairs = zip(MESH.ranks_of(0), MESH.ranks_of(1), strict=True)
    for one, other in pairs:
        assert MESH.index(one, ("x", "y")) == MESH.index(other, ("x", "y"))


def test_stages_in_a_v_go_to_and_fro_between_the_groups() -> None:
    axes = [replace(axis, in_v=axis.of_stages) for axis in MESH.axes]
    mesh = Mesh(tuple(axes))
    assert str(mesh) == "micro=3 in time x stage=2 stages in a V x x=2 x y=3"
    assert [mesh.ranks_of(stage).start for stage in range(4)] == [0, 6, 6, 0]
    assert [stage for stage in range(4) if mesh.is_in(stage, 0)] == [0, 3]
    for groups in range(1, 6):
        where = StageMap(groups, in_v=True)
        own = [where.stages(group, 2 * groups) for group in range(groups)]
        assert own == [(group, 2 * groups - 1 - group) for group in range(groups)]
    with pytest.raises(IRError) as error:
        Mesh((MeshAxis("x", 2, in_v=True),))
    assert "only an axis of stages can be in a V" in str(error.value)


def test_a_mesh_without_stages_is_one_group() -> None:
    mesh = Mesh((MeshAxis("x", 4),))
    assert (mesh.stages, mesh.of_stages, mesh.of_ranks) == (1, (), mesh)
    assert mesh.ranks_of(None) == range(4)


def test_the_axis_of_stages_comes_before_those_of_ranks() -> None:
    with pytest.raises(IRError) as error:
        Mesh((MeshAxis("x", 2), MeshAxis("stage", 2, of_stages=True)))
    assert "comes before those of ranks, this mesh is x=2 x stage=2 stages" in str(error.value)
    with pytest.raises(IRError) as error:
        Mesh((MeshAxis("m", 2, in_time=True, of_stages=True),))
    assert "an axis of stages cannot be run in time" in str(error.value)


def test_text_keeps_stages_cuts_and_the_schedule() -> None:
    graph = parse(TEXT)
    verify(graph)
    assert to_text(graph) == TEXT
    assert graph.schedule == "1f1b"
    assert graph.mesh == Mesh(
        (
            MeshAxis("micro", 2, in_time=True),
            MeshAxis("stage", 2, 1, of_stages=True),
            MeshAxis("x", 2),
        )
    )
    assert [graph.stage_of(node) for node in graph.nodes] == [0, 1, 1, 1, 1, 1, 1]
    assert graph.stages == 2
    cut = parse(
        "graph c on stage=2:stages {\n  input a: f32[4]*\n  b: f32[4] = relu(a) split()\n"
        "  c: f32[4] = relu(b) split()\n  cut c\n  return c\n}\n"
    )
    assert parse(to_text(cut)) == cut
    assert (cut.cuts, cut.stages) == (("c",), 2)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("h.to, v.to)", "h, v.to)", "operands are in the stages 0 and 1, they must be in one"),
        ("g: f32[8@micro@x, 4] stage 1", "g: f32[8@micro@x, 4] stage 0", "its operator leaves"),
        ("transfer(h) {stage=1}", "transfer(h) {stage=0}", "the operand is in stage 0 already"),
        ("transfer(h) {stage=1}", "transfer(h) {stage=-1}", "expected a number from 0 or None"),
        ("all_gather(v) {axes=('x',)}", "all_gather(v) {axes=('stage',)}", "the axis of stages"),
        ("w: f32[4, 4]* stage 0", "w: f32[4@stage, 4] stage 0", "which is the axis of stages"),
        ("stage=2:1:stages", "stage=2:1", "is in stage 0, the mesh has no axis of stages"),
    ],
)
def test_what_is_in_the_wrong_place_is_refused(before: str, after: str, what: str) -> None:
    with pytest.raises(IRError) as error:
        verify(parse(TEXT.replace(before, after)))
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("cuts", "what"),
    [
        ("cut d", "the graph has no operator `d`"),
        ("cut b", "is empty, or the cuts are not in program order"),
        ("cut c\n  cut c", "is empty, or the cuts are not in program order"),
    ],
)
def test_wrong_cuts_are_refused(cuts: str, what: str) -> None:
    text = (
        "graph c on stage=2:stages {\n  input a: f32[4]*\n  b: f32[4] = relu(a) split()\n"
        f"  c: f32[4] = relu(b) split()\n  {cuts}\n  return c\n}}\n"
    )
    with pytest.raises(IRError) as error:
        verify(parse(text))
    assert what in str(error.value)


def test_a_cut_moves_to_the_next_operator_where_its_own_is_removed() -> None:
    graph = parse(
        "graph c on stage=2:stages {\n  input a: f32[4]*\n  b: f32[4] = relu(a) split()\n"
        "  c: f32[4] = identity(b) split()\n  d: f32[4] = relu(c) split()\n  cut c\n  return d\n}\n"
    )
    assert graph.replacing({"c": "b"}).cuts == ("d",)
