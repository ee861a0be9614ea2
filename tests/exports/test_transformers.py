"""Plans in the words of transformers' `DistributedConfig`."""

import json

import pytest

import shardwright as sw
from shardwright.exports.degrees.transformers import WORDS, Styles
from shardwright.exports.table import export
from shardwright.frontends.configs import read_plan
from shardwright.ir.errors import OptionError
from shardwright.search.named_plan import NamedPlan

LLAMA = "llama:layers=2,hidden=64,heads=4,kv_heads=2,batch=8,sequence=16,vocabulary=96"
LINEAR = ("query", "key", "value", "projection")


def exported(plan, model=LLAMA, **options):
    compiled = sw.compile(
        model, 4, cluster="cpu", plan=plan, optimizer="adam", precision="float32", **options
    )
    return export(compiled.plan, "hf")


def config(plan, model=LLAMA):
    return json.loads(exported(plan, model).files["distributed_config.json"])


def test_linear_layers_are_divided_by_columns_then_by_rows():
    found = config("tensor=2")
    assert (found["tp_size"], found["fsdp_size"], found["dp_replicate_size"]) == (2, 1, 2)
    styles = found["tp_plan"]
    attention = [styles[f"blocks.*.attention.{name}"] for name in LINEAR]
    assert attention == ["colwise", "colwise", "colwise", "rowwise"]
    layer = [styles[f"blocks.*.feed_forward.{name}"] for name in ("gate", "up", "down")]
    assert layer == ["colwise", "colwise", "rowwise"]
    assert styles["embedding.embedding_table"] == "embedding_rowwise"
    assert styles["head"] == "colwise_gather_output"
    assert styles["blocks.*.norm1.gamma"] == "replicate"


def test_heads_that_the_tensor_ranks_do_not_divide_stay_whole():
    styles = config("tensor=4")["tp_plan"]
    assert {styles[f"blocks.*.attention.{name}"] for name in LINEAR} == {"replicate"}
    assert styles["blocks.*.feed_forward.up"] == "colwise"


def test_every_weight_has_a_style():
    compiled = sw.compile(LLAMA, 4, cluster="cpu", plan="tensor=2", precision="float32")
    styles = json.loads(export(compiled.plan, "hf").files["distributed_config.json"])["tp_plan"]
    for parameter in compiled.plan.program.parameters:
        if parameter.role == "weight":
            name = parameter.name.removesuffix(".weight")
            patterns = {name, name.replace(".0.", ".*."), name.replace(".1.", ".*.")}
            assert patterns & {*styles}, parameter.name


def test_degrees_and_passes_are_those_of_the_plan():
    made = exported("tensor=2,zero=3,recompute=full,micro_batch=2")
    found = json.loads(made.files["distributed_config.json"])
    assert (found["tp_size"], found["fsdp_size"], found["dp_replicate_size"]) == (2, 2, 1)
    assert json.loads(made.files["training_arguments.json"]) == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "bf16": False,
    }
    assert made.notes[0].startswith("the plan itself")
    assert config("data=4")["tp_plan"] == {}


@pytest.mark.parametrize(
    "plan",
    [
        "pipeline=2",
        "context=2",
        "data=2,expert=2",
        "tensor=2,data=2,expert=2,zero=3",
        "tensor=2,sequence_parallel",
        "data=2,zero=1",
    ],
)
def test_what_it_has_no_word_for_is_another_plan_with_its_price(plan):
    assert not WORDS.can_say(NamedPlan.parse(plan))


@pytest.mark.long
@pytest.mark.parametrize("text", ["data=4,expert=2,zero=3", "data=8,expert=2,shard=4"])
def test_expert_ranks_are_read_as_they_were_written(text, tmp_path):
    model = "mixtral:layers=2,hidden=16,heads=4,kv_heads=4,experts=4,inner=16,batch=8,sequence=8"
    plan = NamedPlan.parse(text)
    compiled = sw.compile(f"{model},vocabulary=32", plan.data, plan=text, precision="float32")
    made = export(compiled.plan, "hf")
    assert made.notes[0].startswith("the plan itself")
    path = tmp_path / "distributed_config.json"
    path.write_text(made.files[path.name])
    found = read_plan(str(path), with_model=False)
    assert NamedPlan.parse(found.plan_text) == plan
    assert found.notes == []


def test_a_plan_without_words_is_priced():
    notes = exported("tensor=2,zero=1,sequence_parallel").notes
    assert "transformers cannot say" in notes[0]
    assert "what that costs, estimated: step" in notes[2]


def test_experts_have_no_style():
    model = (
        "mixtral:layers=2,hidden=64,heads=4,kv_heads=4,experts=4,batch=8,sequence=16,vocabulary=96"
    )
    with pytest.raises(OptionError, match="has no style for"):
        config("tensor=2", model)


def test_a_table_that_is_the_head_too_is_refused():
    model = "gpt:layers=2,hidden=64,heads=4,batch=8,sequence=16,vocabulary=96,tied=true"
    with pytest.raises(OptionError, match="has one name for two"):
        config("tensor=2", model)


def test_what_lies_between_two_linear_layers_stays_divided():
    styles = config("tensor=2", "mlp:batch=8")["tp_plan"]
    assert [*styles.values()] == ["colwise", "rowwise", "colwise_gather_output"]


def test_an_exchange_that_no_hook_makes_is_refused():
    plan = sw.compile(LLAMA, 4, cluster="cpu", plan="tensor=2,sequence_parallel").plan
    with pytest.raises(OptionError, match=r"no style for the reduce_scatter that .* needs"):
        Styles.of(plan)


def test_transformers_knows_the_styles():
    styles = pytest.importorskip("transformers.distributed.tensor_parallel").ALL_PARALLEL_STYLES
    configured = pytest.importorskip("transformers.distributed.configuration_utils")
    found = config("tensor=2")
    assert {*found["tp_plan"].values()} <= {*styles.keys()}
    assert configured.DistributedConfig(**found).tp_size == 2
