"""The JSON document of `fit`; its keys are stable."""

from typing import Any

from shardwright.compiler.evaluation.evaluated import Evaluated
from shardwright.compiler.fit.questions import Change, Longest, OnDevices, least_devices
from shardwright.compiler.fit.training_time import Training
from shardwright.tools.answers.training import Asked
from shardwright.tools.fit.advice import advice
from shardwright.tools.fit.answers import Answers
from shardwright.tools.fit.robust import robust_document

FAMILY = (
    "plans of Megatron's family: tensor ranks inside a node with sequence parallelism, of a "
    "mixture whole experts over no ranks, those of a node and twice as many for as long as that is "
    "faster, 1F1B, zero-bubble and interleaved pipelines, data ranks with ZeRO 0 to 3, "
    "recomputation of all layers or none, micro-batches of 1, 2, 4 or 8 samples"
)


def answers_document(answers: Answers, asked: Asked) -> dict[str, Any]:
    """Return the answers about one number of devices."""
    model, subject, fewest = answers.model, answers.subject, answers.fewest
    plan = answers.subject_plan
    document: dict[str, Any] = {
        "model": subject.name,
        "cluster": subject.cluster.name,
        "devices": answers.devices,
        "batch": subject.samples,
        "sequence": subject.sequence,
        "parameters": model.elements + model.frozen_elements,
        "trained_parameters": model.elements,
        "precision": model.options.precision,
        "optimizer": model.options.optimizer.kind,
        "memory_limit_bytes": model.limit_bytes,
        "family": FAMILY,
        "plans": len(answers.plans),
        "too_large": answers.larger,
        "fits": answers.built is not None,
        "least_devices_proven": least_devices(model),
        "fewest_devices": None if fewest is None else on_devices_document(fewest, asked, answers),
        "best": None if plan is None else plan_document(plan, asked, answers),
        "built": built_document(answers, asked),
        "robust": robust_document(answers.robust),
        "apart": answers.apart and answers.apart.document,
        "fastest": answers.fastest and plan_document(answers.fastest, asked, answers),
        "front": [plan_document(one, asked, answers) for one in answers.front],
        "changes": [change_document(change, answers, asked) for change in answers.changes],
    }
    if plan is not None:
        document["largest_micro_batch"] = dict(
            zip(("of_batch", "of_any_batch"), answers.micro_batch, strict=True)
        )
        document["advice"] = advice(plan, answers.changes, answers.tells)
        document["longest_sequence"] = _sequences_document(answers.sequences)
    return document


def _sequences_document(found: tuple[Longest, Longest] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    of_plan, of_family = found
    return {
        "of_plan": of_plan.tokens,
        "of_plan_is_last": of_plan.is_last,
        "of_family": of_family.tokens,
        "of_family_is_last": of_family.is_last,
    }


def built_document(answers: Answers, asked: Asked) -> dict[str, Any] | None:
    """Return the figures of the best plan once it is built; None where none was."""
    if answers.built is None:
        return None
    compilation = answers.built
    step, told, kept = answers.step_seconds, answers.told(asked), answers.kept
    assert told is not None
    return {
        "plan": answers.best and answers.best.plan.text,
        "software": None if answers.software is None else answers.software.name,
        "step_seconds": step,
        "step_interval": told.interval and told.interval.document,
        "out_of_range": told.out_of_range,
        "memory_bytes_per_device": compilation.plan.document.memory.peak_bytes,
        "memory_by_kind": dict(compilation.plan.document.memory.by_kind),
        "software_memory_bytes": kept and kept.report.peak_bytes,
        **told.training_document,
    }


def on_devices_document(found: OnDevices, asked: Asked, answers: Answers) -> dict[str, Any]:
    """Return the fastest plan on a number of devices."""
    best = found.best
    return {
        "devices": found.devices,
        "plans": found.plans,
        "too_large": found.larger,
        "best": None if best is None else plan_document(best, asked, answers),
    }


def plan_document(one: Evaluated, asked: Asked, answers: Answers) -> dict[str, Any]:
    """Return what a plan takes."""
    tokens = answers.subject.tokens
    return {
        "plan": one.plan.text,
        "devices": one.devices,
        "step_seconds": one.seconds,
        "memory_bytes_per_device": one.memory_bytes,
        "memory_by_kind": dict(one.memory_by_kind),
        "fits": one.fits,
        "tokens_per_second_per_device": tokens and tokens / one.seconds / one.devices,
        **_training(asked.of_step(one.seconds, tokens, one.devices)),
    }


def change_document(change: Change, answers: Answers, asked: Asked) -> dict[str, Any]:
    """Return a change with what it costs in step and memory."""
    base = answers.subject_plan
    assert base is not None
    found = plan_document(change.then, asked, answers)
    return {
        "kind": change.kind,
        "change": change.text,
        "step_change": change.then.seconds / base.seconds - 1,
        "told_apart": answers.tells(change),
        "memory_change_bytes": change.then.memory_bytes - base.memory_bytes,
        **found,
    }


def _training(found: Training | None) -> dict[str, Any]:
    return {} if found is None else {"days": found.days, "money": found.money}
