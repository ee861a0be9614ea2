"""DeepSpeed's JSON: the nearest plan of data ranks and a ZeRO stage.

Tensor ranks, stages and experts are classes of the model's own code there, no words of the file.
`shardwright estimate --plan deepspeed.json` reads it again.
"""

from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.degrees.text import Facts, check_choice_of, optimizer_notes, title
from shardwright.exports.degrees.update_rules import Word, word_for
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, document
from shardwright.ir.errors import OptionError
from shardwright.operators.models.optimizer import OF_OTHERS, Optimizer
from shardwright.operators.models.precision import MASTER
from shardwright.search.named_plan import NamedPlan

_TYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_RATE: Final = {"learning_rate": "lr", "weight_decay": "weight_decay"}
_ADAM: Final = {"beta1": "beta1", "beta2": "beta2", "epsilon": "eps"}
_OF_OTHERS: Final = {OF_OTHERS + name: key for name, key in _ADAM.items()}
_OPTIMIZERS: Final = {
    "sgd": Word("SGD", _RATE),
    "momentum": Word("SGD", {**_RATE, "momentum": "momentum", "nesterov": "nesterov"}),
    "adam": Word("AdamW", {**_RATE, **_ADAM}),
    "muon": Word(
        "Muon",
        {
            **{"learning_rate": "muon_lr", f"{OF_OTHERS}learning_rate": "adam_lr"},
            **{"weight_decay": "weight_decay", f"{OF_OTHERS}weight_decay": "weight_decay"},
            "momentum": "momentum",
            **_OF_OTHERS,
        },
    ),
}
"""What `runtime/engine.py` of DeepSpeed takes, and what it hands to `torch.optim`."""


def refusal(plan: NamedPlan) -> str:
    """Return why DeepSpeed's JSON cannot say a plan; empty if it can."""
    for name in ("tensor", "pipeline", "context", "expert", "expert_tensor", "shard"):
        if (getattr(plan, name) or 1) > 1:
            return f"`{name}={getattr(plan, name)}` in its file"
    return "" if plan.recompute in ("none", "full") else f"`recompute={plan.recompute}`"


WORDS: Final = Words("DeepSpeed", refusal)


def export(plan: Plan) -> Exported:
    """Return ``deepspeed.json``.

    Raises
    ------
    OptionError
        If the plan has a precision or an optimizer that DeepSpeed has no word for, or nothing that
        it can say fits.
    """
    facts = Facts.of(plan)
    check_choice_of("DeepSpeed", "precision", facts.precision, _TYPES)
    word = word_for("DeepSpeed", _OPTIMIZERS, facts.optimizer)
    found = nearest(plan, WORDS)
    notes = [*found.sentences, *optimizer_notes(plan, "DeepSpeed", written="settings")]
    if word.name == "Muon":
        notes.append(_muon_note(found.plan))
    if found.plan.recompute == "full":
        notes.append("the model's code calls `checkpoint` for every block: the file configures it")
    return Exported(files(found.plan, facts, tuple(notes)), tuple(notes))


def files(named: NamedPlan, facts: Facts, notes: tuple[str, ...]) -> dict[str, Code]:
    """Return the file of a named plan in full, with notes as its first item."""
    content: dict[str, object] = {
        "_comment": "; ".join([title(facts, "DeepSpeed"), *notes]),
        "train_batch_size": facts.batch,
        "train_micro_batch_size_per_gpu": named.micro_batch,
        "gradient_accumulation_steps": named.passes(facts.batch, facts.devices),
        "zero_optimization": {"stage": named.zero},
    }
    content["optimizer"] = _optimizer(facts.optimizer)
    if facts.optimizer.clip_norm is not None:
        content["gradient_clipping"] = facts.optimizer.clip_norm
    if named.zero and facts.optimizer.kind in ("sgd", "momentum"):
        content["zero_allow_untested_optimizer"] = True
    word = _TYPES[facts.precision]
    if word != "fp32":
        kept, sent = (
            "fp32" if one == MASTER else word for one in (facts.accumulate_type, facts.reduce_type)
        )
        content[word] = {"enabled": True}
        content["data_types"] = {"grad_accum_dtype": kept}
        content["communication_data_type"] = sent
    if named.recompute == "full":
        content["activation_checkpointing"] = {"partition_activations": False}
    return {"deepspeed.json": code("{}\n", document(content, indent=1))}


def _optimizer(rule: Optimizer) -> dict[str, object]:
    """Return the table of the optimizer.

    Raises
    ------
    OptionError
        If DeepSpeed has no word for the rule, or for one of its settings.
    """
    word = word_for("DeepSpeed", _OPTIMIZERS, rule)
    params = word.settings_of("DeepSpeed", rule)
    if "beta1" in params:
        params["betas"] = [params.pop("beta1"), params.pop("beta2")]
    return {"type": word.name, "params": params}


def _muon_note(named: NamedPlan) -> str:
    """Return which parameters DeepSpeed updates by Muon.

    Raises
    ------
    OptionError
        If the plan has no ZeRO stage: DeepSpeed orthogonalizes within its optimizers of ZeRO.
    """
    if not named.zero:
        raise OptionError(
            "DeepSpeed orthogonalizes the momentum of Muon only under ZeRO, and the nearest plan "
            "that it can say has `zero=0`",
            hint="compile by a plan with `zero=1`, or with `adamw`",
        )
    return (
        "DeepSpeed updates by Muon every matrix but those with `embed` or `lm_head` in their names"
    )
