"""The plan of the blocks of one stage: it fits, takes what it says, and computes the model."""

from dataclasses import replace
from functools import cache
from math import inf

import pytest

from shardwright.compiler.blockwise import BlockwisePlan
from shardwright.compiler.driver import compile_graph
from shardwright.compiler.partitioning import Emitted
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.timeline import simulate
from shardwright.ir.errors import NotFoundError
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.models import load_model
from shardwright.operators.models.optimizer import Optimizer
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.manager import PassManager
from shardwright.planner.options import CompileOptions
from shardwright.solver.work import Budget
from tests.equivalence import assert_equal, trained
from tests.extent import first, long_after

POD = cluster("a100-pod:figures=datasheet")
MESH = Mesh((MeshAxis("x", 2),))
GPT = "gpt:layers=4,hidden=32,heads=4,batch=8,sequence=8,vocabulary=64,dtype=float32"
OPTIONS = CompileOptions(micro_batches=2, optimizer=Optimizer("adam"))


@cache
def emitted(memory: float = inf) -> Emitted:
    source = Canonicalize().run(load_model(GPT).graph)
    options = replace(OPTIONS, memory_limit=memory)
    return BlockwisePlan(source, POD, MESH, options, PassManager(), None, Budget(60)).emit()


@pytest.mark.long
@pytest.mark.parametrize("share", first(1, [0.85, 1.0]))
def test_it_fits_and_takes_what_its_program_takes(share: float) -> None:
    limit = share * emitted(inf).memory.peak_bytes
    found = emitted(limit)
    assert found.memory.peak_bytes <= limit
    assert found.result is not None
    step = simulate(found.program, POD, limit).step_seconds
    assert found.result.cost == pytest.approx(step, rel=2e-3)


@pytest.mark.parametrize("share", long_after(1, [inf, 0.85]))
def test_it_computes_what_the_model_computes(share: float) -> None:
    limit, highs = share * emitted(inf).memory.peak_bytes, {"tokens": 64, "labels": 64}
    alone = replace(OPTIONS, mode="stand_alone", micro_batches=1)
    whole = compile_graph(load_model(GPT).graph, POD, 1, alone).program
    assert_equal(trained(emitted(limit).program, highs=highs), trained(whole, highs=highs))


def test_where_nothing_fits_it_says_so() -> None:
    with pytest.raises(NotFoundError, match="no plan of blocks was found that fits"):
        emitted(1000.0)
