"""Files of torchtitan as the project ships them, of all its versions with TOML."""

import pytest

from shardwright.frontends import configs
from shardwright.frontends.configs.torchtitan_models import FLAVORS, stage_sizes
from shardwright.ir.errors import ModelError
from shardwright.zoo import load

SHIPPED = """
[job]
dump_folder = "./outputs"
[profiling]
enable_profiling = true
[metrics]
log_freq = 10
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets"
[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
pipeline_parallel_schedule = "Interleaved1F1B"
context_parallel_degree = 1
[checkpoint]
enable = false
[compile]
enable = false
components = ["model", "loss"]
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
filter_fqns = ["output"]
[validation]
enable = false
"""
OLD = """
[job]
description = "a test of version 0.1"
[model]
name = "llama3"
flavor = "70B"
norm_type = "rmsnorm"
tokenizer_path = "./tokenizer.model"
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
batch_size = 8
seq_len = 8192
warmup_steps = 200
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
compile = false
dataset = "c4"
[experimental]
context_parallel_degree = 1
pipeline_parallel_degree = 1
enable_async_tensor_parallel = false
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = false
"""
FIRST = OLD.replace(
    "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1",
    'data_parallel_degree = -1\nfp8_linear = ""',
)
CONVERTED = 'flavor = "8B"\nconverters = ["quantize.linear.float8"]'
EIGHT_BITS = ('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')


def reading(folder, text, *, with_model=True):
    path = folder / "train.toml"
    path.write_text(text)
    return configs.read_plan(str(path), with_model=with_model)


def pipelined(text, more=""):
    return text.replace("pipeline_parallel_degree = 1", f"pipeline_parallel_degree = 4{more}")


def test_copies_of_shards_are_hybrid_sharding(tmp_path):
    given = "data_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1"
    both = "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 8"
    found = reading(tmp_path, OLD.replace(given, both)).plan
    assert (found["data"], found["shard"]) == (32, 8)
    with pytest.raises(ModelError) as caught:
        reading(tmp_path, OLD.replace(given, both.replace("= 8", "= -1")))
    assert str(caught.value) == (
        "`data_parallel_replicate_degree` is 4 and `data_parallel_shard_degree` is left to the "
        f"devices: a plan names both (in {tmp_path}/train.toml); give `data_parallel_shard_degree`"
    )


def test_tables_of_eight_bits_that_no_converter_uses_have_no_effect(tmp_path):
    found = reading(tmp_path, SHIPPED)
    assert found.plan_text == "zero=3,micro_batch=8,recompute=operators"
    assert {"quantize", "pipeline_parallel_schedule"} <= set(found.no_effect)


@pytest.mark.parametrize(
    ("more", "recipe"),
    [("", "fp8-current"), ('recipe_name = "rowwise"', "fp8-rowwise")],
)
def test_converters_become_recipes(more, recipe, tmp_path):
    text = SHIPPED.replace(EIGHT_BITS[0], CONVERTED).replace('["output"]', f'["output"]\n{more}')
    found = reading(tmp_path, text)
    assert found.options["precision"] == recipe
    assert "quantize" not in found.no_effect


def test_micro_scaling_is_a_converter_too(tmp_path):
    converted = CONVERTED.replace("float8", "mx")
    assert reading(tmp_path, SHIPPED.replace(EIGHT_BITS[0], converted)).options == {
        **reading(tmp_path, SHIPPED).options,
        "precision": "mxfp8",
    }


@pytest.mark.parametrize(
    ("text", "old", "new", "match"),
    [
        (SHIPPED, *EIGHT_BITS, r"`filter_fqns` is `\[\]`: expected \[\"output\"\]: the head stays"),
        (
            SHIPPED,
            EIGHT_BITS[0],
            CONVERTED.replace("float8", "int8"),
            "expected none, or one of",
        ),
        (
            SHIPPED,
            EIGHT_BITS[0],
            CONVERTED.replace("linear", "grouped_mm"),  # the products of experts alone
            "expected none, or one of float8, mx, quantize.linear.float8, quantize.linear.mx",
        ),
        (
            SHIPPED.replace("8_all_gather = false", "8_all_gather = true"),
            *(
                EIGHT_BITS[0],
                CONVERTED,
                "`enable_fsdp_float8_all_gather` is `true`: parameter",
            ),
        ),
        (
            SHIPPED.replace('["output"]', '["output"]\nrecipe_name = "rowwise_with_gw_hp"'),
            *(EIGHT_BITS[0], CONVERTED, "`recipe_name` is `rowwise_with_gw_hp`: expected tensorwi"),
        ),
        (OLD, "linear = false", "linear = true", "`enable_float8_linear` is `true`"),
        (FIRST, 'fp8_linear = ""', 'fp8_linear = "dynamic"', "`fp8_linear` is `dynamic`"),
    ],
)
def test_eight_bits_in_use_are_refused(text, old, new, match, tmp_path):
    with pytest.raises(ModelError, match=match):
        reading(tmp_path, text.replace(old, new))


@pytest.mark.parametrize("text", [OLD, FIRST])
def test_degrees_are_read_from_the_tables_of_older_versions(text, tmp_path):
    expected = "tensor=8,sequence_parallel,zero=3,micro_batch=8,recompute=full"
    assert reading(tmp_path, text).plan_text == expected
    cut = reading(tmp_path, pipelined(text))
    assert cut.plan["pipeline"] == 4
    assert cut.plan["micro_batch"] == 2  # as many micro-batches as stages, unless given
    cut = reading(tmp_path, pipelined(text, "\npipeline_parallel_microbatches = 8"))
    assert cut.plan["micro_batch"] == 1
    with pytest.raises(ModelError, match="`pipeline_parallel_microbatches` is `3`: they do not"):
        reading(tmp_path, pipelined(text, "\npipeline_parallel_microbatches = 3"))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("[activation", "custom_import = 'mine'\n[activation", "`custom_import` is `mine`"),
        ("[activation", "[fault_tolerance]\nenable = true\n[activation", "no named plan"),
        ("[activation", "[parallelism]\ntensor_parallel_degree = 2\n[activation", "given twice"),
        ("compile = false", 'data_parallel_type = "ddp"', "`data_parallel_type` is `ddp`"),
        ('mode = "full"', 'mode = "selective"', "`selective` with the option `2`"),
        ('mode = "full"', 'mode = "memory_budget"', "`memory_budget`"),
        ("[float8]", "[moe]", "`moe` .* is not supported"),
    ],
)
def test_what_changes_the_step_is_refused_by_name(old, new, match, tmp_path):
    with pytest.raises(ModelError, match=match):
        reading(tmp_path, OLD.replace(old, new))


def test_every_first_layer_recomputed_is_every_layer(tmp_path):
    text = OLD.replace('mode = "full"', 'mode = "selective"\nselective_ac_option = "1"')
    assert reading(tmp_path, text).plan["recompute"] == "full"


ONE = SHIPPED.replace("Interleaved1F1B", "1F1B")
EVEN = "\npipeline_parallel_first_stage_less_layers = 0\n" + (
    "pipeline_parallel_last_stage_less_layers = 0"
)


def test_stages_that_torchtitan_makes_uneven_are_refused(tmp_path):
    with pytest.raises(ModelError, match="its stages have 8, 9, 8, 7 blocks"):
        reading(tmp_path, pipelined(ONE))
    assert reading(tmp_path, pipelined(ONE, EVEN)).plan["pipeline"] == 4
    assert reading(tmp_path, pipelined(SHIPPED, EVEN)).plan["chunks"] == 2
    each = f"{EVEN}\npipeline_parallel_layers_per_stage = 2"
    assert reading(tmp_path, pipelined(SHIPPED, each)).plan["chunks"] == 4
    with pytest.raises(ModelError, match="there are 16 stages for 4 device groups"):
        reading(tmp_path, pipelined(ONE, each))


def test_stages_of_another_model_are_told(tmp_path):
    found = reading(tmp_path, pipelined(ONE), with_model=False)
    assert "the stages are taken as those of a named plan, as even as there are" in found.notes


def test_stages_that_cannot_be_counted_are_refused(tmp_path):
    each = "\npipeline_parallel_layers_per_stage = 2"
    with pytest.raises(ModelError, match="how many stages that makes is the model's"):
        reading(tmp_path, pipelined(SHIPPED, each), with_model=False)
    huge = pipelined(ONE).replace("degree = 4", f"degree = {10**18}")
    with pytest.raises(ModelError, match="cannot be made of 32 blocks"):
        reading(tmp_path, huge)
    assert reading(tmp_path, huge, with_model=False).plan["pipeline"] == 10**18


def test_listed_stages_have_all_blocks_of_the_model(tmp_path):
    parts = [[f"layers.{i}" for i in range(first, first + 8)] for first in (0, 8, 16, 24)]
    text = pipelined(ONE, f"\nmodule_fqns_per_model_part = {parts}")
    assert reading(tmp_path, text).plan["pipeline"] == 4
    with pytest.raises(ModelError, match="expected all blocks in their order"):
        reading(tmp_path, text.replace('flavor = "8B"', 'flavor = "70B"'))


def test_stages_of_version_0_1_have_more_blocks_behind_the_first():
    assert stage_sizes(126, 4, 1, each=None, ends=None) == (31, 32, 32, 31)
    assert stage_sizes(31, 2, 2, each=None, ends=None) == (7, 8, 8, 8)


# As the files of these models at Hugging Face have it; the debug model by hand.
PARAMETERS = {
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3", "405B"): 405_853_388_800,
    ("llama3", "debugmodel"): 6 * (4 * 256**2 + 3 * 256 * 768 + 2 * 256) + 2 * 2048 * 256 + 256,
    ("llama2", "7B"): 6_738_415_616,
    ("llama2", "13B"): 13_015_864_320,
    ("llama2", "70B"): 68_976_648_192,
    ("qwen3", "0.6B"): 596_049_920,
    ("qwen3", "1.7B"): 1_720_574_976,
    ("qwen3", "4B"): 4_022_468_096,
    ("qwen3", "8B"): 8_190_735_360,
    ("qwen3", "14B"): 14_768_307_200,
    ("qwen3", "32B"): 32_762_123_264,
}


@pytest.mark.long
@pytest.mark.parametrize("flavor", FLAVORS, ids=" ".join)
def test_a_flavor_has_as_many_parameters_as_published(flavor, tmp_path):
    text = SHIPPED.replace('"llama3"', f'"{flavor[0]}"').replace('"8B"', f'"{flavor[1]}"')
    sizes = reading(tmp_path, text).sizes_text
    assert load(f"llama:{sizes},batch=1").parameter_count == PARAMETERS[flavor]
