"""Scripts of Megatron as the project ships them: GPT-3, Llama 3 and Mixtral."""

import pytest

from shardwright.frontends import configs
from shardwright.ir.errors import ModelError
from shardwright.tools.main import main
from shardwright.zoo import load

GPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
EACH=8
DISTRIBUTED_ARGS=(
    --nproc_per_node $EACH
    --nnodes 1
)
MODEL_ARGS=(
    --num-layers 4
    --hidden-size 256
    --num-attention-heads 8
    --seq-length 128
    --max-position-embeddings 128
    --attention-backend auto # or flash
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 64
    --rampup-batch-size 16 16 5859375
    --fp16
)
PARALLEL_ARGS=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 2
)
DATA_ARGS=(
    --vocab-file $1
    --merge-file $2
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]}
"""
MIXTRAL = """
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --use-mcore-models --disable-bias-linear \\
    --seq-length 4096 --max-position-embeddings 32768 --num-layers 32 --hidden-size 4096 \\
    --ffn-hidden-size 14336 --num-attention-heads 32 --attention-dropout 0.0 --hidden-dropout 0.0 \\
    --normalization RMSNorm --position-embedding-type rope --swiglu --no-position-embedding \\
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 \\
    --rotary-base 1000000 --num-experts 8 --moe-router-topk 2 --moe-aux-loss-coeff 1e-2 \\
    --moe-router-load-balancing-type aux_loss --moe-grouped-gemm \\
    --moe-token-dispatcher-type alltoall --tokenizer-type Llama2Tokenizer --micro-batch-size 1 \\
    --global-batch-size 256 --bf16 --pipeline-model-parallel-size 4 \\
    --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel
"""


def written(folder, text):
    path = folder / "train.sh"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["rampup-batch-size", "step-batch-size-schedule"])
def test_a_batch_that_grows_is_that_of_the_last_steps(name, tmp_path):
    text = GPT.replace("rampup-batch-size", name)
    found = configs.read_plan(written(tmp_path, text), with_model=True)
    assert found.sizes["batch"] == 64
    assert any(
        note.startswith(f"`--{name}`: the step is that of the whole") for note in found.notes
    )
    path = written(tmp_path, text.replace("--global-batch-size 64", ""))
    with pytest.raises(ModelError, match="add that of the steps to plan"):
        configs.read_plan(path, with_model=True)


def test_a_script_of_another_model_is_no_decoder(tmp_path):
    path = written(tmp_path, GPT.replace("pretrain_gpt", "pretrain_bert"))
    with pytest.raises(ModelError, match=r"it runs `pretrain_bert\.py`"):
        configs.read_model(path)
    assert configs.read_plan(path, with_model=False).plan["pipeline"] == 2


def test_devices_of_one_node_that_the_degrees_exceed_are_told(tmp_path, capsys):
    path = written(tmp_path, GPT)
    assert main(["estimate", path, "--plan", path]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "starts 8 processes" in error
    assert "add `--devices` with the number of all devices" in error
    assert main(["estimate", path, "--plan", path, "--devices", "16"]) == 0


def test_experts_are_those_of_mixtral(tmp_path):
    found = configs.read_plan(written(tmp_path, MIXTRAL), with_model=True)
    assert (found.devices, found.plan["expert"], found.plan["pipeline"]) == (32, 8, 4)
    assert found.model == "mixtral"
    assert load(f"mixtral:{found.sizes_text}").parameter_count == 46_702_792_704
    assert found.sizes["balance"] == 0.01
    assert "moe-grouped-gemm" in found.software
    none = MIXTRAL.replace("aux_loss", "none")
    assert configs.read_model(written(tmp_path, none)).sizes["balance"] == 0


def test_choices_and_widths_of_experts_are_read(tmp_path):
    text = MIXTRAL.replace("--num-experts 8 --moe-router-topk 2", "--num-experts 64{}")
    text = text.replace("--num-layers 32", "--num-layers 1")
    fine = text.format(" --moe-router-topk 6 --moe-ffn-hidden-size 1408")
    found = configs.read_model(written(tmp_path, fine))
    assert (found.sizes["top_k"], found.sizes["inner"], found.sizes["capacity"]) == (6, 1408, 0)
    graph = load(f"mixtral:{found.sizes_text}").graph
    rows = next(node for node in graph.nodes if node.operator == "dispatch").results[0].type
    assert (rows.shape[0], rows.ragged.filled) == (64, 6)
    assert all(node.operator != "within_capacity" for node in graph.nodes)
    assert configs.read_model(written(tmp_path, text.format(""))).sizes["top_k"] == 2
    path = written(tmp_path, text.format(" --moe-router-topk 65"))
    with pytest.raises(ModelError, match="is 65, and there are 64 experts"):
        configs.read_model(path)


def test_exchanges_beside_computation_are_a_schedule_of_virtual_stages(tmp_path):
    text = f"{MIXTRAL.rstrip()} --overlap-moe-expert-parallel-comm"
    found = configs.read_plan(written(tmp_path, text), with_model=True)
    assert "schedule" not in found.plan
    note = (
        "`--overlap-moe-expert-parallel-comm` without virtual stages is not priced: computation "
        "waits for the exchanges of experts"
    )
    assert note in found.notes
    text = f"{text} --num-layers-per-virtual-pipeline-stage 4"
    found = configs.read_plan(written(tmp_path, text), with_model=True)
    assert (found.plan["chunks"], found.plan["schedule"]) == (2, "interleaved_pairs")
    assert note not in found.notes


def test_ranks_of_experts_are_read(tmp_path):
    found = configs.read_plan(written(tmp_path, MIXTRAL), with_model=True)
    assert not any("dispatcher" in note for note in found.notes)
    folded = "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1 --moe-enable-deepep"
    text = MIXTRAL.replace("alltoall", f"flex {folded} --moe-router-force-load-balancing")
    found = configs.read_plan(written(tmp_path, text), with_model=True)
    assert (found.plan["tensor"], found.plan["expert"], found.plan["expert_tensor"]) == (2, 8, 1)
    assert "moe-enable-deepep" in found.software
    assert found.notes[:2] == [
        "`--moe-token-dispatcher-type` is `flex`: the exchange is priced as all-to-all",
        "the loads of experts are forced to be equal: `--imbalance 1` says so",
    ]
    other = "--moe-expert-parallel-size 4 --create-moe-param-group"
    text = MIXTRAL.replace("--expert-model-parallel-size 8", other)
    assert configs.read_plan(written(tmp_path, text), with_model=True).plan["expert"] == 4
    cut = "--tensor-model-parallel-size 2 --enable-expert-tensor-parallelism"
    found = configs.read_plan(written(tmp_path, f"{text.rstrip()} {cut}"), with_model=True)
    assert (found.plan["expert"], found.plan.get("expert_tensor")) == (4, None)


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("--moe-layer-recompute", "moe"),
        ("--recompute-granularity selective", "core_attn"),
        (
            "--recompute-granularity selective --recompute-modules moe_act core_attn",
            "moe_act+core_attn",
        ),
        ("--recompute-modules moe_act", None),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "full",
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
            "full:uniform=4",
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            "full:block=1",
        ),
        ("--recompute-method block --recompute-num-layers 2", None),
    ],
)
def test_parts_of_blocks_are_recomputed_as_the_flags_say(added, rule, tmp_path):
    path = written(tmp_path, f"{MIXTRAL.rstrip()} {added}")
    assert configs.read_plan(path, with_model=True).plan.get("recompute") == rule


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("block --recompute-num-layers 0", "`--recompute-num-layers` is `0`, expected an integer"),
        ("blocks --recompute-num-layers 2", "`--recompute-method` is `blocks`: expected block or"),
    ],
)
def test_numbers_of_blocks_that_are_none_are_refused(method, message, tmp_path):
    added = f"--recompute-granularity full --recompute-method {method}"
    path = written(tmp_path, f"{MIXTRAL.rstrip()} {added}")
    with pytest.raises(ModelError, match=message):
        configs.read_plan(path, with_model=True)


def test_a_part_that_is_not_known_is_refused(tmp_path):
    added = "--recompute-granularity selective --recompute-modules moe_act mhc"
    path = written(tmp_path, f"{MIXTRAL.rstrip()} {added}")
    message = "`--recompute-modules` is `moe_act mhc`: expected core_attn, layernorm, mla_up_proj"
    with pytest.raises(ModelError, match=message):
        configs.read_plan(path, with_model=True)


def test_a_word_without_positions_is_refused_where_positions_have_a_table(tmp_path):
    path = written(tmp_path, GPT.replace("--fp16", "--fp16 --no-position-embedding"))
    with pytest.raises(ModelError, match="`--no-position-embedding` is not supported"):
        configs.read_model(path)
