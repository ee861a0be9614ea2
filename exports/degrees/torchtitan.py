"""torchtitan's TOML: the nearest plan that it can say.

The tables and keys are those of `torchtitan/config/job_config.py`, which versions up to 0.2 read.
`shardwright estimate --plan torchtitan.toml` reads them again.
"""

from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.dataflow.placement import even_sizes
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.degrees.text import Facts, check_choice_of, comment, optimizer_notes
from shardwright.exports.degrees.update_rules import Word, word_for
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, document, fixed, lines, word
from shardwright.operators.models.precision import MASTER
from shardwright.search.named_plan import ZERO, NamedPlan, copies_and_shards

_SCHEDULES: Final = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zero_bubble_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
_CHECKPOINTING: Final = {"none": "none", "full": "full", "operators": "selective"}
_PRECISIONS: Final = ("float32", "bfloat16")
_SAME: Final = ("beta1", "beta2", "weight_decay")
_OPTIMIZERS: Final = {
    "adam": Word(
        "AdamW",
        {"learning_rate": "lr", "epsilon": "eps", **{name: name for name in _SAME}},
    )
}
Tables = dict[str, dict[str, object]]


def refusal(plan: NamedPlan) -> str:
    """Return why torchtitan's TOML cannot say a plan; empty if it can."""
    divided = (plan.data or 1) * plan.context > 1
    if plan.folds and (refused := _refused_experts(plan)):
        return refused
    if plan.tensor > 1 and not plan.sequence_parallel:
        return "`tensor` without `sequence_parallel`"
    if plan.pipeline > 1 and plan.order not in _SCHEDULES:
        return f"`schedule={plan.order}`"
    if plan.recompute not in _CHECKPOINTING:
        return f"`recompute={plan.recompute}`"
    if plan.zero == 1:
        return "`zero=1`"
    if not plan.zero and divided and plan.tensor * plan.pipeline * plan.context > 1:
        return "copies of parameters (`zero=0`) beside other degrees"
    return ""


def _refused_experts(plan: NamedPlan) -> str:
    """Return why torchtitan cannot say the ranks of experts; empty if it can.

    They are whole, or cut as all weights; and they take context ranks, where whole tensor ranks
    too, and then some of those that divide parameters.
    """
    if plan.expert == 1 or plan.of_experts not in (1, plan.tensor):
        return f"`expert={plan.expert}` beside `expert_tensor={plan.of_experts}`"
    taken = plan.context * (plan.tensor if plan.of_experts < plan.tensor else 1)
    ranks = taken * copies_and_shards(plan)[1]
    if plan.expert % taken or ranks % plan.expert:
        return f"`expert={plan.expert}`, as it is no multiple of {taken} that divides {ranks} ranks"
    return ""


WORDS: Final = Words("torchtitan", refusal)


def words_for(precision: str) -> Words:
    """Return what torchtitan can say in a precision: a lower one where parameters are divided."""

    def refused(plan: NamedPlan) -> str:
        alone = plan.tensor * plan.pipeline * plan.context == 1
        if precision != MASTER and not plan.zero and not alone:
            return f"the precision {precision} where no parameter is divided"
        return refusal(plan)

    return Words(WORDS.system, refused)


def export(plan: Plan) -> Exported:
    """Return ``torchtitan.toml``.

    Raises
    ------
    OptionError
        If the plan has a precision or an optimizer that torchtitan has no words for, or nothing
        that it can say fits.
    """
    facts = Facts.of(plan)
    check_choice_of("torchtitan", "precision", facts.precision, _PRECISIONS)
    word_for("torchtitan", _OPTIMIZERS, facts.optimizer)
    found = nearest(plan, words_for(facts.precision))
    notes = (
        *found.sentences,
        *_notes(facts, found.plan),
        *optimizer_notes(plan, "torchtitan", written="settings"),
    )
    return Exported(files(found.plan, facts, notes), notes)


def files(named: NamedPlan, facts: Facts, notes: tuple[str, ...]) -> dict[str, Code]:
    """Return the file of a named plan in full, with notes at its head."""
    head = comment(facts, "torchtitan", notes)
    return {"torchtitan.toml": lines([head, _toml(_tables(named, facts))])}


def _notes(facts: Facts, named: NamedPlan) -> list[str]:
    notes = ["the tables of the model, of its data and of the run are yours: merge them"]
    types = {facts.reduce_type, facts.accumulate_type}
    if facts.precision != MASTER and types != {MASTER}:
        notes.append(
            "gradients are reduced and accumulated in float32 there, here they are not "
            "(`--reduce-type`, `--accumulate-type`): the figures are those of the types here"
        )
    if named.pipeline > 1:
        notes.append("the modules of the stages have torchtitan's names of a decoder")
    return notes


def _tables(named: NamedPlan, facts: Facts) -> Tables:
    word = word_for("torchtitan", _OPTIMIZERS, facts.optimizer)
    local = named.micro_batch if named.pipeline == 1 else facts.batch // (named.data or 1)
    checkpointing: dict[str, object] = {"mode": _CHECKPOINTING[named.recompute]}
    if named.recompute == "operators":
        checkpointing["selective_ac_option"] = "op"
    training: dict[str, object] = {
        "local_batch_size": local,
        "global_batch_size": facts.batch,
        "mixed_precision_param": facts.precision,
        "mixed_precision_reduce": MASTER,
    }
    if facts.optimizer.clip_norm is not None:
        training["max_norm"] = facts.optimizer.clip_norm
    return {
        "parallelism": _parallelism(named, facts),
        "training": training,
        "activation_checkpoint": checkpointing,
        "optimizer": {"name": word.name, **word.settings_of("torchtitan", facts.optimizer)},
    }


def _parallelism(named: NamedPlan, facts: Facts) -> dict[str, object]:
    copies, shards = copies_and_shards(named)
    found: dict[str, object] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": shards,
    }
    if named.zero:
        kept = named.zero < ZERO[-1]  # gathered parameters, from the forward to the backward pass
        found["fsdp_reshard_after_forward"] = "never" if kept else "always"
    found["tensor_parallel_degree"] = named.tensor
    found["context_parallel_degree"] = named.context
    if named.context > 1:
        found["context_parallel_rotate_method"] = "alltoall" if named.ring else "allgather"
    if named.folds:
        found["expert_parallel_degree"] = named.expert
        found["expert_tensor_parallel_degree"] = named.of_experts
    found["pipeline_parallel_degree"] = named.pipeline
    if named.pipeline > 1:
        found["pipeline_parallel_schedule"] = _SCHEDULES[named.order]
        found["pipeline_parallel_microbatch_size"] = named.micro_batch
        sizes = even_sizes(facts.blocks, named.pipeline * named.chunks)
        found["module_fqns_per_model_part"] = _modules(sizes)
    return found


def _modules(sizes: tuple[int, ...]) -> list[list[str]]:
    """Return the modules of every stage, by torchtitan's names of a decoder."""
    parts, first = [], 0
    for size in sizes:
        parts.append([f"layers.{i}" for i in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _toml(tables: Tables) -> Code:
    """Return tables as TOML, whose values are those of JSON."""
    text = []
    for table, values in tables.items():
        text += [fixed(""), code("[{}]", word(table))]
        text += [code("{} = {}", word(key), _value(value)) for key, value in values.items()]
    return lines([*text, fixed("")])


def _value(value: object) -> Code:
    if isinstance(value, list):
        return code("[\n{}]", lines([*(code("  {},", document(one)) for one in value), fixed("")]))
    return document(value)
