"""Rings: each round takes the longer of computing and sending, beside which nothing is sent."""

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.rings import computing_seconds
from shardwright.cost_model.roofline import node_seconds
from shardwright.cost_model.streams import loads, placements
from shardwright.cost_model.timeline import simulate
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import info_of
from shardwright.zoo.loading import load
from tests.extent import first

PROGRAM = """graph g on x=4 {
  input q: f32[1, 2, 64@x, 8]
  input k: f32[1, 1, 64@x, 8]
  input v: f32[1, 1, 64@x, 8]
  y: f32[1, 2, 64@x, 8], l: f32[1, 2, 64@x] = ring_attention(q, k, v) {ATTRIBUTES}
  return y
}"""


def described(bandwidth: float, latency: float = 1e-12) -> Cluster:
    """Return a cluster without launch overhead whose links are so fast."""
    base = cluster("cpu").model_dump()
    levels = [{**level, "bandwidth": bandwidth, "latency": latency} for level in base["levels"]]
    device = {**base["device"], "launch_seconds": 1e-15}
    return Cluster.model_validate({**base, "device": device, "levels": levels})


def program(**attributes: object) -> Graph:
    written = {"axes": ("x",), **attributes}
    text = ", ".join(f"{key}={value!r}" for key, value in written.items())
    return parse(PROGRAM.replace("ATTRIBUTES", text))


def sent(graph: Graph) -> list[float]:
    info = info_of(graph, graph.nodes[0])
    assert isinstance(info, RingOperator)
    assert graph.mesh is not None
    layouts = [value.layout for value in graph.inputs if value.layout is not None]
    return [turn.sent_bytes for turn in info.rounds(layouts, graph.mesh)]


def test_parts_are_sent_in_all_turns_but_the_last() -> None:
    part = 2 * 16 * 8 * 4.0  # keys and values
    assert sent(program()) == [part] * 3 + [0.0]
    queries, results = 2 * 16 * 8 * 4.0, 2 * 16 * 8 * 4.0 + 2 * 16 * 4.0
    halves = sent(program(causal=True, balanced=True))
    assert halves == [queries + part, *[part] * 3, 0.0, results]


@pytest.mark.parametrize("balanced", [False, True])
def test_a_ring_takes_the_longer_of_computing_and_sending(balanced: bool) -> None:
    graph = program(causal=balanced, balanced=balanced)
    (node,) = graph.nodes
    fast, slow = described(1e18), described(1.0)
    computing = computing_seconds(node, graph, fast)
    assert node_seconds(node, graph, fast) == pytest.approx(computing, rel=1e-3)
    assert node_seconds(node, graph, slow) == pytest.approx(sum(sent(graph)), rel=1e-3)
    between = described(sum(sent(graph)) / computing)
    seconds = node_seconds(node, graph, between)
    assert computing < seconds < 2 * computing


def test_a_ring_occupies_computation_and_links() -> None:
    graph, where = program(), described(1e3)
    (placed,) = placements(graph, where)
    assert placed.queue == "blocking"
    seconds = node_seconds(graph.nodes[0], graph, where)
    busy = loads(graph, where)
    assert len(placed.resources) == 2
    assert {busy[resource] for resource in placed.resources} == {seconds}
    timeline = simulate(graph, where)
    computing = computing_seconds(graph.nodes[0], graph, where)
    assert timeline.compute_seconds == pytest.approx(computing)
    assert timeline.exposed_communication_seconds == pytest.approx(seconds - computing)


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_no_plan_with_rings_is_faster_than_its_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    where = described(float(10 ** random.uniform(6, 10)), float(10 ** random.uniform(-8, -5)))
    definition = load(
        "llama:layers=1,hidden=16,heads=2,kv_heads=1,inner=16,batch=1,sequence=256,dtype=float32"
    )
    attention = [n.name for n in definition.graph.nodes if "attention" in n.operator]
    pins = {name: ((1, 1, 4, 1),) * 3 for name in attention}
    pinned = sw.compile(definition, 4, cluster=where, strategies=pins).plan.document
    assert pinned.lower_bound <= pinned.objective * (1 + 1e-9)
    free = sw.compile(definition, 4, cluster=where).plan.document
    assert free.lower_bound <= pinned.objective * (1 + 1e-9)
    assert free.objective <= pinned.objective * (1 + max(free.gap, 0.01))


def test_a_ring_that_was_measured_takes_its_own_rate_in_every_round() -> None:
    graph = program(causal=True, balanced=True)
    (node,) = graph.nodes
    info = info_of(graph, node)
    assert isinstance(info, RingOperator)
    assert graph.mesh is not None
    layouts = [value.layout for value in graph.inputs if value.layout is not None]
    rounds = info.rounds(layouts, graph.mesh)
    figures = {
        name: {"value": value, "tag": "measured", "source": "a test"}
        for name, value in {"rate": 1e9, "launch": 1e-4, "traffic": 2e9, "all": 1.0}.items()
    }
    whole = figures.pop("all")
    content = described(1e18).model_dump()
    shares = {name: whole for name in ("matmul", "attention", "memory")}
    content["device"]["efficiency"] = {**shares, "operators": {node.operator: figures}}
    measured = Cluster.model_validate(content)
    flops, moved = (sum(getattr(r, n) for r in rounds) for n in ("flops", "moved_bytes"))
    expected = len(rounds) * 1e-4 + flops / 1e9 + moved / 2e9
    assert len(rounds) == 6
    assert node_seconds(node, graph, measured) == pytest.approx(expected)
    assert computing_seconds(node, graph, measured) == pytest.approx(expected)
    content["device"]["efficiency"]["operators"] = {"ring_attention_gradient": figures}
    other = Cluster.model_validate(content)
    assert node_seconds(node, graph, other) < 0.1 * expected
