"""The proof of programs in pipeline stages: place is part of the layout, transfers keep tensors."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from shardwright.dataflow.micro_batches import undivided
from shardwright.dataflow.placement import in_stages, stages_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.text import parse, to_text
from shardwright.passes.lower_redistributions import LowerRedistributions
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.planner.pipelines import partitioned
from shardwright.proof import Proof, UpdateRule, prove_program
from shardwright.zoo import load
from tests.random_stages import ADAM, CPU, random_stages
from tests.zoo_sizes import SMALL

RULE = UpdateRule("adam", ADAM.settings)
GPT = load(SMALL["gpt"]).graph


@pytest.fixture(scope="module")
def program() -> Graph:
    return random_stages(GPT, 4, 2, passes=2, seed=4)


def proof(program: Graph) -> Proof:
    return prove_program(GPT, program, RULE)


def transfers(program: Graph) -> list[Node]:
    return [node for node in program.nodes if node.operator == "transfer"]


def with_node(program: Graph, node: Node, other: Node) -> Graph:
    return program.with_nodes(tuple(other if one is node else one for one in program.nodes))


def test_the_program_is_proven(program: Graph) -> None:
    assert len(transfers(program)) > 8
    assert proof(program).proven


def test_no_transfer_can_be_left_out(program: Graph) -> None:
    for node in transfers(program):
        without = program.replacing({node.name: node.operands[0]})
        assert proof(without).proven is False, node
        as_identity = with_node(program, node, replace(node, operator="mirror", attributes={}))
        assert proof(as_identity).proven is False, node


@pytest.mark.long
def test_no_transfer_goes_to_another_stage(program: Graph) -> None:
    for node in transfers(program):
        for stage in (0, 1, 2, 3, 5):
            if stage == node.attributes["stage"]:
                continue
            changed = replace(node, attributes={"stage": stage})
            assert proof(with_node(program, node, changed)).proven is False, (node, stage)
            (result,) = node.results
            assert result.layout is not None
            moved = replace(changed, results=(replace(result, layout=result.layout.at(stage)),))
            assert proof(with_node(program, node, moved)).proven is False, (node, stage)


def swapped(program: Graph) -> Iterator[tuple[Node, Node, Graph]]:
    """Yield the programs in which two transfers bring each other's tensor."""

    def kind(node: Node) -> tuple[object, object, object]:
        source = program.values[node.operands[0]]
        return source.type, source.layout, node.attributes["stage"]

    order = {name: i for i, node in enumerate(program.nodes) for name in names(node)}
    found = transfers(program)
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            early = all(order.get(name, -1) < order[one.name] for name in other.operands)
            if kind(one) == kind(other) and one.operands != other.operands and early:
                first = with_node(program, one, replace(one, operands=other.operands))
                yield one, other, with_node(first, other, replace(other, operands=one.operands))


def names(node: Node) -> list[str]:
    return [value.name for value in node.results]


BRANCHES = """graph branches {
  input a: f32[4, 6]
  parameter w: f32[6, 6] {trainable=True}
  parameter v: f32[6, 6] {trainable=True}
  l: f32[4, 6] = matmul(a, w)
  r: f32[4, 6] = matmul(a, v)
  d: f32[4, 6] = sub(l, r)
  m: f32[4, 6] = mul(d, l)
  loss: f32[] = reduce_sum(m)
  return loss
}
"""


def test_no_two_transfers_can_be_swapped() -> None:
    graph = parse(BRANCHES)
    decisions = undivided(graph)
    for count, cut in ((2, ("d",)), (3, ("d", "m"))):
        stages = stages_of(replace(graph, cuts=cut))
        options = CompileOptions(optimizer=ADAM)
        placed = in_stages(decisions, count, stages, "1f1b")
        pipeline = partitioned(options, placed, LowerRedistributions(CPU))
        program = PassManager().run_all(pipeline, graph)
        assert prove_program(graph, program, RULE).proven
        tried = 0
        for one, other, wrong in swapped(program):
            tried += 1
            assert prove_program(graph, wrong, RULE).proven is False, (one, other)
        assert tried >= 1


def test_no_operator_runs_in_another_stage(program: Graph) -> None:
    tried = 0
    for node in program.nodes[:: len(program.nodes) // 24]:
        stage = program.stage_of(node)
        if stage is None or node.operator == "transfer":
            continue
        tried += 1
        moved = tuple(_placed(value, (stage + 1) % 4) for value in node.results)
        other = with_node(program, node, replace(node, results=moved))
        reads_stages = any(program.values[n].layout.stage is not None for n in node.operands)
        read = any(program.uses[value.name] for value in node.results)
        assert proof(other).proven is (not reads_stages and not read), node
    assert tried > 12


def _placed(value: Value, stage: int) -> Value:
    assert value.layout is not None
    return replace(value, layout=value.layout.at(stage))


def test_a_parameter_is_in_the_stage_of_its_readers(program: Graph) -> None:
    text = to_text(program)
    lines = [
        line for line in text.splitlines() if re.match(r" +(parameter|state) .* stage \d", line)
    ]
    assert len(lines) > 40
    for line in lines[::7]:
        stage = int(re.findall(r" stage (\d)", line)[0])
        wrong = line.replace(f" stage {stage}", f" stage {(stage + 1) % 4}", 1)
        assert proof(parse(text.replace(line, wrong))).proven is False, line
        everywhere = line.replace(f" stage {stage}", "", 1)
        assert proof(parse(text.replace(line, everywhere))).proven is False, line


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [("2f2b", "unknown schedule `2f2b`"), ("interleaved", None), ("1f1b", "has one chunk")],
)
def test_the_schedule_is_simulated(program: Graph, schedule: str, reason: str | None) -> None:
    found = proof(replace(program, schedule=schedule))
    assert found.proven is (reason is None)
    assert (reason or "") in (found.reason or "")
