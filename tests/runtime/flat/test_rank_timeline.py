import json
import subprocess
import sys

import numpy as np
import pytest

from shardwright import api, dataset, nn
from shardwright.ir.errors import OutputError
from shardwright.ir.text import parse
from shardwright.ir.units import bytes_text
from shardwright.runtime import Executor
from shardwright.runtime.flat.rank_timeline import (
    RunTimeline,
    Span,
    figures,
    overlap,
    to_chrome_trace,
)
from shardwright.train import Model, TimelineMonitor
from tests.extent import ANY_PLAN
from tests.runtime.flat.test_flat_program import GRADIENTS, Alone
from tests.runtime.test_mpi import MPIEXEC, needs_mpi


def test_the_overlap_counts_every_moment_once():
    spans = [
        Span("under way", "a", 0.0, 4.0),
        Span("under way", "b", 3.0, 6.0),
        Span("compute", "c", 1.0, 3.5),
        Span("compute", "d", 5.0, 9.0),
        Span("wait", "e", 3.5, 5.0),
    ]
    assert overlap(spans) == (6.0, 3.5)


def test_collectives_that_overlap_have_a_row_each():
    spans = [
        Span("under way", "a", 0.0, 4.0),
        Span("under way", "b", 3.0, 6.0),
        Span("under way", "c", 4.0, 5.0),
        Span("compute", "d", 1.0, 2.0),
    ]
    events = json.loads(to_chrome_trace({"rank 0": spans}))["traceEvents"]
    rows = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert rows == {"a": 1, "b": 2, "c": 1, "d": 0}
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "computation", "collectives 1", "collectives 2"}


def test_only_moves_that_take_no_time_are_left_out():
    timeline = RunTimeline()
    timeline.record(Span("compute", "before all steps", 0.0, 1.0))
    timeline.steps.append([])
    spans = [
        Span("move", "long", 1.0, 1.1),
        Span("move", "short", 1.1, 1.1 + 1e-7),
        Span("compute", "short too", 1.2, 1.2 + 1e-7),
    ]
    for span in spans:
        timeline.record(span)
    assert [span.name for span in timeline.steps[0]] == ["long", "short too"]


def test_a_reduction_is_under_way_while_the_rank_computes():
    executor, timeline = Executor(parse(GRADIENTS), Alone(), in_place=True), RunTimeline()
    executor.watch(timeline)
    state = {"u": {0: np.ones(3)}, "v": {0: np.ones(20000)}}
    for _ in range(2):
        executor.step({"a": np.ones((4, 3)), "b": np.ones((4, 20000))}, state)
    assert len(timeline.steps) == 2
    for step in timeline.steps:
        large, small = (span for span in step if span.kind == "under way")
        assert large.name == f"all_reduce dv, {bytes_text(160_000)}"
        assert small.name == "all_reduce loss and 1 more, 48 B"
        (exp,) = [s for s in step if (s.kind, s.name) == ("compute", "exp e")]
        assert large.begin < exp.begin < exp.end < large.end
        under_way, both = overlap(step)
        assert 0 < both < under_way
    assert figures(timeline).startswith("collectives are under way for ")


def test_ranks_of_one_process_are_shown_as_what_they_are(tmp_path):
    compilation = api.compile("mlp:hidden=16", devices=2, **ANY_PLAN)
    file = tmp_path / "timeline.json"
    list(api.run(compilation, steps=7, timeline=file))
    events = json.loads(file.read_text())["traceEvents"]
    assert events[0]["args"]["name"] == "ranks 0 to 1, one after the other"
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names.count("matmul matmul_0") == 5  # the last steps
    list(api.run(compilation, steps=1, timeline=file))  # a timeline replaces a timeline
    file.write_text("{}")
    with pytest.raises(OutputError, match="the timeline cannot be written: a file that is somethi"):
        list(api.run(compilation, steps=1, timeline=file))


def test_a_pipeline_shows_its_messages(tmp_path):
    how = {"stages": 2, "micro_batches": 2, **ANY_PLAN}
    compilation = api.compile("mlp:hidden=16", devices=2, **how)
    file = tmp_path / "timeline.json"
    list(api.run(compilation, steps=2, timeline=file))
    names = [e["name"].split()[0] for e in json.loads(file.read_text())["traceEvents"]]
    assert names.count("send") == names.count("receive") > 0


def test_a_callback_writes_the_timeline_of_a_training(tmp_path):
    network = nn.Dense(4, 3)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    columns = {"x": np.ones((12, 4), np.float32), "y": np.zeros(12, np.int32)}
    data = dataset.ArrayDataset(columns).batch(4)
    file = tmp_path / "timeline.json"
    model.train(1, data, callbacks=TimelineMonitor(file))
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
    assert sum(name.startswith("momentum_update") for name in names) == 2 * 2


@needs_mpi
def test_processes_show_their_overlap(tmp_path):
    plan, file = tmp_path / "plan", tmp_path / "timeline.json"
    compilation = api.compile("mlp:batch=64,hidden=256", devices=2, mode="data_parallel")
    compilation.write(plan)
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "shardwright", "run", str(plan)]
    command += ["--backend", "mpi", "--steps", "3", "--timeline", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"timeline in {file}: collectives are under way for" in done.stdout
    events = json.loads(file.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0", "rank 1"]
    for rank in (0, 1):
        own = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        shown = [e for e in own if e["cat"] == "under way" and "layer2.weight" in e["name"]]
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in shown]
        computed = [e for e in own if e["cat"] == "compute"]
        assert len(spans) == 3
        for begin, end in spans:
            assert any(begin < e["ts"] and e["ts"] + e["dur"] < end for e in computed)
