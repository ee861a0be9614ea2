"""DeepSpeed's JSON: the nearest plan of data ranks and a ZeRO stage.

Tensor ranks, stages and experts are classes of the model's own code there, no words of the file.
`shardwright estimate --plan deepspeed.json` reads it again.
"""

import json
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.degrees.nearest import Words, nearest
from shardwright.exports.degrees.text import Facts, check_choice_of, optimizer_notes, title
from shardwright.exports.table import Exported
from shardwright.operators.models.precision import MASTER
from shardwright.search.named_plan import NamedPlan

_TYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def refusal(plan: NamedPlan) -> str:
    """Return why DeepSpeed's JSON cannot say a plan; empty if it can."""
    for name in ("tensor", "pipeline", "context", "expert", "shard"):
        if getattr(plan, name) > 1:
            return f"`{name}={getattr(plan, name)}` in its file"
    return "" if plan.recompute in ("none", "full") else f"`recompute={plan.recompute}`"


WORDS: Final = Words("DeepSpeed", refusal)


def export(plan: Plan) -> Exported:
    """Return ``deepspeed.json``.

    Raises
    ------
    OptionError
        If the plan has a precision that DeepSpeed has no word for, or nothing that it can say fits.
    """
    facts = Facts.of(plan)
    check_choice_of("DeepSpeed", "precision", facts.precision, _TYPES)
    found = nearest(plan, WORDS)
    notes = [*found.sentences, *optimizer_notes(plan, "DeepSpeed")]
    notes.append(f"give the script an optimizer of the kind `{facts.optimizer}`")
    if found.plan.recompute == "full":
        notes.append("the model's code calls `checkpoint` for every block: the file configures it")
    return Exported(files(found.plan, facts, tuple(notes)), tuple(notes))


def files(named: NamedPlan, facts: Facts, notes: tuple[str, ...]) -> dict[str, str]:
    """Return the file of a named plan in full, with notes as its first item."""
    content: dict[str, object] = {
        "_comment": "; ".join([title(facts, "DeepSpeed"), *notes]),
        "train_batch_size": facts.batch,
        "train_micro_batch_size_per_gpu": named.micro_batch,
        "gradient_accumulation_steps": named.passes(facts.batch, facts.devices),
        "zero_optimization": {"stage": named.zero},
    }
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
    return {"deepspeed.json": json.dumps(content, indent=1) + "\n"}
