"""Flags of Megatron-LM, and the same fields of NeMo: the nearest plan that they can say.

The names are those of `megatron/training/arguments.py` and of Megatron-Core's configurations, which
NeMo's recipes have too. `shardwright estimate --plan megatron.sh` reads the flags again.
"""

from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.orders import InterleavedPairs
from shardwright.dataflow.placement import even_sizes
from shardwright.dataflow.recompute_rules import CORE, layers_of
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.degrees.text import Facts, check_choice_of, comment, optimizer_notes
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, fixed, lines, listed, literal, word
from shardwright.frontends.configs.layout import layout_text
from shardwright.operators.models.precision import MASTER, PRECISIONS
from shardwright.search.named_plan import RECOMPUTE, NamedPlan

_SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}
_RECIPES: Final = {
    name: dict(one.recipe.megatron)
    for name, one in PRECISIONS.items()
    if one.recipe is not None and one.recipe.megatron
}
_PRECISIONS: Final = {
    "float32": None,
    "bfloat16": "bf16",
    "float16": "fp16",
    **dict.fromkeys(_RECIPES, "bf16"),
}
_OPTIMIZERS: Final = {"adam": "adam", "sgd": "sgd", "momentum": "sgd"}
_DISPATCHER: Final = "alltoall"  # by default every rank gathers the tokens of all
Fields = dict[str, dict[str, object]]


def refusal(plan: NamedPlan) -> str:
    """Return why Megatron's flags cannot say a plan; empty if they can."""
    has_pairs = plan.order == InterleavedPairs.name
    if plan.pipeline > 1 and plan.order not in ("1f1b", "interleaved") and not has_pairs:
        return f"`schedule={plan.order}`"
    if has_pairs and plan.expert == 1:
        return f"`schedule={plan.order}` without `expert`"
    if has_pairs and (layers_of(plan.recompute) or "moe" in _modules(plan)):
        return f"`schedule={plan.order}` with `recompute={plan.recompute}`"
    if plan.recompute == "operators":
        return "`recompute=operators`"
    if plan.shard > 1:
        return f"`shard={plan.shard}`"
    if plan.expert > 1 and plan.tensor > 1 and not plan.sequence_parallel:
        return "`expert` beside `tensor` without `sequence_parallel`"
    return ""


WORDS: Final = Words("Megatron", refusal)


def export(plan: Plan) -> Exported:
    """Return ``megatron.sh`` and ``nemo.yaml``.

    Raises
    ------
    OptionError
        If the plan has a precision or an optimizer that Megatron has no words for, or nothing that
        it can say fits.
    """
    facts = Facts.of(plan)
    check_choice_of("Megatron", "precision", facts.precision, _PRECISIONS)
    check_choice_of("Megatron", "optimizer", facts.optimizer.kind, _OPTIMIZERS)
    found = nearest(plan, WORDS)
    notes = (
        *found.sentences,
        *_notes(facts, found.plan),
        *optimizer_notes(plan, "Megatron", written="rule"),
    )
    return Exported(files(found.plan, facts, notes), notes)


def files(named: NamedPlan, facts: Facts, notes: tuple[str, ...]) -> dict[str, Code]:
    """Return the script and the recipe of a named plan in full, with notes at their heads."""
    return {
        "megatron.sh": _script(named, facts, notes),
        "nemo.yaml": _yaml(_fields(named, facts), comment(facts, "NeMo", notes)),
    }


def _flags(named: NamedPlan, facts: Facts) -> list[Code]:
    """Return the flags of a named plan."""
    degrees = {
        "tensor-model-parallel-size": named.tensor,
        "pipeline-model-parallel-size": named.pipeline,
        "context-parallel-size": named.context,
        "expert-model-parallel-size": named.expert,
    }
    found = [code("--{} {}", word(name), degree) for name, degree in degrees.items()]
    if named.folds:
        found.append(code("--expert-tensor-parallel-size {}", named.of_experts))
        found.append(code("--moe-token-dispatcher-type {}", word(_DISPATCHER)))
    if named.order == InterleavedPairs.name:
        found.append(fixed("--overlap-moe-expert-parallel-comm"))
    if named.context > 1:
        found.append(fixed("--cp-comm-type p2p" if named.ring else "--cp-comm-type all_gather"))
    found += _stage_flags(named, facts)
    found += [
        code("--micro-batch-size {}", named.micro_batch),
        code("--global-batch-size {}", facts.batch),
    ]
    if named.sequence_parallel:
        found.append(fixed("--sequence-parallel"))
    if named.zero == 1:
        found.append(fixed("--use-distributed-optimizer"))
    elif named.zero:
        found += [fixed("--use-megatron-fsdp"), fixed("--use-distributed-optimizer")]
        sharding = word(_SHARDING[named.zero])
        found.append(code("--data-parallel-sharding-strategy {}", sharding))
    if layers := layers_of(named.recompute):
        found.append(fixed("--recompute-granularity full"))
        found.append(code("--recompute-method {}", word(layers.method)))
        found.append(code("--recompute-num-layers {}", layers.count))
    elif modules := _modules(named):
        found.append(fixed("--recompute-granularity selective"))
        found.append(code("--recompute-modules {}", listed(map(word, modules), " ")))
    return found + _type_flags(facts)


def _modules(named: NamedPlan) -> list[str]:
    """Return the parts of blocks that are recomputed; none for no part or for whole blocks."""
    if named.recompute == "selective":
        return [CORE]
    whole = named.recompute in RECOMPUTE or layers_of(named.recompute)
    return [] if whole else named.recompute.split("+")


def _type_flags(facts: Facts) -> list[Code]:
    """Return the flags of types and of the update rule."""
    precision, is_wide = _PRECISIONS[facts.precision], facts.accumulate_type == MASTER
    found = [code("--{}", word(precision))] if precision else []
    recipe = _RECIPES.get(facts.precision, {})
    found += [code("--{} {}", word(flag), word(str(value))) for flag, value in recipe.items()]
    if PRECISIONS[facts.precision].ends:
        found.append(fixed("--first-last-layers-bf16"))
    if precision == "bf16" and not is_wide:
        found.append(fixed("--grad-reduce-in-bf16"))
    if precision == "fp16" and is_wide:
        found.append(fixed("--accumulate-allreduce-grads-in-fp32"))
    found.append(code("--optimizer {}", word(_OPTIMIZERS[facts.optimizer.kind])))
    return found + ([fixed("--sgd-momentum 0")] if facts.optimizer.kind == "sgd" else [])


def _layout(named: NamedPlan, facts: Facts) -> str:
    """Return the layout of the stages where they have different numbers of blocks; else empty."""
    stages = named.pipeline * named.chunks
    if stages == 1 or facts.blocks % stages == 0:
        return ""
    return layout_text(even_sizes(facts.blocks, stages))


def _stage_flags(named: NamedPlan, facts: Facts) -> list[Code]:
    layout = _layout(named, facts)
    if layout:
        return [code('--pipeline-model-parallel-layout "{}"', word(layout))]
    if named.chunks > 1:
        return [code("--num-virtual-stages-per-pipeline-rank {}", named.chunks)]
    return []


def _fields(named: NamedPlan, facts: Facts) -> Fields:
    """Return the fields of NeMo's recipes."""
    layout, precision = _layout(named, facts), _PRECISIONS[facts.precision]
    recipe = _RECIPES.get(facts.precision, {})
    modules, layers = _modules(named), layers_of(named.recompute)
    model: dict[str, object] = {
        "tensor_model_parallel_size": named.tensor,
        "pipeline_model_parallel_size": named.pipeline,
        "virtual_pipeline_model_parallel_size": named.chunks if named.chunks > 1 else None,
        "pipeline_model_parallel_layout": layout or None,
        "context_parallel_size": named.context,
        "cp_comm_type": ("p2p" if named.ring else "all_gather") if named.context > 1 else None,
        "expert_model_parallel_size": named.expert,
        "expert_tensor_parallel_size": named.of_experts if named.folds else None,
        "moe_token_dispatcher_type": _DISPATCHER if named.folds else None,
        "overlap_moe_expert_parallel_comm": named.order == InterleavedPairs.name or None,
        "sequence_parallel": named.sequence_parallel,
        "recompute_granularity": "selective" if modules else "full" if layers else None,
        "recompute_method": layers and layers.method,
        "recompute_num_layers": layers and layers.count,
        "recompute_modules": modules or None,
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "fp8": recipe.get("fp8-format"),
        "fp8_recipe": recipe.get("fp8-recipe"),
        "fp4": recipe.get("fp4-format"),
        "fp4_recipe": recipe.get("fp4-recipe"),
        "first_last_layers_bf16": PRECISIONS[facts.precision].ends > 0 or None,
    }
    ddp: dict[str, object] = {
        "use_distributed_optimizer": named.zero > 0,
        "use_megatron_fsdp": named.zero > 1,
        "data_parallel_sharding_strategy": _SHARDING.get(named.zero, "no_shard"),
        "grad_reduce_in_fp32": precision is None or facts.accumulate_type == MASTER,
    }
    train: dict[str, object] = {
        "micro_batch_size": named.micro_batch,
        "global_batch_size": facts.batch,
    }
    return {"model": model, "ddp": ddp, "train": train}


def _notes(facts: Facts, named: NamedPlan) -> list[str]:
    """Return what the flags do not say of the plan."""
    notes = ["the flags of the model and of its data are yours: give them to the script"]
    if facts.reduce_type != facts.accumulate_type and facts.precision != MASTER:
        types = {True: "float32", False: PRECISIONS[facts.precision].compute}
        reduced, kept = (types[one == MASTER] for one in (facts.reduce_type, facts.accumulate_type))
        notes.append(
            f"gradients are reduced in {reduced} and accumulated in {kept} here, Megatron has one "
            f"type for both: {kept}; the figures are those of the types here"
        )
    if facts.precision in _RECIPES:
        notes.append(
            "products are quantized where they are run here; Transformer Engine keeps the "
            "quantized copies of activations and weights instead, and the memory differs"
        )
    if CORE in _modules(named):
        notes.append("`core_attn` computes the scores again, which a flash kernel does anyway")
    return notes


def _script(named: NamedPlan, facts: Facts, notes: tuple[str, ...]) -> Code:
    text = [
        fixed("#!/bin/bash"),
        comment(facts, "Megatron-LM", notes),
        fixed("DISTRIBUTED_ARGS=("),
        code("  --nnodes {}", facts.devices // facts.each),
        code("  --nproc-per-node {}", facts.each),
        fixed(")"),
        fixed("PLAN_ARGS=("),
        *(code("  {}", flag) for flag in _flags(named, facts)),
        fixed(")"),
        fixed('torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py "${PLAN_ARGS[@]}" "$@"'),
        fixed(""),
    ]
    return lines(text)


def _yaml(fields: Fields, head: Code) -> Code:
    text = [head]
    for table, values in fields.items():
        text.append(code("{}:", word(table)))
        text += [code("  {}: {}", word(key), _yaml_value(value)) for key, value in values.items()]
    return lines([*text, fixed("")])


def _yaml_value(value: object) -> Code:
    if value is None:
        return fixed("null")
    if isinstance(value, bool):
        return fixed("true" if value else "false")
    if isinstance(value, list):
        return code("[{}]", listed(map(word, value)))
    return literal(value) if isinstance(value, str) else code("{}", value)
