"""Pipeline stages through the passes: random cuts, places of operators and of parameters."""

from dataclasses import replace

import pytest

from shardwright.dataflow.placement import Placement, cuts_of, even_cuts, mesh_of_stages, stages_of
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import OptionError
from shardwright.ir.liveness import loop_of
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.text import parse, to_text
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.pipeline import parse_pipeline
from shardwright.proof import UpdateRule, prove_program
from shardwright.zoo import load
from tests.extent import first, long_after
from tests.random_graphs import random_graph
from tests.random_stages import ADAM, random_stages
from tests.zoo_sizes import SMALL

RULE = UpdateRule("adam", ADAM.settings)


@pytest.mark.parametrize(("stages", "groups"), [(2, 2), (4, 2), (3, 3)])
@pytest.mark.parametrize("passes", long_after(1, [2, 1]))
def test_random_cuts_of_random_programs_are_proven(passes, stages, groups):
    count = 0
    for seed in first(6, range(12)):
        graph = random_graph(seed, nodes=9)
        if len(Canonicalize().run(graph)) <= stages:
            continue
        try:
            program = random_stages(
                graph, stages, groups, passes=passes, seed=seed + stages, recompute=0.4
            )
        except OptionError:  # such as an odd batch
            continue
        count += 1
        assert parse(to_text(program)) == program
        assert prove_program(graph, program, RULE).proven
    assert count >= 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "stages", "groups", "passes"),
    [("gpt", 4, 2, 2), ("llama", 4, 4, 4), ("mixtral", 3, 3, 1), ("resnet18-cifar", 2, 2, 1)],
)
def test_random_cuts_of_models_are_proven(model, stages, groups, passes):
    graph = load(SMALL[model]).graph
    program = random_stages(graph, stages, groups, passes=passes, seed=3, recompute=0.3)
    assert prove_program(graph, program, RULE).proven
    assert program.schedule in ("1f1b", "interleaved")
    placed = {program.stage_of(node) for node in program.nodes}
    assert placed >= set(range(stages))


@pytest.mark.long
def test_a_tied_weight_crosses_once_before_the_loop_and_its_gradient_after_it():
    graph = load(SMALL["gpt"]).graph
    for seed in range(4):
        program = random_stages(graph, 4, 2, passes=4, seed=seed)
        loop, weight = loop_of(program), "embedding.embedding_table"
        crossing = [
            (position, node)
            for position, node in enumerate(program.nodes)
            if node.operator == "transfer" and node.provenance.tensor == weight
        ]
        (before, there), (after, back) = crossing
        assert loop is not None
        assert before < loop.start
        assert after >= loop.stop
        assert program.stage_of(there) in (1, 2, 3)
        assert program.stage_of(back) == 0


def test_states_are_at_home_and_counters_on_every_stage():
    program = random_stages(load(SMALL["gpt"]).graph, 2, 2, seed=1)
    home = {p.name: p.value.layout.stage for p in program.parameters}
    assert {home[p.name] for p in program.parameters if p.role == "weight"} == {0, 1}
    for parameter in program.parameters:
        if parameter.role == "state" and parameter.weight:
            assert home[parameter.name] == home[parameter.weight]
    assert home["optimizer.step"] is None
    assert home["step"] is None  # every stage draws its dropout by it


def test_a_dynamic_loss_scale_hears_of_overflows_in_every_stage():
    graph = load(SMALL["mlp"]).graph
    program = random_stages(graph, 3, 3, passes=2, seed=2, loss_scale="dynamic")
    (update,) = [node for node in program.nodes if node.operator == "loss_scale_update"]
    assert program.stage_of(update) is None
    counts = [node for node in program.nodes if node.operator == "count_nonfinite"]
    assert len({program.stage_of(node) for node in counts}) > 1
    spread = program.producers[update.operands[2]]
    assert (spread.operator, spread.attributes.get("stage")) == ("transfer", None)


def test_communication_within_a_stage_never_names_its_axis():
    program = random_stages(load(SMALL["llama"]).graph, 2, 2, passes=2, seed=5, fusion=64.0)
    assert any(node.operator == "pack" for node in program.nodes)
    for node in program.nodes:
        assert "stage" not in node.attributes.get("axes", ())
        if node.operator == "pack":
            places = {program.values[name].layout.stage for name in node.operands}
            assert places == {program.stage_of(node)}


# Places

CONSTANTS = """graph c {
  input a: f32[4, 4]
  buffer mask: f32[4, 4] {trainable=False}
  buffer step: i64[] {trainable=False}
  parameter w: f32[4, 4] {trainable=True}
  parameter v: f32[4, 4] {trainable=True}
  both: f32[4, 4] = relu(mask)
  late: f32[4, 4] = neg(a)
  step.next: i64[] = add_scalar(step) {value=1}
  h: f32[4, 4] = matmul(a, w)
  i: f32[4, 4] = add(h, both)
  j: f32[4, 4] = matmul(i, v)
  k: f32[4, 4] = add(j, both)
  l: f32[4, 4] = add(k, late)
  o: f32[4, 4] = matmul(l, w)
  loss: f32[] = reduce_sum(o)
  cut j
  update step = step.next
  return loss
}
"""


def test_what_follows_from_inputs_is_where_it_is_read():
    placed = Placement(parse(CONSTANTS))
    assert placed.operators == {
        "both": None,
        "late": 1,
        "step.next": None,
        "h": 0,
        "i": 0,
        "j": 1,
        "k": 1,
        "l": 1,
        "o": 1,
        "loss": 1,
    }
    assert placed.homes == {"mask": None, "step": None, "w": 0, "v": 1}


def test_stages_are_in_program_order():
    graph = parse(CONSTANTS)
    stages = stages_of(graph)
    assert cuts_of(graph, stages, 2) == ("j",)
    with pytest.raises(OptionError) as error:
        cuts_of(graph, {**stages, "k": 0}, 2)
    assert "`k` is in stage 0 and comes after `j`, which is in stage 1: stages must be in" in str(
        error.value
    )
    with pytest.raises(OptionError) as error:
        cuts_of(graph, {name: 2 * stage for name, stage in stages.items()}, 3)
    assert "no operator is in stage 1 of the 3 stages" in str(error.value)
    with pytest.raises(OptionError) as error:
        cuts_of(graph, stages, 3)
    assert "the program has 2 stages, expected a multiple of the 3 device groups" in str(
        error.value
    )
    with pytest.raises(OptionError) as error:
        mesh_of_stages(Mesh((MeshAxis("stage", 2),)), 2)
    assert "the name of the axis of pipeline stages" in str(error.value)


def test_even_cuts_are_at_blocks():
    graph = Canonicalize().run(load("gpt:layers=4,hidden=16,heads=4").graph)
    scopes = {node.name: node.scope for node in graph.nodes}
    assert [scopes[name] for name in even_cuts(graph, 2)] == ["blocks/2/layernorm1"]
    assert len(even_cuts(graph, 4)) == 3
    assert len(even_cuts(graph, 6)) == 5  # the embedding alone, and the head
    with pytest.raises(OptionError) as error:
        even_cuts(graph, 7)
    assert "the model has 4 repeated blocks, which cannot be divided between 7" in str(error.value)
    with pytest.raises(OptionError) as error:
        even_cuts(load(SMALL["mlp"]).graph, 2)
    assert "the model has no repeated blocks" in str(error.value)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"), [(5, 3, [2, 2, 1]), (6, 4, [1, 2, 2, 1]), (3, 4, [1, 1, 1, 0])]
)
def test_uneven_cuts_shorten_the_first_and_the_last_stage(
    layers: int, stages: int, sizes: list[int]
) -> None:
    graph = Canonicalize().run(load(f"gpt:layers={layers},hidden=16,heads=4").graph)
    cut = stages_of(replace(graph, cuts=even_cuts(graph, stages)))
    found = [{block_of(n.scope) for n in graph.nodes if cut[n.name] == s} for s in range(stages)]
    assert [len(blocks - {""}) for blocks in found] == sizes


# Lowering

CROSSING = """graph x on stage=2:stages x=2 {{
  input a: f32[8@x, 4]
  h: {before} stage 0 = {operator}
  h.to: {after} stage 1 = redistribute(h)
  return h.to
}}
"""


@pytest.mark.parametrize(
    ("before", "operator", "after", "steps"),
    [
        ("f32[8@x, 4]", "relu(a)", "f32[8@x, 4]", ["transfer"]),
        ("f32[8@x, 4]", "relu(a)", "f32[8, 4]*", ["transfer", "all_gather"]),
        ("f32[8@x, 4]", "relu(a)", "f32[8, 4@x]", ["transfer", "all_to_all"]),
        ("f32[8, 4]*", "all_gather(a) {axes=('x',)}", "f32[8, 4@x]", ["local_slice", "transfer"]),
    ],
)
def test_the_thinner_form_is_transferred(before, operator, after, steps):
    text = CROSSING.format(before=before, operator=operator, after=after)
    if operator.startswith("all_gather"):
        text = text.replace("input a: f32[8@x, 4]", "input a: f32[8@x, 4] stage 0")
    (lowering,) = parse_pipeline("lower_redistributions{cluster=cpu}")
    assert isinstance(lowering, LowerRedistributions)
    program = lowering.run(parse(text))
    assert [node.operator for node in program.nodes[1:]] == steps
