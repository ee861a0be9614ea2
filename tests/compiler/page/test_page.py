"""The page: its numbers are those of the plan, the timeline and the program."""

import json
import re
import shutil
import subprocess
from itertools import pairwise
from math import inf

import numpy as np
import pytest

import shardwright as sw
from shardwright.compiler.outer.account import search_document
from shardwright.compiler.page.page import page_text
from shardwright.compiler.page.page_document import page_document
from shardwright.compiler.page.page_memory import highest, layer_of
from shardwright.compiler.page.timelines import Entry, rows_of, shortened
from shardwright.compiler.plans.accounting import operator_costs, traffic
from shardwright.cost_model.buffers import buffers
from shardwright.cost_model.pipelines.mixed import MixedCluster, groups_on
from shardwright.cost_model.roofline import node_seconds
from shardwright.cost_model.streams import placements
from shardwright.ir.liveness import times_run
from shardwright.ir.mesh import Mesh
from tests.extent import ANY_PLAN, long_after

GPT = "gpt:layers=3,hidden=16,heads=2,batch=16,sequence=8,vocabulary=64,dtype=float32"
CASES = {
    "one stage": {**ANY_PLAN},
    "micro-batches": {"micro_batches": 4, "mesh": "4", **ANY_PLAN},
    "pipeline": {"stages": 2, "micro_batches": 4, "devices": 2, **ANY_PLAN},
    "interleaved": {"plan": "pipeline=2,chunks=2,data=2,micro_batch=2"},
    "zero 3": {"plan": "data=4,zero=3"},
    "recomputed": {"mode": "data_parallel", "recompute": "full"},
    "searched": {"mesh": "search", **ANY_PLAN},
    "one device": {"mode": "stand_alone"},
    "two kinds of devices": {"plan": "pipeline=4,tensor=2,micro_batch=2", "devices": 8},
}
MIXED = "two kinds of devices"


def two_kinds(folder):
    """Write a cluster whose halves differ in everything, the names of their links too."""
    parts = [
        {
            "name": name,
            "device": {
                "name": f"{name} GPU",
                "peak_flops": {"float32": 4e12 / slower},
                "memory_bandwidth": 1e11 / slower,
                "memory_bytes": 8_000_000_000 // slower,
                "launch_seconds": 1e-7 * slower,
            },
            "levels": [{"name": link, "size": 4, "bandwidth": 2e10 / slower, "latency": 1e-6}],
        }
        for name, slower, link in (("fast", 1, "bridge"), ("slow", 2, "bus"))
    ]
    link = {"bandwidth": 5e9, "latency": 5e-6}
    path = folder / "boxes.json"
    path.write_text(json.dumps({"name": "boxes", "parts": parts, "link": link}))
    return str(path)


@pytest.fixture(scope="module", params=long_after(5, CASES))
def compilation(request, tmp_path_factory):
    options = dict(CASES[request.param])
    devices = options.pop("devices", 1 if options.get("mode") == "stand_alone" else 4)
    mixed = request.param == MIXED
    cluster = two_kinds(tmp_path_factory.mktemp("mixed")) if mixed else "cpu"
    return sw.compile(GPT, devices, cluster=cluster, **options)


@pytest.fixture(scope="module")
def timeline(compilation):
    limit = compilation.plan.document.memory.limit
    return compilation.timeline_within(inf if limit is None else limit)


@pytest.fixture(scope="module")
def document(compilation, timeline):
    found = page_document(compilation.plan, compilation.compiled, compilation.cluster, timeline)
    text = page_text(found)
    return json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)[1])


def operators(boxes):
    for box in boxes:
        if "children" in box:
            yield from operators(box["children"])
        else:
            yield box


@pytest.mark.long
def test_the_head_is_that_of_the_plan(compilation, timeline, document):
    plan, found = compilation.plan.document, document["plan"]
    assert found["model"] == plan.model
    assert found["devices"] == plan.devices
    assert found["serial_step_seconds"] == pytest.approx(plan.predicted_step_seconds, rel=1e-8)
    assert found["overlapped_step_seconds"] == pytest.approx(timeline.step_seconds, rel=1e-8)
    assert found["micro_batches"] == plan.micro_batches
    search = document["search"]
    assert search["objective"] == pytest.approx(plan.objective, rel=1e-8)
    assert search["lower_bound"] == pytest.approx(plan.lower_bound, rel=1e-8)
    assert search["certificate"] == plan.certificate
    trace = search_document(compilation.search_trace)
    assert (search["trace"] is None) == (trace is None)
    if trace is not None:
        assert len(search["trace"]["tried"]) == len(trace["tried"])


def test_every_operator_is_in_one_box_and_no_time_is_lost(compilation, document):
    compiled, model = compilation.compiled, document["model"]
    boxes = list(operators(model["boxes"]))
    assert sum(box["count"] for box in boxes) == len(compiled.source) == model["operators"]
    assert len(boxes) == model["drawn"]
    assert [box["id"] for box in boxes] == list(range(len(boxes)))
    costs = operator_costs(compiled, compilation.cluster)
    total = sum(cost.seconds for cost in costs)
    drawn = sum(box["seconds"] for box in boxes) + model["other_seconds"]
    assert drawn == pytest.approx(total, rel=1e-7)
    assert sum(row["seconds"] for row in document["strategies"]) == pytest.approx(total, rel=1e-7)


def test_a_box_is_equal_to_every_operator_that_it_stands_for(compilation, document):
    source, program = compilation.compiled.source, compilation.plan.program
    named = {node.name: node for node in source.nodes}
    for box in operators(document["model"]["boxes"]):
        node = named[box["name"]]
        assert [read["tensor"] for read in box["reads"]] == list(node.operands)
        for made, result in zip(box["makes"], node.results, strict=True):
            value = program.values[result.name]
            assert made["layout"] == (str(value.layout.at(None)) if value.layout else "")


def test_the_rows_of_the_timeline_hold_all_of_its_seconds(timeline, document):
    expected = {}
    for event in timeline.events:
        for row in rows_of(event) if event.seconds else ():
            key = event.group, row
            expected[key] = expected.get(key, 0.0) + event.seconds
    found = {(row["group"], row["name"]): row for row in document["timeline"]["rows"]}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert row["busy_seconds"] == pytest.approx(expected[key], rel=1e-8)
        assert sum(entry[2] for entry in row["entries"]) == pytest.approx(expected[key], rel=1e-6)
        assert sum(entry[4] for entry in row["entries"]) == row["nodes"]


def test_the_segments_of_a_pipeline_and_its_bubble_fill_the_step(compilation, timeline, document):
    segments, groups = document["timeline"]["segments"], compilation.plan.mesh.stages
    assert bool(segments["count"]) == (groups > 1)
    if groups > 1:
        entries = segments["entries"]
        busy = sum(entry[6] for entry in entries)
        free = groups * timeline.bubble_seconds
        assert busy + free == pytest.approx(groups * timeline.step_seconds, rel=1e-6)
        in_loop = [entry for entry in entries if entry[1] is not None]
        stages, passes = compilation.plan.program.stages, compilation.plan.document.micro_batches
        assert len(in_loop) == 2 * stages * passes
        for group in range(groups):
            own = sorted(entry[4:6] for entry in entries if entry[0] == group)
            assert all(b[0] >= a[1] * (1 - 1e-7) for a, b in pairwise(own))


def test_the_series_of_memory_reach_the_peak_of_the_plan(compilation, document):
    memory, plan = document["memory"], compilation.plan.document.memory
    assert memory["peak_bytes"] == plan.peak_bytes
    assert memory["by_kind"] == pytest.approx(plan.by_kind)
    highest_of_all = [max(map(sum, series["bytes"])) for series in memory["series"]]
    assert max(highest_of_all) == pytest.approx(plan.peak_bytes, rel=1e-6, abs=5)
    assert max(s["peak_bytes"] for s in memory["series"]) == pytest.approx(plan.peak_bytes)
    if plan.by_group:
        assert highest_of_all == pytest.approx(plan.by_group, rel=1e-6, abs=5)


def test_the_peak_of_every_stage_is_divided_by_layer_and_kind(compilation, document):
    memory, plan = document["memory"], compilation.plan.document.memory
    groups = plan.by_group or (plan.peak_bytes,)
    assert len(memory["peaks"]) == len(groups)
    blocks = set()
    for peak, most in zip(memory["peaks"], groups, strict=True):
        kinds = dict.fromkeys(memory["kinds"], 0.0)
        for layer in peak["layers"]:
            for kind, nbytes in layer["bytes"].items():
                kinds[kind] += nbytes
        assert sum(kinds.values()) == pytest.approx(most, rel=1e-6, abs=50)
        if most == plan.peak_bytes:
            if peak["at"] != plan.at:  # of equal peaks of a pipeline another is first in time
                assert plan.by_group
                assert peak["at"] in {node.name for node in compilation.plan.program.nodes}
            assert kinds == pytest.approx(plan.by_kind, rel=1e-6, abs=50)
        blocks.update(layer["layer"] for layer in peak["layers"])
    assert {"blocks/0", "blocks/1", "blocks/2"} <= blocks


def test_each_stage_has_the_parameters_of_its_own_layers(compilation, document):
    program, groups = compilation.plan.program, compilation.plan.mesh.stages
    sizes = buffers(program).sizes
    expected = [{} for _ in range(groups)]
    for parameter in program.parameters:
        if parameter.role != "state" and sizes[parameter.name]:
            name, layout = parameter.weight or parameter.name, parameter.value.layout
            stage = None if layout is None else layout.stage
            layer = layer_of(name.replace(".", "/").rpartition("/")[0])
            for group in range(groups) if stage is None else (stage % groups,):
                own = expected[group]
                own[layer] = own.get(layer, 0.0) + sizes[parameter.name]
    for peak, own in zip(document["memory"]["peaks"], expected, strict=True):
        found = {row["layer"]: row["bytes"].get("parameters", 0.0) for row in peak["layers"]}
        assert {layer: size for layer, size in found.items() if size} == pytest.approx(own)


def test_the_communication_is_all_traffic_of_the_program(compilation, document):
    program = compilation.plan.program
    # With stages the plan counts the device group that sends most.
    expected = {} if program.stages else traffic(program)
    rows = document["communication"]
    assert sum(row["count"] for row in rows) >= sum(v.count for v in expected.values())
    if expected:
        assert sum(row["bytes"] for row in rows) == pytest.approx(
            sum(volume.bytes for volume in expected.values()), rel=1e-7
        )
    assert all(row["reason"] for row in rows)


def test_a_row_of_communication_names_all_links_it_takes(compilation, document):
    program = compilation.plan.program
    groups = groups_on(compilation.cluster, program.mesh or Mesh(()))
    links = set()
    for i, node in enumerate(program.nodes):
        links.update(placements(program, groups.of_node(node, program))[i].levels)
    rows = document["communication"]
    assert {link for row in rows for link in row["links"]} == links
    if groups.is_mixed:  # equal layers of both parts are one row
        sums = [row for row in rows if row["layers"] == 3 and "reduce" in row["collectives"]]
        assert sums
        assert all(set(row["links"]) == {"bridge", "bus"} for row in sums)


def test_each_device_group_has_the_times_and_the_limit_of_its_own_devices(compilation, document):
    if not isinstance(compilation.cluster, MixedCluster):
        return
    program, parts = compilation.plan.program, compilation.cluster.parts
    expected = [0.0] * 4
    placed = placements(program, parts[0])
    for node, times, where in zip(program.nodes, times_run(program), placed, strict=True):
        stage = program.stage_of(node)
        if node.operator != "transfer" and not where.levels:
            for group in range(4) if stage is None else (stage,):
                expected[group] += times * node_seconds(node, program, parts[group // 2])
    rows = {(r["group"], r["name"]): r["busy_seconds"] for r in document["timeline"]["rows"]}
    assert [rows[group, "compute"] for group in range(4)] == pytest.approx(expected, rel=1e-6)
    names = {name.split(":")[0]: group // 2 for group, name in rows if name != "compute"}
    assert names == {"bridge": 0, "bus": 1}
    assert document["plan"]["device_by_group"] == ["fast GPU"] * 2 + ["slow GPU"] * 2
    limits = [0.94 * part.device.memory_bytes for part in parts for _ in range(2)]
    assert [s["limit_bytes"] for s in document["memory"]["series"]] == pytest.approx(limits)
    assert "has the parts" in document["no_alternatives"]


MINE = """\
import shardwright as sw
from shardwright import nn


class Network(nn.Cell):
    def __init__(self):
        self.first = nn.Dense(64, 32)
        self.second = nn.Dense(32, 8)

    def construct(self, x):
        x = self.first(x)
        return self.second(x)


def network():
    inputs = (
        sw.InputSpec("x", sw.TensorType("float32", (16, 64))),
        sw.InputSpec("label", sw.TensorType("int32", (16,)), 8),
    )
    return Network(), inputs, nn.CrossEntropyLoss()
"""


def test_operators_and_collectives_have_the_lines_of_the_model(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    model = f"{tmp_path / 'mine.py'}:network"
    found = sw.compile(model, 2, cluster="cpu", mode="data_parallel")
    lines = {name: line for name, line in found.lines.items() if "matmul" in name}
    assert lines == {"matmul_0": "mine.py:11", "matmul_1": "mine.py:12"}
    where = found.plan, found.compiled, found.cluster, found.timeline_within(inf)
    document = page_document(*where, lines=found.lines)
    told = {row["reason"]: row["lines"] for row in document["communication"]}
    assert told["adds up each rank's part of the gradient of first.weight"] == ["mine.py:11"]
    assert told["adds up each rank's part of the gradient of second.weight"] == ["mine.py:12"]


# Folding


def test_equal_layers_are_one_box_with_their_count(document, compilation):
    if compilation.plan.document.mode == "stand_alone":
        blocks = next(b for b in document["model"]["boxes"] if b.get("scope") == "blocks")
        assert [(box["scope"], box["count"]) for box in blocks["children"]] == [("0 to 2", 3)]


# Shortening


def test_shortened_rows_keep_counts_and_seconds():
    random = np.random.default_rng(0)
    for count in (10, 500, 5000):
        seconds = random.exponential(1.0, count) ** 3
        gaps = random.exponential(0.2, count) * random.integers(0, 2, count)
        starts = np.cumsum(seconds + gaps) - seconds
        entries = [
            Entry(float(a), float(a + s), float(s), str(i))
            for i, (a, s) in enumerate(zip(starts, seconds, strict=True))
        ]
        found, threshold = shortened(entries, 300)
        assert sum(entry.count for entry in found) == count
        assert sum(entry.busy for entry in found) == pytest.approx(seconds.sum())
        assert all(e.busy >= threshold for e in found if e.count == 1 and not e.is_short)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(found))
        assert len(found) == count if count <= 300 else len(found) <= 300


def test_a_shortened_series_keeps_its_peak_and_order():
    totals = np.random.default_rng(1).random(1000)
    kept = list(highest(totals, 37))
    assert len(kept) == 37
    assert kept == sorted(kept)
    assert totals[kept].max() == totals.max()


# The page in a browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def in_chromium(page, folder, expression):
    """Return what an expression of the page is, and the page as it is drawn."""
    script = f"<script>document.body.setAttribute('data-said', {expression});</script>"
    page.write_text(page.read_text().replace("</body>", f"{script}</body>"))
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-dev-shm-usage", f"--user-data-dir={folder}", "--dump-dom"]
    run = subprocess.run(
        [*command, "--virtual-time-budget=2000", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return re.search(r'data-said="([^"]*)"', run.stdout)[1], run.stdout


VIEWS = """(() => { const said = []; for (const name of Object.keys(VIEWS)) {
 try { said.push(VIEWS[name][1](JSON.parse(document.getElementById('document')
.textContent)).map((e) => e.querySelector('h2').textContent).join('+')); }
 catch (error) { said.push(`${name}: ${error}`); } } return said.join('; '); })()"""
GROUPS = """(() => { const report = JSON.parse(document.getElementById('document').textContent);
 const said = [document.querySelector('#facts').textContent];
 for (const view of [timelineView, memoryView]) for (const part of view(report)) for (const one
 of part.querySelectorAll('option')) said.push(one.textContent);
 return said.join('; '); })()"""


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_chromium_draws_every_view(tmp_path):
    compilation = sw.compile("mlp:batch=8", 4, cluster="cpu", mesh="search", micro_batches="search")
    page = compilation.write_page(tmp_path / "page.html")
    said, drawn = in_chromium(page, tmp_path, VIEWS)
    views = [text.split("+") for text in said.split("; ")]
    assert views[0] == ["Model"]
    assert views[1][-1] == "Streams"
    assert views[2][0] == "Memory over the step"
    assert views[3:5] == [["Communication"], ["Strategies"]]
    assert views[5][:2] == ["Certificate", "Front"]
    assert "<canvas" in drawn or 'class="row"' in drawn


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_chromium_names_the_devices_and_limits_of_every_device_group(tmp_path):
    plan = "pipeline=2,micro_batch=4"
    compilation = sw.compile(GPT, 2, cluster=two_kinds(tmp_path), plan=plan)
    head, *options = in_chromium(compilation.write_page(tmp_path / "a.html"), tmp_path, GROUPS)[
        0
    ].split("; ")
    names = ["device group 0, fast GPU", "device group 1, slow GPU"]
    assert options[:2] == names
    memory = compilation.plan.document.memory
    shares = [b / limit for b, limit in zip(memory.by_group, memory.limit_by_group, strict=True)]
    for name, text in zip(names, options[2:], strict=True):
        number = names.index(name)
        assert text.startswith(f"{name}: ")
        assert ("of 7.00 GiB", "of 3.50 GiB")[number] in text
        assert ("the fullest" in text) == (shares[number] == max(shares))
    assert f"on {('fast GPU', 'slow GPU')[shares.index(max(shares))]}" in head
