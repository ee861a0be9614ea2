"""A model with fewer layers: what is dropped, and when nothing is."""

import pytest

from shardwright.compiler.fit.shortened import shortened
from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph
from shardwright.models import training_definition


def graph(text: str, batch: int = 2) -> Graph:
    return training_definition(text, batch, 1)[0].graph


def cells(program: Graph) -> list[str]:
    return sorted({block_of(node.scope) for node in program.nodes} - {""})


@pytest.mark.parametrize("keep", [2, 3, 4])
@pytest.mark.parametrize("model", ["gpt:heads=2", "llama:heads=2,kv_heads=2,inner=64"])
def test_the_first_layers_stay_with_both_ends(model, keep):
    sizes = "hidden=32,sequence=8,vocabulary=50"
    short = shortened(graph(f"{model},layers=6,{sizes}"), keep)
    whole = graph(f"{model},layers={keep},{sizes}")
    assert cells(short) == cells(whole)
    assert [n.operator for n in short.nodes] == [n.operator for n in whole.nodes]
    assert [p.value.type for p in short.parameters] == [p.value.type for p in whole.parameters]
    assert short.parameters[-1].name == whole.parameters[-1].name


def test_a_model_of_few_layers_stays_as_it_is():
    whole = graph("gpt:layers=2,hidden=32,heads=2,sequence=8,vocabulary=50")
    assert shortened(whole, 2) is whole
    assert cells(shortened(whole, 1)) == ["blocks/0"]


def test_a_model_whose_end_reads_several_layers_stays_as_it_is():
    whole = graph("mixtral:layers=6,hidden=32,heads=2,kv_heads=2,inner=64,sequence=8,vocabulary=50")
    assert shortened(whole, 2) is whole
