"""The pipeline of each mode is what runs, and what the command line and the docs tell of it."""

import pytest

from shardwright.compiler.driver import compile_graph
from shardwright.cost_model.cluster import cluster
from shardwright.ir.text import parse, to_text
from shardwright.passes.manager import PassManager
from shardwright.passes.pipeline import parse_pipeline, pipeline_text
from shardwright.planner.options import MODES, CompileOptions, Mode
from shardwright.planner.pipelines import pass_names

PRODUCT = """
graph product {
  input x: f32[8, 16]
  parameter w: f32[16, 4]
  h: f32[8, 4] = matmul(x, w)
  loss: f32[] = reduce_sum(h)
  return loss
}
"""


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_what_runs_is_the_pipeline(mode: Mode, micro_batches: int) -> None:
    if mode == "hybrid_parallel" and micro_batches > 1:
        pytest.skip("a program written by hand has no micro-batches")
    devices = 1 if mode in ("hybrid_parallel", "stand_alone") else 2
    options = CompileOptions(mode=mode, micro_batches=micro_batches, precision="bfloat16")
    compiled = compile_graph(parse(PRODUCT), cluster("cpu"), devices, options)
    names = pass_names(mode, precision="bfloat16", micro_batches=micro_batches)
    assert tuple(record.name for record in compiled.passes.records) == names


def test_the_passes_after_the_search_are_functions_of_the_graph_alone() -> None:
    """From its text, the annotated graph becomes the very program."""
    options = CompileOptions(search="fully_sharded", loss_scale=2.0)
    compiled = compile_graph(parse(PRODUCT), cluster("cpu"), 4, options)
    annotated = to_text(compiled.passes.after("annotate"))
    after = [record.work for record in compiled.passes.records[2:]]
    pipeline = parse_pipeline(pipeline_text(tuple(after)))
    assert PassManager().run_all(pipeline, parse(annotated)) == compiled.program
