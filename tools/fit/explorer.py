"""The page of `fit`: all plans of the family, step against memory, and what wins at other sizes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.compiler.evaluation.evaluated import Evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.compiler.fit.questions import device_counts, on_devices
from shardwright.compiler.page.page import page_text, write_text
from shardwright.cost_model.buffers import KINDS
from shardwright.cost_model.efficiency.memory_as_run import RESERVE, WORKSPACE
from shardwright.ir.errors import ShardwrightError
from shardwright.tools.answers.told import Told
from shardwright.tools.answers.training import Asked
from shardwright.tools.fit.answers import Answers

_OF_SOFTWARE = (WORKSPACE, RESERVE)  # kinds of memory that a training software takes beside
_SCRIPTS = ("units.js", "tables.js", "explorer.js")
_FIELDS = ("tensor", "pipeline", "data", "chunks", "order", "recompute", "zero", "micro_batch")
_DEVICES = 8  # numbers of devices of the curve, from the least on which all is stored
_TIMES = (1 / 2, 1, 2, 4)  # multiples of the batch and of the sequence
_CURVE = 4
"""Plans of the least bounds that fit and are evaluated for a point of a curve.

Of Llama 3 70B on 64 devices the fastest is among the first 2, of Mixtral 8x7B among 3, of GPT-2 on
8 among 2; twice as many take twice the time, and at half a point may be a few per cent too high.
"""
_PARTS = (
    "operators of the busiest devices",
    "communication in passes that they wait for",
    "pipeline fills, data ranks, and the rest",
)


def write_explorer(path: Path, answers: Answers, asked: Asked, sentences: Sequence[str]) -> None:
    """Write the page of the answers about one number of devices.

    Parameters
    ----------
    path : Path
        The file; another file that is no page is never replaced.
    answers : Answers
        The answers.
    asked : Asked
        What is asked about the length of a training.
    sentences : sequence of str
        What the page begins with.
    """
    document = explorer_document(answers, asked, sentences)
    write_text(path, page_text(document, _SCRIPTS))


def explorer_document(
    answers: Answers, asked: Asked, sentences: Sequence[str] = ()
) -> dict[str, Any]:
    """Return all that the page draws."""
    model, subject, told = answers.model, answers.subject, answers.told(asked)
    curves = [*_curves(answers)]
    kinds = [*KINDS, *_OF_SOFTWARE]
    return {
        "said": list(sentences),
        "model": subject.name,
        "cluster": subject.cluster.name,
        "software": answers.software_name,
        "devices": answers.devices,
        "batch": subject.samples,
        "tokens": subject.tokens,
        "sequence": subject.sequence,
        "parameters": model.elements + model.frozen_elements,
        "precision": model.options.precision,
        "optimizer": model.options.optimizer.kind,
        "limit_bytes": model.limit_bytes,
        "fields": list(_FIELDS),
        "kinds": kinds,
        "parts": list(_PARTS),
        "plans": [_row(model, one, kinds) for one in answers.points],
        "best": None if answers.subject_plan is None else answers.subject_plan.plan.text,
        "built": None if told is None else _built(answers, told),
        "full_rate_seconds": None if told is None else _at_full_rate(told),
        "curves": curves,
    }


def _row(model: EvaluatedModel, one: Bound, kinds: Sequence[str]) -> list[Any]:
    """Return a plan as a row: its text, its fields, what it takes, whether it fits, and its kinds.

    Of a plan that was evaluated that is its evaluation, of others what it takes at least.
    """
    known = model.known(one.plan, one.devices)
    step, taken, by_kind = one.seconds, one.memory_bytes, one.memory_by_kind
    fits = int(model.may_fit(one))
    if known is not None:
        step, taken, fits = known.seconds, known.memory.peak_bytes, 2 if known.fits else 0
        by_kind = known.memory.by_kind
    compute, links = one.compute_seconds, one.link_seconds
    return [
        one.plan.text,
        [getattr(one.plan, name) for name in _FIELDS],
        step,
        taken,
        fits,
        [compute, links, max(step - compute - links, 0.0)],
        [by_kind.get(kind, 0.0) for kind in kinds],
        int(known is not None),
    ]


def _built(answers: Answers, told: Told) -> dict[str, Any]:
    document = told.planned.plan.document
    return {
        "plan": document.how,
        "step_seconds": told.step_seconds,
        "memory_bytes": document.memory.peak_bytes,
        "software_memory_bytes": answers.kept and answers.kept.report.peak_bytes,
        "model_flops_utilization": told.rates.utilization,
    }


def _at_full_rate(told: Told) -> float:
    """Return the step of 100 % MFU: all devices compute products at full rate, without a pause."""
    return told.step_seconds * told.rates.utilization


def _curves(answers: Answers) -> Iterator[dict[str, Any]]:
    """Yield what wins at other numbers of devices, batches and lengths, those that have a plan."""
    model, subject, fewest = answers.model, answers.subject, answers.fewest
    if fewest is not None:
        counts = [n for n in device_counts(model) if n >= fewest.devices][:_DEVICES]
        best = [(n, _on(answers, n), subject.tokens) for n in counts]
        yield _curve("devices", answers.devices, best)
    length, batch = subject.sequence, subject.samples
    yield _curve("batch", batch, [*_of_sizes(answers, "batch", batch, length)])
    if length is not None:
        yield _curve("sequence", length, [*_of_sizes(answers, "sequence", length, batch)])


def _on(answers: Answers, devices: int) -> Evaluated | None:
    """Return the fastest plan on a number of devices."""
    if devices == answers.devices:
        return answers.fastest
    return on_devices(answers.model, devices, _CURVE).best


def _of_sizes(
    answers: Answers, name: str, own: int, others: int | None
) -> Iterator[tuple[int, Evaluated | None, int | None]]:
    """Yield for some values of a size the fastest plan, and the tokens of a step."""
    for size in (int(many * own) for many in _TIMES if many * own >= 1):
        try:
            best = answers.fastest if size == own else _fastest_of(answers, {name: size})
        except ShardwrightError:  # the model has no such size
            continue
        yield size, best, others and others * size


def _fastest_of(answers: Answers, sizes: Mapping[str, Any]) -> Evaluated | None:
    model = answers.subject.model(**sizes)
    return fastest(model, family(model, answers.devices), most=_CURVE)


def _curve(
    name: str, own: int, points: Sequence[tuple[int, Evaluated | None, int | None]]
) -> dict[str, Any]:
    rows = [_point(size, one, tokens) for size, one, tokens in points if one is not None]
    return {"over": name, "own": own, "points": rows}


def _point(size: int, one: Evaluated, tokens: int | None) -> Mapping[str, Any]:
    seconds = one.seconds
    return {
        "size": size,
        "plan": one.plan.text,
        "step_seconds": seconds,
        "memory_bytes": one.memory_bytes,
        "tokens_per_second_per_device": tokens and tokens / seconds / one.devices,
    }
