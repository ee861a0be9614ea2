"""What the report of a plan adds up over a step, and the step that a plan is told by."""

import re

import pytest

import shardwright as sw
from shardwright.ir.units import seconds_text
from shardwright.tools.reports.documents import timeline_of
from shardwright.tools.reports.report import FULL, print_compilation
from tests.extent import long_after

TEXT = "gpt:layers=4,hidden=64,heads=4,batch=16,sequence=16,vocabulary=128"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


@pytest.mark.parametrize(
    "plan",
    long_after(1, ["tensor=2,data=2,micro_batch=2", "tensor=2,data=1,pipeline=2,micro_batch=2"]),
)
def test_collectives_in_micro_batches_count_once_for_each(plan, tmp_path, capsys):
    found = sw.compile(TEXT, 4, plan=plan)
    folder = found.write(tmp_path / "plan")
    print_compilation(found, timeline_of(found, float("inf")), folder, FULL)
    table = capsys.readouterr().out.partition("communication: bytes")[2].partition("\nstep ")[0]
    sent = re.findall(r"^ *([\d.]+) (B|KiB|MiB) +[\d.]+ .?s ", table, re.MULTILINE)
    total = sum(float(number) * UNITS[unit] for number, unit in sent)
    volumes = found.plan.document.communication
    if "pipeline" not in plan:  # with stages a device sends what one device group does
        assert total == pytest.approx(sum(v.bytes for v in volumes.values()), rel=0.01)
    passes = found.plan.document.micro_batches
    assert passes > 1
    assert total > passes * 4 * 2 * 16 * 64 * 4  # the all-reduces of attention alone
    assert table.splitlines()[0].endswith("device groups") == ("pipeline" in plan)


def test_a_pipeline_is_told_by_the_step_of_its_schedule():
    found = sw.compile(TEXT, 4, plan="tensor=1,data=2,pipeline=2,micro_batch=2")
    step = seconds_text(timeline_of(found, float("inf")).step_seconds)
    assert f"devices: {step}," in repr(found)
    assert step != seconds_text(found.plan.document.predicted_step_seconds)
