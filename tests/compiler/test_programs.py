"""Programs that searches share are those that each would have emitted."""

from dataclasses import replace

from shardwright.compiler.driver import compile_graph
from shardwright.compiler.options import CompileOptions
from shardwright.compiler.programs import Programs
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.weighted.intervals import ResourceWeights
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.lower_redistributions import LowerRedistributions
from tests.random_graphs import random_graph

CPU = cluster("cpu")
OPTIONS = CompileOptions(objective="serial")
LEVELS = len(CPU.levels)
LOWERINGS = (
    LowerRedistributions(CPU),
    *(
        LowerRedistributions(CPU, weights=ResourceWeights(1 - link, (link / LEVELS,) * LEVELS))
        for link in (0.05, 0.9)
    ),
)


def test_shared_programs_are_what_each_search_would_emit() -> None:
    shared = 0
    for seed in range(6):
        graph = Canonicalize().run(random_graph(seed, nodes=6))
        programs = Programs()
        for search in ("exact", "data_parallel", "exact"):
            options = replace(OPTIONS, search=search)
            plan = compile_graph(graph, CPU, 8, options).decisions
            assert plan is not None
            for lowering in LOWERINGS:
                before = [known.program for known in programs.known]
                found = programs.emit(graph, options, plan, lowering)
                alone = Programs().emit(graph, options, plan, lowering)
                assert (found.program, found.memory) == (alone.program, alone.memory)
                assert [r.graph for r in found.records] == [r.graph for r in alone.records]
                shared += any(found.program is program for program in before)
    assert shared > 12
