"""Pipelines of one micro-batch: what is computed again takes memory when it is, not before."""

import pytest

from shardwright import compile
from shardwright.cost_model.memory import peak_memory
from tests.extent import long_after

MODEL = (
    "llama:layers=8,hidden=64,heads=4,kv_heads=4,inner=128,batch=4,sequence=256,vocabulary=64,"
    "dtype=float32"
)


@pytest.mark.parametrize(
    "plan",
    long_after(
        1,
        [
            "pipeline=2,data=1,recompute=full",
            "tensor=2,pipeline=2,data=1,sequence_parallel",  # gathers again
            "tensor=2,pipeline=2,data=1,sequence_parallel,recompute=full",
        ],
    ),
)
def test_the_overlapped_step_takes_about_the_memory_of_the_program(plan: str) -> None:
    compilation = compile(MODEL, 4 if "tensor" in plan else 2, plan=plan)
    memory, program = compilation.plan.document.memory, compilation.plan.program
    in_order = peak_memory(program)

    assert memory.peak_bytes == max(memory.by_group)
    for overlapped, plain in zip(memory.by_group, in_order.by_group, strict=True):
        assert overlapped == pytest.approx(plain, rel=0.02)
