"""Statistics of experts are reduced where no computation waits for them."""

import pytest

from shardwright.api import compile
from shardwright.cost_model.cluster import cluster
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import loop_of
from shardwright.passes.clean_up import DelayStatistics
from tests.extent import long_after

MODEL = (
    "mixtral:layers=4,hidden=256,heads=4,kv_heads=2,inner=512,sequence=64,vocabulary=64,experts=4"
)
PODS = cluster("h100-pod")


def compiled(micro_batch: int) -> Graph:
    """Return the program of a mixture whose parameters are gathered over the links of a pod."""
    plan = f"data=16,zero=3,micro_batch={micro_batch}"
    return compile(MODEL, 16, cluster=PODS, batch=64, plan=plan, optimizer="adam").plan.program


def statistics(nodes: tuple[Node, ...]) -> list[int]:
    """Return the places of the all-reduces that belong to the forward pass."""
    return [
        i
        for i, node in enumerate(nodes)
        if node.provenance.phase == "forward" and node.operator == "all_reduce"
    ]


@pytest.mark.parametrize("micro_batch", long_after(1, [2, 4]))
def test_statistics_are_reduced_after_all_layers(micro_batch: int) -> None:
    program = compiled(micro_batch)
    loop = loop_of(program)
    assert (loop is None) == (micro_batch == 4)
    nodes = program.nodes if loop is None else program.nodes[loop.start : loop.stop]
    places = statistics(nodes)
    forward = [i for i, node in enumerate(nodes) if node.provenance.phase == "forward"]
    layers = [i for i in forward if nodes[i].operator == "grouped_matmul"]
    assert len(places) >= 8
    assert min(places) > max(layers)
    assert DelayStatistics().run(program) is program
