"""Models and plans of other systems: sizes as published, and every field read, known or refused."""

import json
import warnings
from pathlib import Path

import pytest

from shardwright.frontends import configs
from shardwright.frontends.configs.kinds import kinds
from shardwright.ir.errors import ModelError, ShardwrightWarning
from shardwright.tools.main import main
from shardwright.zoo import assumed_precision, load

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}
SMALL_LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": True,
}
QWEN2 = {
    **LLAMA,
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
QWEN3 = {
    **LLAMA,
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "vocab_size": 151936,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
PHI3 = {
    **LLAMA,
    "model_type": "phi3",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "sliding_window": 262144,
    "resid_pdrop": 0.0,
    "rope_scaling": {"type": "longrope"},
}
GEMMA = {
    **LLAMA,
    "model_type": "gemma",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 256000,
    "hidden_activation": "gelu_pytorch_tanh",
}
# The numbers of parameters are those of the published models.
PUBLISHED = {
    "Llama 3 8B": (LLAMA, 8_030_261_248),
    "Llama 3.2 1B": ({**LLAMA, **SMALL_LLAMA}, 1_235_814_400),
    "Mistral 7B v0.3": ({**LLAMA, "model_type": "mistral", "vocab_size": 32768}, 7_248_023_552),
    "Qwen 2 7B": (QWEN2, 7_615_616_512),
    "Qwen 3 0.6B": (QWEN3, 596_049_920),
    "Mixtral 8x7B": (
        {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8},
        46_702_792_704,
    ),
    "Phi 3 mini": (PHI3, 3_821_079_552),
    "Gemma 2B": (GEMMA, 2_506_172_416),
    "GPT-2": ({"model_type": "gpt2"}, 124_439_808),
    "BERT base": ({"model_type": "bert"}, 109_514_298),
}

SCRIPT = """#!/bin/bash
GPUS=8
NODES=${NODES:-2}
TP=4   # ranks of a node
DISTRIBUTED="--nproc_per_node $GPUS --nnodes $NODES"
MODEL=(
    --num-layers 4 --hidden-size 256 --ffn-hidden-size 512
    --num-attention-heads 8 --group-query-attention --num-query-groups 4
    --seq-length 128 --position-embedding-type rope --normalization RMSNorm --swiglu
    --untie-embeddings-and-output-weights --disable-bias-linear
    --hidden-dropout 0 --attention-dropout 0.0 --vocab-size 1000
)
torchrun $DISTRIBUTED pretrain_gpt.py "${MODEL[@]}" \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2 --bf16 \\
    --num-layers-per-virtual-pipeline-stage 1 \\
    --sequence-parallel --use-distributed-optimizer --micro-batch-size 1 \\
    --global-batch-size $((8 * $NODES)) --recompute-granularity full \\
    --recompute-method uniform --recompute-num-layers 1 --lr 1e-4 --overlap-grad-reduce
"""
TOML = """
[job]
description = "a test"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""


def written(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_published(name, tmp_path):
    fields, count = PUBLISHED[name]
    assert load(written(tmp_path, "config.json", fields) + ":batch=1").parameter_count == count


def test_sizes_of_the_user_hold_and_the_precision_is_the_files(tmp_path):
    name = written(tmp_path, "config.json", {**LLAMA, "torch_dtype": "float16"})
    with pytest.warns(ShardwrightWarning, match="8192 tokens, the longest"):
        load(f"{name}:batch=2,hidden=64,heads=2,kv_heads=2,layers=1")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = load(f"{name}:batch=2,sequence=64,layers=1")
    assert not [one for one in told if "the longest" in str(one.message)]
    assert found.graph.inputs[0].type.shape == (2, 64)
    assert found.precision == "float16" == assumed_precision(name)
    assert found.optimizer is not None
    assert found.optimizer.kind == "adam"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"model_type": "gpt_neox"}, "`num_key_value_heads` is `8`: `gpt_neox` has no such field"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.01}, "`partial_rotary_factor` is 0.01"),
        ({"partial_rotary_factor": 0.5}, "`llama` has no such field, its class in transformers"),
        ({"model_type": ["llama"]}, r"`model_type` is `\['llama'\]`, expected a name"),
        ({"hidden_act": "sinus"}, "`hidden_act` is `sinus`: expected silu, swish, gelu"),
        ({"model_type": "mistral", "attention_bias": True}, r"`attention_bias` \(`true`\) is not"),
        ({"num_key_value_heads": 5}, "`num_key_value_heads` is 5, which does not divide it"),
        ({"num_attention_heads": 24}, "`num_attention_heads` is 24: heads do not share it evenly"),
        ({"rope_scaling": {"rope_type": "yarn"}}, r"`rope_scaling` \(yarn\) has no `factor`"),
        ({"rope_scaling": {"turns": 2}}, "`rope_parameters.turns` is `2`: no such field"),
        ({"rope_scaling": {"type": "spiral"}}, "`rope_type` is `spiral`: expected default, linear"),
        ({"rope_scaling": "yarn"}, "`rope_parameters` is `yarn`, expected a table"),
        ({"attention_dropout": 0.1}, "`attention_dropout` is `0.1`"),
        ({"sliding_window": 64}, "`sliding_window` is `64`: `llama` has no such field"),
        (
            {"model_type": "mistral", "sliding_window": "wide"},
            "`sliding_window` is `wide`, expected an integer",
        ),
        (
            {"layer_types": ["full_attention"]},
            "`layer_types` has 1 entries and `num_hidden_layers`",
        ),
        (
            {"layer_types": ["sliding_attention"] * 32},
            "`layer_types` has `sliding_attention`, and there is no `sliding_window`",
        ),
        (
            {"layer_types": ["linear_attention"] * 32},
            "`layer_types` has `linear_attention`, of which the decoder of the zoo has no form",
        ),
        ({"layer_types": 2}, "`layer_types` is `2`, expected a list of names"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "has a head for words"),
        ({"architectures": ["LlamaModel"]}, "has a head for words"),
        ({"head_dim": "wide"}, "`head_dim` is `wide`, expected an integer"),
        ({"rope_parameters": {"rope_theta": "many"}}, "`rope_theta` is `many`, expected a number"),
        ({"torch_dtype": "bfloat16", "dtype": "float16"}, "`bfloat16` and `dtype` is `float16`"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` is `0`, expected an integer"),
        ({"hidden_size": None}, "there is no `hidden_size`"),
        ({"rope_theta": "many"}, "`rope_theta` is `many`, expected a number"),
        ({"tie_word_embeddings": "yes"}, "expected true or false"),
        ({"quantization_config": {"bits": 4}}, r"`quantization_config` \(.*\) is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "`torch_dtype` is `float8_e4m3fn`"),
    ],
)
def test_a_field_that_changes_the_model_is_refused_by_name(changed, match, tmp_path):
    name = written(tmp_path, "config.json", {**LLAMA, **changed})
    with pytest.raises(ModelError, match=match):
        configs.read_model(name)


WRONG = ("many", [], {}, [1, "a"], -1, 0, 1.5, 1e300, float("nan"), True, {"full_attention": 3})


@pytest.mark.parametrize("kind", ["gemma2", "deepseek_v3", "nemotron_h", "qwen3_next", "smollm3"])
def test_a_value_of_another_kind_is_refused_by_a_sentence(kind):
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "vocab_size": 48}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    fields = {"model_type": kind, **sizes, **kinds()[kind].defaults, "rope_scaling": rope}
    own = {"hybrid_override_pattern": "ME*-"} if kind == "nemotron_h" else {"num_hidden_layers": 2}
    names = [*fields, *own, "layer_types", "head_dim", "no_rope_layers", "rope_theta"]
    refused = 0
    for name in names:
        for value in WRONG:
            try:
                configs.read_fields("config.json", {**fields, **own, name: value}, {})
            except ModelError:
                refused += 1
    assert refused > len(names) * len(WRONG) / 3


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
def test_a_window_of_attention_is_one_of_the_program(tmp_path):
    fields = {**LLAMA, "model_type": "mistral", "sliding_window": 64}
    name = written(tmp_path, "config.json", fields)
    graph = load(f"{name}:batch=2,hidden=64,heads=2,kv_heads=2,layers=1,sequence=96").graph
    (node,) = (n for n in graph.nodes if n.operator == "scaled_dot_product_attention")
    assert node.attributes["window"] == 64


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
def test_an_architecture_that_the_zoo_lacks_is_that_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24}
    fields = {"model_type": "opt", **small, "vocab_size": 32, "word_embed_proj_dim": 16}
    name = written(tmp_path, "config.json", {**fields, "max_position_embeddings": 16})
    found = load(f"{name}:batch=2,sequence=8,num_hidden_layers=2")
    assert found.graph.inputs[0].type.shape == (2, 8)
    config = transformers.OPTConfig(
        **{**small, "num_hidden_layers": 2, "max_position_embeddings": 16},
        vocab_size=32,
        word_embed_proj_dim=16,
    )
    module = transformers.OPTForCausalLM(config)
    assert found.parameter_count == sum(p.numel() for p in module.parameters())
    assert found.precision == "bfloat16" == assumed_precision(name)
    name = written(tmp_path, "config.json", {"model_type": "spiral_net", "auto_map": {}})
    with pytest.raises(
        ModelError,
        match=r"`spiral_net`, of which neither the zoo nor .* comes with a checkpoint",
    ):
        load(name)


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
def test_a_folder_with_a_config_is_its_model(tmp_path):
    written(tmp_path, "config.json", LLAMA)
    small = "batch=2,sequence=8,layers=1,hidden_size=64,heads=2,kv_heads=2"
    assert load(f"{tmp_path}:{small}").graph.inputs[0].type.shape == (2, 8)
    with pytest.raises(ModelError, match="the model has no size `hiden`") as caught:
        load(f"{tmp_path}:hiden=64")
    assert caught.value.hint == "did you mean `hidden`?"


@pytest.mark.filterwarnings("ignore::shardwright.ir.errors.ShardwrightWarning")
def test_the_decoder_of_a_model_with_images_is_told_to_be_all_that_is_read(tmp_path):
    text = {name: value for name, value in LLAMA.items() if name != "model_type"}
    whole = {"model_type": "mistral3", "text_config": text, "vision_config": {"depth": 2}}
    found = configs.read_model(written(tmp_path, "config.json", whole))
    assert found.architecture is not None
    assert found.notes[-1] == (
        "only the decoder of text (`text_config`) is the model; not read: vision_config"
    )


@pytest.mark.parametrize("field", ["sliding_window", "head_dim", "layer_types", "rope_scaling"])
def test_a_field_that_is_null_is_as_if_it_were_not_there(field, tmp_path):
    name = written(tmp_path, "config.json", {**LLAMA, field: None})
    right = configs.read_model(written(tmp_path, "a.json", LLAMA))
    assert configs.read_model(name).architecture == right.architecture


def test_words_of_generation_have_no_effect(tmp_path):
    words = {"max_length": 4096, "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    found = configs.read_model(written(tmp_path, "config.json", {**LLAMA, **words}))
    assert set(words) <= set(found.no_effect)


@pytest.mark.parametrize(
    ("content", "match"), [("{", "must be JSON"), ("[]", "must hold fields"), (None, "cannot read")]
)
def test_a_file_that_is_no_config_is_refused(content, match, tmp_path):
    name = str(tmp_path / "config.json")
    if content is not None:
        written(tmp_path, "config.json", content)
    with pytest.raises(ModelError, match=match):
        configs.read_model(name)


def test_a_script_of_megatron_is_a_model_and_a_plan(tmp_path):
    found = configs.read_plan(written(tmp_path, "train.sh", SCRIPT), with_model=True)
    assert found.plan_text == (
        "tensor=4,pipeline=2,micro_batch=1,chunks=2,zero=1,recompute=full,sequence_parallel"
    )
    assert found.devices == 16
    assert found.options == {
        "precision": "bfloat16",
        "reduce_type": "float32",
        "accumulate_type": "float32",
        "optimizer": "adam",
    }
    assert found.model == "llama"
    assert found.sizes["vocabulary"] == 1024  # a multiple of 128 for each of 4 tensor ranks
    assert found.sizes["batch"] == 16
    assert not found.sizes["tied"]
    assert found.no_effect == ["lr"]
    assert found.software == ["overlap-grad-reduce"]


@pytest.mark.parametrize(
    ("added", "match"),
    [
        ("--num-experts 8 --qk-layernorm", "no form with `qk_norm=True`"),
        (
            "--moe-token-dispatcher-type x",
            "`--moe-token-dispatcher-type` is `x`: expected alltoall",
        ),
        ("--moe-expert-parallel-size 2", "the 4 tensor ranks hold the same experts there"),
        ("--no-such-flag", "the flag `--no-such-flag` is not supported"),
        ("--recompute-num-layers 2", "`--recompute-num-layers` is `1` and `2`"),
        ("--data-parallel-sharding-strategy optim", "it needs `--use-megatron-fsdp`"),
        ("--optimizer muon", "`--optimizer` is `muon`"),
        ("--add-position-embedding", "the flag `--add-position-embedding`"),
        ("--rotary-percent 0.5", "`--rotary-percent` is `0.5`"),
        ("--fp16", "`--bf16` and `--fp16` contradict each other"),
        ("--num-virtual-stages-per-pipeline-rank many", "is `many`, expected an integer"),
    ],
)
def test_a_flag_that_is_not_supported_is_refused_by_name(added, match, tmp_path):
    name = written(tmp_path, "train.sh", f"{SCRIPT.rstrip()} {added}\n")
    with pytest.raises(ModelError, match=match):
        configs.read_plan(name, with_model=True)


@pytest.mark.parametrize(
    ("removed", "match"),
    [
        ("--swiglu", "no model of the zoo has swiglu off"),
        ("--disable-bias-linear", "linear layers have biases"),
        ("--group-query-attention", "`--num-query-groups` is `4`: it needs"),
        ("--pipeline-model-parallel-size 2", "there are 4 virtual stages and no pipeline"),
        ("--hidden-dropout 0 ", "`--hidden-dropout` is 0.1 unless given"),
        ("--vocab-size 1000", "there is no `--vocab-size`"),
        ("--micro-batch-size 1", "there is no `--micro-batch-size`"),
    ],
)
def test_a_flag_that_is_missing_is_told(removed, match, tmp_path):
    name = written(tmp_path, "train.sh", SCRIPT.replace(removed, ""))
    with pytest.raises(ModelError, match=match):
        configs.read_plan(name, with_model=True)


def test_several_values_of_a_flag_without_effect_are_allowed(tmp_path):
    text = SCRIPT.rstrip() + " --lr 2e-4\n"
    found = configs.read_plan(written(tmp_path, "train.sh", text), with_model=True)
    assert found.no_effect == ["lr"]


def test_devices_are_those_of_the_launcher_in_front_of_the_script(tmp_path):
    launch = "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py"
    text = SCRIPT.replace("torchrun $DISTRIBUTED pretrain_gpt.py", launch)
    assert launch in text
    assert configs.read_plan(written(tmp_path, "train.sh", text), with_model=True).devices == 16


def test_a_plan_for_another_model_leaves_the_model_of_the_script_alone(tmp_path):
    found = configs.read_plan(written(tmp_path, "train.sh", SCRIPT), with_model=False)
    assert not found.model
    assert any("not read: num-layers" in note for note in found.notes)


def test_torchtitan_is_a_model_and_a_plan(tmp_path):
    found = configs.read_plan(written(tmp_path, "train.toml", TOML), with_model=True)
    assert found.plan_text == (
        "tensor=2,sequence_parallel,zero=3,data=8,micro_batch=2,recompute=full"
    )
    assert (found.model, found.sizes) == ("llama", {"layers": 32, "sequence": 4096})
    assert found.options["local_batch"] == 2
    assert found.options["reduce_type"] == "float32"


def test_torchtitan_folds_experts_onto_context_tensor_and_data_ranks(tmp_path):
    experts = "tensor_parallel_degree = 2\nexpert_parallel_degree = 4"
    text = TOML.replace("tensor_parallel_degree = 2", experts)
    found = configs.read_plan(written(tmp_path, "train.toml", text), with_model=False)
    assert (found.plan["expert"], found.plan["expert_tensor"]) == (4, 1)
    text = text.replace("degree = 4", "degree = 4\nexpert_tensor_parallel_degree = 2")
    found = configs.read_plan(written(tmp_path, "train.toml", text), with_model=False)
    assert (found.plan["expert"], found.plan["expert_tensor"]) == (4, 2)


DISTRIBUTED = {"tp_size": 1, "fsdp_size": 8, "dp_replicate_size": 2, "ep_size": 4}


def test_a_distributed_config_of_transformers_is_a_plan(tmp_path):
    own = {"ep_implementation": "auto", "tp_plan": {"head": "colwise"}, "pp_size": None}
    text = json.dumps({**DISTRIBUTED, **own})
    found = configs.read_plan(written(tmp_path, "ranks.json", text), with_model=False)
    assert found.plan_text == "expert=4,data=16,zero=3,shard=8"
    assert found.notes == [
        "the exchange of tokens with experts is priced as all-to-all",
        "modules are divided as in any named plan, so not read: tp_plan",
    ]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"tp_size": 2}, "`ep_size` is `4`: the 2 tensor ranks hold the same tokens, and named"),
        ({"fsdp_size": 0}, "`fsdp_size` is `0`, expected an integer of at least 1"),
        ({"ep_implementation": "all_reduce"}, "is `all_reduce`: expected auto or all_to_all"),
        ({"ep_size": 1, "enable_expert_parallel": True}, "give `ep_size`, which it stands for"),
        ({"fsdp_cpu_offload": True}, "`fsdp_cpu_offload` is `true`: tensors stay on the devices"),
        ({"enable_sequence_parallel": True}, "does not divide sequences yet"),
        ({"cp_size": 2}, r"`cp_size` \(`2`\) is not supported: a named plan has no such part"),
    ],
)
def test_a_distributed_config_that_no_plan_says_is_refused(changed, match, tmp_path):
    path = written(tmp_path, "ranks.json", json.dumps({**DISTRIBUTED, **changed}))
    with pytest.raises(ModelError, match=match):
        configs.read_plan(path, with_model=False)


def test_torchtitan_with_copies_of_shards_is_hybrid_sharding(tmp_path):
    copies = "shard_degree = 8\ndata_parallel_replicate_degree = 2"
    text = TOML.replace("shard_degree = 8", copies)
    found = configs.read_plan(written(tmp_path, "train.toml", text), with_model=True)
    assert found.plan_text == (
        "tensor=2,sequence_parallel,zero=3,data=16,shard=8,micro_batch=2,recompute=full"
    )


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('mode = "full"', 'mode = "selective"', "activation_checkpoint.mode"),
        ('flavor = "8B"', 'flavor = "9B"', "`llama3` `9B` is not known"),
        ("seq_len = 4096", "seq_len = 4096\nenable_cpu_offload = true", "enable_cpu_offload"),
        (
            "tensor_parallel_degree = 2",
            "tensor_parallel_degree = 4\nexpert_parallel_degree = 4\n"
            "expert_tensor_parallel_degree = 2",
            "`expert_tensor_parallel_degree` is `2`: expected 1, or as many as tensor ranks",
        ),
        ("[job]", "[other]\nx = 1\n[job]", r"`other` \(.*\) is not supported"),
        ('name = "llama3"', "name = []", r"the model `\[\]` `8B` is not known"),
        ("shard_degree = 8", 'shard_degree = "x"', "is `x`, expected an integer of at least 1"),
        ("shard_degree = 8", "shard_degree = 0", "is `0`, expected an integer of at least 1"),
        ("seq_len = 4096", "mixed_precision_param = []", r"`mixed_precision_param` is `\[\]`"),
    ],
)
def test_a_key_that_is_not_supported_is_refused_by_name(old, new, match, tmp_path):
    name = written(tmp_path, "train.toml", TOML.replace(old, new))
    with pytest.raises(ModelError, match=match):
        configs.read_plan(name, with_model=True)


def test_estimate_reads_model_and_plan_of_a_script(tmp_path, capsys):
    name = written(tmp_path, "train.sh", SCRIPT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["estimate", name, "--plan", name, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["named_plan"] == (
        "tensor=4,pipeline=2,data=2,micro_batch=1,chunks=2,recompute=full,zero=1,sequence_parallel"
    )
    assert (found["devices"], found["micro_batches"]) == (16, 8)
    assert found["accumulate_type"] == "float32"
    assert "filled up to 1024" in captured.err


def test_options_of_the_command_line_hold_before_those_of_the_file(tmp_path, capsys):
    name = written(tmp_path, "train.sh", SCRIPT)
    options = ["--devices", "8", "--precision", "float16", "--batch", "8"]
    assert main(["estimate", name, "--plan", name, "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["devices"], found["precision"]) == (8, "float16")
    assert "zero" not in found["named_plan"]
