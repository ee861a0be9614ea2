"""Plans in the words of Megatron, torchtitan and DeepSpeed: read again as they were, or priced."""

import json
import random
import tomllib
import warnings
from argparse import Namespace
from dataclasses import replace
from itertools import accumulate

import pytest
import yaml

import shardwright as sw
from shardwright.cost_model.efficiency.software import software
from shardwright.dataflow.orders import SCHEDULES
from shardwright.exports.degrees import deepspeed, megatron, torchtitan
from shardwright.exports.degrees.nearest import Words, _best, figures, in_full, named, nearest
from shardwright.exports.degrees.text import Facts
from shardwright.exports.table import export
from shardwright.frontends.configs.layout import layout_text, sizes_of
from shardwright.ir.errors import ModelError, OptionError
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.precision import FIRST_LAST, PRECISIONS, recipe_of
from shardwright.search.named_plan import RECOMPUTE, NamedPlan
from shardwright.tools.main import main
from shardwright.tools.plan_files import read_plan_file

SYSTEMS = {
    "megatron.sh": megatron,
    "torchtitan.toml": torchtitan,
    "deepspeed.json": deepspeed,
}
GPT = "gpt:layers=3,hidden=64,heads=4,batch=16,sequence=16,vocabulary=128"
ANY = Words("all", lambda plan: "")


@pytest.mark.parametrize(
    ("system", "profile", "expert"),
    [(megatron, "megatron-core", 2), (torchtitan, "torchtitan", 1)],
)
def test_a_system_exports_the_schedules_that_fit_tries_for_it(system, profile, expert):
    run_by = software(profile)
    assert run_by is not None
    for order in SCHEDULES:
        degrees = {"pipeline": 2, "data": 4, "expert": expert, "micro_batch": 1, "zero": 1}
        chunks = 2 if SCHEDULES[order].has_chunks else 1
        plan = NamedPlan(**degrees, chunks=chunks, schedule=order)
        is_refused = system.refusal(plan).startswith("`schedule=")
        assert is_refused == (order not in (run_by.schedules or ())), order


def ranks_of_experts(rng, degrees):
    """Return random ranks of experts that fold onto those of the rest."""
    ranks = degrees["tensor"] * degrees["context"] * degrees["data"]
    within = rng.choice([1, degrees["tensor"]])
    return {"expert": rng.choice([1, ranks // within]), "expert_tensor": within}


def random_plan(rng):
    """Return a random named plan in full, its devices and its batch."""
    degrees = {k: rng.choice([1, 1, 2, 4]) for k in ("tensor", "context", "pipeline", "data")}
    several, scattered = degrees["pipeline"] > 1, degrees["tensor"] > 1 and rng.random() < 0.7
    chunks = rng.choice([1, 2, 3]) if several else 1
    orders = ["1f1b", "gpipe", "zero_bubble", "1f1b_pairs"]
    if chunks > 1:
        in_a_v = ["zero_bubble_v", "dualpipe_v"] if chunks == 2 else []
        orders = ["interleaved", "interleaved_pairs", *in_a_v]
    plan = NamedPlan(
        **degrees,
        ring=degrees["context"] > 1 and rng.random() < 0.5,
        **(ranks_of_experts(rng, degrees) if scattered or degrees["tensor"] == 1 else {}),
        chunks=chunks,
        schedule=rng.choice(orders) if several else None,
        micro_batch=rng.choice([1, 2, 3]),
        recompute=rng.choice([*RECOMPUTE, "layernorm+moe_act", "full:block=3", "full:uniform=2"]),
        zero=rng.choice([0, 1, 2, 3]) if degrees["data"] * degrees["context"] > 1 else 0,
        sequence_parallel=scattered,
    )
    if plan.zero and plan.data == 4 and not plan.folds and rng.random() < 0.5:
        plan = replace(plan, shard=2)
    devices = plan.tensor * plan.context * plan.pipeline * plan.data
    return plan, devices, plan.data * plan.micro_batch * rng.choice([1, 4, 12])


def facts_of(plan, devices, batch, rng):
    precision = rng.choice(["float32", "bfloat16"])
    wide = rng.choice(["float32", "lower"])
    blocks = plan.pipeline * plan.chunks * 2 + rng.choice([0, 1])
    return Facts(
        "a model", devices, devices, batch, blocks, precision, wide, wide, Optimizer("adam")
    )


def read_again(path, devices=None):
    """Return what the command line takes from a file."""
    found = Namespace(plan=str(path), model="mlp", devices=devices, batch=None)
    found.precision = found.optimizer = found.reduce_type = found.accumulate_type = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read_plan_file(found)
    return found


def test_megatron_runs_passes_beside_each_other_for_exchanges_of_experts_alone():
    plan = "pipeline=2,data=4,expert=4,micro_batch=1,chunks=2,schedule=interleaved_pairs"
    assert megatron.refusal(NamedPlan.parse(plan)) == ""
    refused = {
        plan.replace("expert=4,", ""): "`schedule=interleaved_pairs` without `expert`",
        f"{plan},recompute=full": "`schedule=interleaved_pairs` with `recompute=full`",
        f"{plan},recompute=moe": "`schedule=interleaved_pairs` with `recompute=moe`",
        plan.replace("chunks=2,schedule=interleaved", "schedule=1f1b"): "`schedule=1f1b_pairs`",
    }
    assert [megatron.refusal(NamedPlan.parse(one)) for one in refused] == [*refused.values()]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_file_says_the_plan_that_it_was_made_from(name, tmp_path):
    rng, said, folded = random.Random(7), 0, 0
    for _ in range(600):
        plan, devices, batch = random_plan(rng)
        facts = facts_of(plan, devices, batch, rng)
        words = SYSTEMS[name].WORDS
        if name == "torchtitan.toml":
            words = torchtitan.words_for(facts.precision)
        if not words.can_say(plan):
            continue
        said += 1
        folded += plan.folds
        path = tmp_path / name
        path.write_text(SYSTEMS[name].files(plan, facts, ("a note: 1 -> 2, `x`",))[name])
        found = read_again(path, devices if name == "torchtitan.toml" else None)
        assert in_full(NamedPlan.parse(found.plan), batch, devices) == plan
        assert (found.devices, found.batch) == (devices, batch)
        assert found.precision == facts.precision
        if facts.precision == "bfloat16":
            wide = "float32" if name == "torchtitan.toml" else facts.accumulate_type
            assert (found.reduce_type or "lower", found.accumulate_type or "lower") == (wide, wide)
    assert said > 10
    assert (folded > 5) == (name != "deepspeed.json")


@pytest.mark.parametrize(
    "precision", [name for name in PRECISIONS if (own := recipe_of(name)) and own.megatron]
)
@pytest.mark.parametrize("wide", ["float32", "lower"])
def test_megatron_is_told_a_recipe_of_low_precision(precision, wide, tmp_path):
    facts = Facts("a model", 4, 4, 8, 2, precision, wide, wide, Optimizer("adam"))
    written = megatron.files(NamedPlan.parse("data=4,micro_batch=1,zero=1"), facts, ())
    path = tmp_path / "megatron.sh"
    path.write_text(written["megatron.sh"])
    found = read_again(path)
    assert found.precision == precision
    assert (found.reduce_type or "lower") == wide
    flags = dict(recipe_of(precision).megatron)
    assert "--bf16" in written["megatron.sh"]
    assert all(f"--{name} {value}\n" in written["megatron.sh"] for name, value in flags.items())
    fields = {name.replace("-format", "").replace("-", "_"): v for name, v in flags.items()}
    model = yaml.safe_load(written["nemo.yaml"])["model"]
    assert fields.items() <= model.items()
    has_ends = precision.endswith(FIRST_LAST)
    assert ("--first-last-layers-bf16" in written["megatron.sh"]) == has_ends
    assert bool(model.get("first_last_layers_bf16")) == has_ends


def test_layouts_of_stages_are_read_as_they_were_written():
    rng = random.Random(3)
    for _ in range(200):
        sizes = tuple(rng.randrange(4) for _ in range(rng.randrange(2, 9)))
        assert sizes_of(layout_text(sizes)) == sizes


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("Et*2|tL", "Et|t*2L", "as even stages"),
        ("Et*2|tL", "Et*2|t|L", "3 stages for 2 device groups"),
        ("Et*2|tL", "Et*2|mL", "expected the embedding"),
        ("--bf16", "--bf16 --cp-comm-type a2a", "`--cp-comm-type` is `a2a`"),
        ("--bf16", "--bf16 --expert-tensor-parallel-size 1 --no-x", "--no-x"),
    ],
)
def test_a_layout_that_no_named_plan_has_is_refused(by_name, old, new, match, tmp_path):
    path = tmp_path / "megatron.sh"
    path.write_text(export(by_name, "megatron").files["megatron.sh"].replace(old, new))
    with pytest.raises(ModelError, match=match):
        read_again(path)


@pytest.fixture(scope="module")
def by_name():
    plan = "tensor=2,pipeline=2,zero=1,micro_batch=2,sequence_parallel"
    options = {"precision": "bfloat16", "reduce_type": "float32", "accumulate_type": "float32"}
    return sw.compile(GPT, 8, plan=plan, optimizer="adam", **options).plan


def test_a_plan_by_name_is_the_one_that_is_read(by_name, tmp_path):
    exported = export(by_name, "megatron")
    path = tmp_path / "megatron.sh"
    path.write_text(exported.files["megatron.sh"])
    found = read_again(path)
    assert in_full(NamedPlan.parse(found.plan), 16, 8) == named(by_name)
    assert exported.notes[0].startswith("the plan itself")
    assert (found.precision, found.reduce_type) == ("bfloat16", "float32")


def test_figures_of_a_model_that_is_compiled_again_are_those_of_the_plan(by_name):
    again = _best(by_name, ANY, [named(by_name)])
    assert figures(again.compilation.plan) == figures(by_name)


@pytest.mark.long
def test_a_word_that_a_system_lacks_is_changed_and_priced(by_name):
    found = nearest(by_name, torchtitan.words_for("bfloat16"))
    assert found.plan == replace(named(by_name), zero=found.plan.zero)
    assert found.plan.zero in (2, 3)
    assert "torchtitan cannot say `zero=1`" in found.sentences[0]
    options = {"precision": "bfloat16", "reduce_type": "float32", "accumulate_type": "float32"}
    again = sw.compile(GPT, 8, plan=found.plan.text, optimizer="adam", **options).plan
    assert found.projected == figures(again)


def test_of_a_searched_plan_the_fastest_that_can_be_said_is_taken():
    plan = sw.compile("mlp:batch=16", 4, optimizer="adam").plan
    found = nearest(plan, deepspeed.WORDS)
    assert not found.is_exact
    assert found.plan.data == 4
    for zero in (0, 1, 3):
        other = sw.compile("mlp:batch=16", 4, optimizer="adam", plan=f"data=4,zero={zero}").plan
        assert found.projected.step_seconds <= figures(other).step_seconds * (1 + 1e-9)


def test_the_command_prints_what_the_projection_costs(tmp_path, capsys):
    sw.compile("mlp:batch=16", 4, optimizer="adam").write(tmp_path / "plan")
    arguments = ["export", str(tmp_path / "plan"), "--to", "deepspeed", "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "what that costs, estimated: step " in printed
    content = json.loads((tmp_path / "out" / "deepspeed.json").read_text())
    assert "what that costs, estimated: step " in content["_comment"]


@pytest.mark.parametrize(
    ("to", "options", "match"),
    [
        ("torchtitan", {"optimizer": "sgd"}, "no word for the optimizer `sgd`"),
        ("torchtitan", {"optimizer": "adam", "precision": "float16"}, "precision `float16`"),
        ("megatron", {"optimizer": "adagrad"}, "no word for the optimizer `adagrad`"),
    ],
)
def test_what_a_system_has_no_word_for_is_refused(to, options, match):
    plan = sw.compile("mlp", 2, plan="data=2", **options).plan
    with pytest.raises(OptionError, match=match):
        export(plan, to)


def exported(to, optimizer, plan="data=2,zero=2", **settings):
    rule = Optimizer(optimizer, settings)
    return export(sw.compile("mlp", 2, plan=plan, optimizer=rule).plan, to)


RULES = [
    ("sgd", {"learning_rate": 0.2}, "SGD", {"lr": 0.2, "weight_decay": 0.0}),
    (
        "momentum",
        {"momentum": 0.8, "nesterov": True},
        "SGD",
        {"lr": 0.01, "weight_decay": 0.0, "momentum": 0.8, "nesterov": True},
    ),
    (
        "adam",
        {"weight_decay": 0.1, "beta2": 0.95},
        "AdamW",
        {"lr": 0.001, "weight_decay": 0.1, "betas": [0.9, 0.95], "eps": 1e-8},
    ),
    (
        "muon",
        {"learning_rate": 0.02, "adamw_learning_rate": 3e-4, "adamw_weight_decay": 0.1},
        "Muon",
        {
            **{"muon_lr": 0.02, "adam_lr": 3e-4, "weight_decay": 0.1, "momentum": 0.95},
            **{"betas": [0.9, 0.999], "eps": 1e-8},
        },
    ),
]


@pytest.mark.parametrize(("kind", "settings", "name", "params"), RULES)
def test_deepspeed_is_told_the_optimizer(tmp_path, kind, settings, name, params):
    found = exported("deepspeed", kind, **settings)
    path = tmp_path / "deepspeed.json"
    path.write_text(found.files["deepspeed.json"])
    content = json.loads(path.read_text())
    assert content["optimizer"] == {"type": name, "params": params}
    assert content.get("zero_allow_untested_optimizer", False) == (name == "SGD")
    assert read_again(path).optimizer == kind


def test_torchtitan_is_told_the_optimizer():
    found = exported("torchtitan", "adam", "data=2,zero=3", weight_decay=0.1, beta2=0.95)
    assert tomllib.loads(found.files["torchtitan.toml"])["optimizer"] == {
        **{"name": "AdamW", "lr": 0.001, "eps": 1e-8},
        **{"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1},
    }


@pytest.mark.parametrize(
    ("to", "optimizer", "settings", "said"),
    [
        ("deepspeed", "adam8bit", {}, "DeepSpeed has no word for the optimizer `adam8bit`"),
        ("deepspeed", "muon", {}, "`adamw_weight_decay=0.01` of the optimizer `muon`: `weight_d"),
        ("deepspeed", "adam", {"l2": 0.1}, "`l2=0.1` of the optimizer `adam`: it is 0.0 there"),
        ("torchtitan", "muon", {}, "torchtitan has no word for the optimizer `muon`"),
        ("torchtitan", "adam8bit", {}, "torchtitan has no word for the optimizer `adam8bit`"),
    ],
)
def test_what_an_optimizer_cannot_be_told_is_refused(to, optimizer, settings, said):
    with pytest.raises(OptionError, match=said):
        exported(to, optimizer, "data=2,zero=3", **settings)


def test_muon_without_zero_is_refused_for_deepspeed():
    rule = {"adamw_weight_decay": 0.1}
    with pytest.raises(OptionError, match="only under ZeRO, and the nearest plan that it can say"):
        exported("deepspeed", "muon", "data=2", **rule)


def test_a_rate_that_follows_the_step_is_left_to_the_script():
    found = exported("deepspeed", "adam", learning_rate="0.1 / (step + 1)")
    assert "lr" not in json.loads(found.files["deepspeed.json"])["optimizer"]["params"]
    assert any("learning_rate 0.1 / (step + 1)" in note for note in found.notes)


# Read by the systems' own code, where it is installed


def test_megatron_core_reads_the_layout_and_has_the_fields(by_name):
    layouts = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout", exc_type=ImportError
    )
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    ddp = pytest.importorskip("megatron.core.distributed.distributed_data_parallel_config")
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load(export(by_name, "megatron").files["nemo.yaml"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own fields
        made = config.TransformerConfig(
            num_layers=3,
            hidden_size=64,
            num_attention_heads=4,
            pipeline_dtype=pytest.importorskip("torch").bfloat16,
            **content["model"],
        )
    assert made.tensor_model_parallel_size == 2
    assert ddp.DistributedDataParallelConfig(**content["ddp"]).use_distributed_optimizer
    rng = random.Random(1)
    for _ in range(50):
        sizes = tuple(rng.randrange(4) for _ in range(rng.randrange(2, 9)))
        found = layouts.PipelineParallelLayerLayout(layout_text(sizes), len(sizes)).layout
        kinds = [[one.name for one in stage[0]] for stage in found]
        assert tuple(stage.count("decoder") for stage in kinds) == sizes
        assert kinds[0][0] == "embedding"
        assert kinds[-1][-1] == "loss"


def test_deepspeed_reads_its_file():
    config = pytest.importorskip("deepspeed.runtime.config", exc_type=ImportError)
    named_plan = NamedPlan.parse("data=4,micro_batch=2,zero=2,recompute=full")
    facts = Facts("a model", 4, 4, 32, 2, "bfloat16", "float32", "float32", Optimizer("adam"))
    text = deepspeed.files(named_plan, facts, ())["deepspeed.json"]
    sizes = json.loads(text)
    sizes["train_batch_size"] //= 4  # the reader takes the one process of this test as the world
    found = config.DeepSpeedConfig(sizes)
    assert found.zero_config.stage == 2
    assert found.gradient_accumulation_steps == 4
    assert found.bfloat16_config.enabled
    assert found.grad_accum_dtype == "fp32"


def test_torchtitan_reads_its_file(tmp_path):
    manager = pytest.importorskip("torchtitan.config.manager", exc_type=ImportError)
    pytest.importorskip("torchtitan.config.job_config", exc_type=ImportError)  # up to 0.2
    plan = NamedPlan.parse(
        "tensor=2,pipeline=2,data=2,chunks=2,schedule=interleaved,micro_batch=1,zero=3,"
        "sequence_parallel,recompute=operators"
    )
    facts = Facts("a model", 8, 8, 16, 7, "bfloat16", "float32", "float32", Optimizer("adam"))
    path = tmp_path / "torchtitan.toml"
    path.write_text(torchtitan.files(plan, facts, ())["torchtitan.toml"])
    found = manager.ConfigManager().parse_args([f"--job.config_file={path}"])
    assert found.parallelism.data_parallel_shard_degree == 2
    assert found.parallelism.pipeline_parallel_schedule == "Interleaved1F1B"
    assert found.activation_checkpoint.selective_ac_option == "op"
    parts = found.parallelism.module_fqns_per_model_part
    assert [len(part) for part in parts] == [3, 2, 2, 3]


def test_torchtitan_names_every_block_once():
    for blocks in range(4, 12):
        facts = Facts(
            "a model", 8, 8, 16, blocks, "float32", "float32", "float32", Optimizer("adam")
        )
        plan = NamedPlan.parse("pipeline=4,data=2,zero=3,micro_batch=1,schedule=1f1b")
        text = torchtitan.files(plan, facts, ())["torchtitan.toml"]
        parts = tomllib.loads(text)["parallelism"]["module_fqns_per_model_part"]
        names = [one for part in parts for one in part]
        assert names == [
            "tok_embeddings",
            *(f"layers.{i}" for i in range(blocks)),
            "norm",
            "output",
        ]
        assert list(accumulate(map(len, parts)))[-1] == blocks + 3
