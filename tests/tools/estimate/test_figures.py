"""What `estimate` tells beyond `compile`: exposed communication, hardware flops, layers, tags."""

import json
from math import inf

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.model_flops import hardware_flops, model_flops
from shardwright.tools.estimate.estimate_document import Estimated, folded_layers, tagged
from shardwright.tools.estimate.exposed import ACTIVATIONS, GRADIENTS, PARAMETERS, SENT
from shardwright.tools.main import main
from tests.extent import crossed, first, long_after

GPT = "gpt:layers=4,hidden=64,heads=4,batch=32,sequence=16,vocabulary=128"
PLANS = {
    "tensor": "tensor=2,data=4",
    "sharded": "data=8,zero=3,micro_batch=1",
    "pipeline": "tensor=2,pipeline=2,data=2,micro_batch=2,zero=2",
    "interleaved": "pipeline=2,chunks=2,data=4,micro_batch=2",
    "recomputed": "tensor=2,data=4,micro_batch=1,zero=3,recompute=full,sequence_parallel",
}
SOFTWARE = ["ideal", "megatron", "torchtitan"]


@pytest.fixture(scope="module")
def compilations():
    return {name: sw.compile(GPT, 8, plan=plan) for name, plan in PLANS.items()}


def estimated(compilation, run_by="ideal"):
    cluster = compilation.cluster.run_by(software(run_by))
    timed = sw.Compilation(compilation.plan, compilation.compiled, cluster)
    return Estimated(compilation, cluster, timed.timeline_within(inf), inf)


# Programs of training software


@pytest.mark.long
def test_software_reduces_over_a_group_in_one_call(capsys):
    # Rings of four devices of a node attain half between nodes here: a reduction in the node, and
    # one between nodes of a part each, would be faster, and no training software does that.
    large = "gpt:layers=1,hidden=4096,heads=32,batch=32,sequence=128,vocabulary=512"
    given = ["--cluster", "a100-800g", "--plan", "tensor=2,data=8", "--json"]
    assert main(["estimate", large, *given, "--software", "megatron-deepspeed"]) == 0
    found = json.loads(capsys.readouterr().out)["communication"]
    assert found.keys() == {"all_gather", "all_reduce"}  # the one of tokens at the head


# Exposed communication


@pytest.mark.parametrize("name", PLANS)
def test_the_kinds_add_up_to_all_exposed_communication(compilations, name):
    found = estimated(compilations[name])
    whole = found.timeline.exposed_communication_seconds
    assert found.exposed.waiting == pytest.approx(0, abs=1e-6 * found.timeline.step_seconds)
    assert sum(found.exposed.by_kind.values()) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("run_by", SOFTWARE)
@pytest.mark.parametrize("name", ["tensor", "pipeline"])
def test_as_software_runs_it_the_rest_of_the_step_is_waiting(compilations, name, run_by):
    found = estimated(compilations[name], run_by)
    timeline = found.timeline
    idle = timeline.step_seconds - timeline.compute_seconds - timeline.bubble_seconds
    told = sum(found.exposed.by_kind.values()) + found.exposed.waiting
    assert told == pytest.approx(idle, rel=1e-6)
    assert sum(found.exposed.by_kind.values()) <= timeline.communication_seconds * (1 + 1e-9)
    assert (found.exposed.waiting > 0) == (run_by != "ideal")


def test_passes_that_repeat_count_as_often_as_they_run():
    model = "gpt:layers=6,hidden=64,heads=4,batch=512,sequence=16,vocabulary=128"
    found = estimated(sw.compile(model, 8, plan="data=4,tensor=2,micro_batch=1,zero=3"))
    assert found.timeline.record.simulated
    whole = found.timeline.exposed_communication_seconds
    assert sum(found.exposed.by_kind.values()) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("name", ["tensor", "sharded", "recomputed"])
def test_a_kind_is_exposed_at_the_moments_at_which_it_alone_is_sent(compilations, name):
    found = estimated(compilations[name])
    timeline, random = found.timeline, np.random.default_rng(0)
    moments = np.sort(random.uniform(0, timeline.step_seconds, 4000))
    queues = {"blocking": ACTIVATIONS, "gathers": PARAMETERS, "reductions": GRADIENTS}
    active = {kind: np.zeros(len(moments), bool) for kind in (*SENT, "compute")}
    for event in timeline.events:
        where = event.placement
        kind = queues[where.queue] if where.levels else "compute"
        active[kind] |= (event.start <= moments) & (moments < event.end)
    idle = ~active["compute"]
    blocked = idle & active[ACTIVATIONS]
    beside = idle & ~active[ACTIVATIONS]
    both = beside & active[PARAMETERS] & active[GRADIENTS]
    sampled = {
        ACTIVATIONS: blocked.mean(),
        PARAMETERS: (beside & active[PARAMETERS]).mean() - both.mean() / 2,
        GRADIENTS: (beside & active[GRADIENTS]).mean() - both.mean() / 2,
    }
    for kind, share in sampled.items():
        told = found.exposed.by_kind.get(kind, 0.0) / timeline.step_seconds
        assert told == pytest.approx(share, abs=0.03)


# Hardware flops


def test_a_plan_without_recomputation_does_the_model_flops(compilations):
    source, program = compilations["tensor"].compiled.source, compilations["tensor"].plan.program
    assert hardware_flops(source, program).by_dtype == model_flops(source).by_dtype


def test_recomputed_products_count_once_more(compilations):
    compilation = compilations["recomputed"]
    source, program = compilation.compiled.source, compilation.plan.program
    layers, tokens, hidden, sequence = 4, 32 * 16, 64, 16
    model, whole = model_flops(source).total, hardware_flops(source, program, blocks=True).total
    block = 24 * tokens * hidden**2 + 4 * tokens * sequence * hidden
    assert whole - model == pytest.approx(layers * block)
    # no gradient reads the last product of a block, of 8 of the 24
    read = hardware_flops(source, program).total
    assert read - model <= layers * (block - 8 * tokens * hidden**2)
    assert read > model


# Layers


def test_the_layers_of_a_peak_add_up_to_the_memory(compilations):
    for compilation in compilations.values():
        found, memory = estimated(compilation), compilation.plan.document.memory
        kinds = list(memory.by_kind)
        most = memory.by_group or (memory.peak_bytes,)
        for peak, whole in zip(found.peaks, most, strict=True):
            total = sum(sum(layer["bytes"].values()) for layer in peak["layers"])
            assert total == pytest.approx(whole, rel=1e-6, abs=10)
            rows = folded_layers(peak["layers"], kinds)
            assert len(rows) <= len(peak["layers"])
            assert sum(sizes[-1] for _, sizes in rows) == pytest.approx(total)


@pytest.mark.parametrize(
    ("name", "run_by"), long_after(1, first(2, crossed(("sharded", "pipeline"), SOFTWARE[:2])))
)
def test_the_layers_add_up_to_the_memory_of_a_plan_that_does_not_fit(capsys, name, run_by):
    # The fastest timeline of a program without a limit gathers ahead, and the memory does not.
    plan = PLANS[name].replace("zero=2", "zero=3")
    given = ["--plan", plan, "--memory", "1e-6", "--software", run_by, "--json"]
    assert main(["estimate", GPT, *given]) == 3
    document = json.loads(capsys.readouterr().out)
    most = document["memory_by_group"] or [document["memory_bytes_per_device"]]
    for peak, whole in zip(document["memory_peaks"], most, strict=True):
        total = sum(sum(layer["bytes"].values()) for layer in peak["layers"])
        assert total == pytest.approx(whole, rel=1e-6, abs=10)


def test_exposed_communication_of_the_document_is_that_by_kind(capsys):
    given = ["--plan", PLANS["pipeline"], "--software", "megatron", "--json"]
    assert main(["estimate", GPT, *given]) == 0
    document = json.loads(capsys.readouterr().out)
    whole = document["exposed_communication_seconds"]
    assert whole == pytest.approx(sum(document["exposed_by_kind"].values()))


def test_numbered_layers_are_one_row_of_their_sums():
    sizes = {0: 8.0, 3: 7.0, 5: 9.0}
    layers = [{"layer": f"blocks/{i}", "bytes": {"inputs": n}} for i, n in sizes.items()]
    layers.insert(1, {"layer": "head", "bytes": {"inputs": 8.0, "gradients": 1.0}})
    layers.append({"layer": "tower/2", "bytes": {"gradients": 2.0}})
    assert folded_layers(layers, ["inputs", "gradients"]) == [
        ("3 of blocks, 0 to 5", [24.0, 0.0, 24.0]),
        ("head", [8.0, 1.0, 9.0]),
        ("tower/2", [0.0, 2.0, 2.0]),
    ]


def test_layers_of_a_part_of_the_model_have_a_row_of_their_own():
    mixtral = "mixtral:layers=2,hidden=16,heads=4,kv_heads=2,inner=24,batch=8,sequence=8,"
    found = estimated(sw.compile(mixtral + "vocabulary=50", 2, plan="data=2,expert=2"))
    titles = [title for title, _ in folded_layers(found.peaks[0]["layers"], ["parameters"])]
    assert titles[:2] == ["decoder", "2 of blocks, 0 to 1"]
    layers = [{"layer": f"{part}/blocks/0", "bytes": {}} for part in ("encoder", "decoder")]
    titles = [title for title, _ in folded_layers(layers, [])]
    assert titles == ["encoder/blocks/0", "decoder/blocks/0"]


# What is told


@pytest.mark.long
def test_every_figure_has_its_tag(capsys):
    arguments = ["estimate", GPT, "--plan", PLANS["pipeline"], "--software", "megatron"]
    assert main([*arguments, "--cluster", "a100-selene", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    figures = document["figures"]
    assert figures["matmul"] == "fitted"
    assert figures["node bandwidth"] == "measured"
    assert figures["megatron host"] in ("fitted", "assumed")
    assert set(figures.values()) <= {"measured", "fitted", "datasheet", "assumed"}
    assert len(document["memory_peaks"]) == 2
    assert document["hardware_flops_utilization"] == document["model_flops_utilization"]
    assert main([*arguments, "--cluster", "a100-selene", "--verbose"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fitted: matmul, attention," in said
    assert "wait for the host and transfers between stages" in said
    assert "memory of each device group at its peak, by layer" in said


def test_a_cluster_of_data_sheets_has_no_tags():
    assert not [*tagged(sw.compile("mlp", 1, mode="stand_alone").cluster)]


def test_the_document_says_whether_a_step_is_above_all_published_ones(capsys):
    model = "gpt:layers=1,hidden=4096,heads=32,batch=8,sequence=4096"
    given = [model, "--devices", "1", "--precision", "bfloat16", "--json", "--cluster"]
    for command in (["compile", *given], ["estimate", *given]):
        plan = ["--plan", "data=1"]
        assert main([*command, "h100:figures=datasheet", *plan]) == 0
        document = json.loads(capsys.readouterr().out)
        share = document["model_flops_utilization"]
        assert document["out_of_range"].startswith(
            f"out of range: {share:.0%} MFU is above the 64% of the fastest published step"
        )
        assert main([*command, "h100", *plan]) == 0
        assert json.loads(capsys.readouterr().out)["out_of_range"] is None


def test_a_type_without_a_rate_is_told(capsys):
    given = ["compile", "mlp", "--devices", "1", "--cluster", "v100-pod", "--precision"]
    told = "Tesla V100 SXM2 32GB has no rate of bfloat16: products are priced as float32, 15.7"
    assert main([*given, "bfloat16"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert main([*given, "float16"]) == 0
    assert "no rate of" not in capsys.readouterr().out


# Doubts


def doubts_of(sizes, capsys, memory="75"):
    given = [
        "--memory",
        memory,
        "--devices",
        "1",
        "--cluster",
        "h100-3200g",
        "--precision",
        "bfloat16",
        "--json",
    ]
    main(["estimate", f"gpt:layers=1,{sizes}", *given, "--plan", "data=1"])
    return json.loads(capsys.readouterr().out)["doubts"]


def test_an_estimate_says_where_attention_or_logits_decide_it(capsys):
    (attention,) = doubts_of("hidden=128,heads=1,batch=1,sequence=65536,vocabulary=128", capsys)
    start = "attention takes 67% of the step, at 56.5% of the peak (11 shapes of "
    assert attention.startswith(start)
    assert "; at 75% (Shah et al., 2024: FlashAttention-3" in attention
    large = "hidden=64,heads=1,batch=1,sequence=512,vocabulary=50000"
    (logits,) = doubts_of(large, capsys, memory="0.1")
    assert logits.startswith("logits that are whole at once take ")
    assert doubts_of(large, capsys) == []
    assert doubts_of("hidden=4096,heads=32,batch=1,sequence=512,vocabulary=512", capsys) == []


@pytest.mark.long
def test_the_first_lines_tell_the_memory_that_a_software_keeps_where_it_is_too_much(capsys):
    sizes = "llama:layers=2,hidden=8192,heads=64,kv_heads=64,inner=28672,vocabulary=512,sequence=8"
    given = ["--devices", "4", "--cluster", "a100-1600g", "--precision", "bfloat16"]
    given += ["--optimizer", "adam", "--batch", "4", "--plan", "data=4,micro_batch=1,zero=2"]
    assert main(["estimate", f"{sizes}", *given, "--software", "deepspeed"]) == 0
    assert "as it keeps tensors" not in capsys.readouterr().out
    larger = ["estimate", sizes.replace("layers=2", "layers=15"), *given, "--software", "deepspeed"]
    assert main(larger) == 3
    told = capsys.readouterr()
    text = " ".join(told.out.split())
    assert " of 80.0 GiB as it keeps tensors, which does not fit; no bound" in text
    assert " of 75.20 GiB, for the program alone: parameters " in text
    assert " of the device's 80.00 GiB as deepspeed keeps tensors, does not fit, " in text
    assert " as deepspeed keeps tensors on each device, the limit is 80.00 GiB; " in told.err
    assert main([*larger, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["fits"] is False
    assert main([*larger, "--memory", "120"]) == 0  # by the word of the user
    text = " ".join(capsys.readouterr().out.split())
    assert "does not fit" not in text
    assert " of 120.00 GiB as deepspeed keeps tensors, fits, " in text


def test_without_a_software_the_memory_says_what_it_leaves_out(capsys):
    main(["estimate", "gpt:layers=1,hidden=64,heads=2", "--devices", "2", "--plan", "data=2"])
    text = " ".join(capsys.readouterr().out.split())
    assert " kept not counted: what a training software keeps beside this program: " in text
