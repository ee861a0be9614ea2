"""The memory of attention on rings: what the cost model says, and what the executor counts."""

import pytest

import shardwright
from shardwright.cost_model.live_bytes import overlapped_memory
from shardwright.cost_model.memory import peak_memory
from shardwright.cost_model.timeline import simulate
from tests.extent import long_after

GPT = "gpt:layers=2,hidden=16,heads=4,batch=4,sequence=64,vocabulary=8"
WIDE = "llama:layers=2,hidden=16,heads=4,kv_heads=4,inner=4,batch=4,sequence=64,vocabulary=4"
LLAMA = "llama:layers=2,hidden=16,heads=4,kv_heads=2,inner=8,batch=4,sequence=64,vocabulary=8"


@pytest.mark.parametrize(
    ("model", "plan", "devices", "at"),
    long_after(
        3,
        [
            (WIDE, "context=2,ring", 2, "ring_attention_gradient"),
            (GPT, "context=4,ring", 4, "ring_attention_gradient"),
            (LLAMA, "context=4,ring", 4, "ring_attention_gradient"),
            (LLAMA, "context=4", 4, "balanced_attention_gradient"),
            (WIDE, "context=2,ring,pipeline=2,micro_batch=1", 4, "ring_attention_gradient"),
        ],
    ),
)
def test_what_rings_hold_is_counted(model: str, plan: str, devices: int, at: str) -> None:
    compiled = shardwright.compile(model, devices, plan=plan, precision="float32")
    program = compiled.plan.program
    predicted = peak_memory(program)
    (record,) = shardwright.run(compiled, steps=1)
    assert program.producers[predicted.at].operator == at
    assert predicted.peak_bytes == record.peak_bytes
    timeline = simulate(program, compiled.cluster)
    assert timeline.peak_bytes >= predicted.peak_bytes * (1 - 1e-9)
    if "pipeline" not in plan:
        assert overlapped_memory(program, timeline).peak_bytes == timeline.peak_bytes


def test_of_uneven_slices_the_largest_is_counted() -> None:
    compiled = shardwright.compile(GPT, 3, plan="context=3,ring", precision="float32")
    (record,) = shardwright.run(compiled, steps=1)
    ratio = peak_memory(compiled.plan.program).peak_bytes / record.peak_bytes
    assert 1 <= ratio <= 1.03
