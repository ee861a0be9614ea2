"""What `fit` prints for people."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from shardwright.compiler.evaluation.evaluated import Evaluated
from shardwright.compiler.fit.questions import (
    Longest,
    OnDevices,
    device_counts,
    least_devices,
)
from shardwright.compiler.fit.simplest import kinds
from shardwright.compiler.fit.training_time import Training
from shardwright.cost_model.efficiency.intervals import Apart
from shardwright.cost_model.efficiency.software import Software
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.answers.experts import experts_text
from shardwright.tools.answers.headline import print_sentences
from shardwright.tools.answers.kept import NOT_COUNTED
from shardwright.tools.answers.told import Told
from shardwright.tools.answers.training import Asked
from shardwright.tools.console.tables import print_line, print_table
from shardwright.tools.fit.advice import advice
from shardwright.tools.fit.answers import Answers
from shardwright.tools.fit.fit_document import FAMILY
from shardwright.tools.fit.robust import print_robust
from shardwright.tools.reports.origins import attained_text, figures_line

_GIB = 2**30
_BREAKS = re.compile(r"(\s+|(?<=,)(?=\w))")  # a line may break after a comma too
_line = partial(print_line, column=12, breaks=_BREAKS)


def print_answers(
    answers: Answers,
    several: Sequence[OnDevices],
    asked: Asked,
    chosen: str = "",
    verbose: bool = False,
) -> None:
    """Print the answers about one number of devices, and the best on each of several.

    Parameters
    ----------
    answers : Answers
        The answers.
    several : sequence of OnDevices
        The fastest plan on each number of devices; empty where one number is asked for.
    asked : Asked
        What is asked about the length of a training.
    chosen : str
        Why the batch is the one it is; empty where the user gave it.
    verbose : bool
        Whether to print all answers, not only whether it fits, and what to change.
    """
    plan = answers.subject_plan
    print(_title(answers))
    print_sentences(first_sentences(answers, asked, chosen))
    _print_verdict(answers)
    if plan is not None and verbose:
        _print_plan(answers, plan, asked)
        _print_limits(answers)
    if plan is not None:
        _line("change", "; ".join(advice(plan, answers.changes, answers.tells)))
    if answers.software is None:
        _line("kept", f"not counted: {NOT_COUNTED}")
    if answers.built is not None and (experts := experts_text(answers.built.plan.program)):
        _line("experts", experts)
    if verbose:
        _line("family", f"{len(answers.plans)} {FAMILY}")
        _line("figures", _figures(answers))
    else:
        if figures := figures_line(answers.subject.cluster.run_by(answers.software)):
            _line("figures", figures)
        _line("more", "`--verbose` tells the plan by its parts, limits, all changes and plans")
    if plan is not None and (verbose or not several):
        _print_changes(answers, plan)
    if answers.robust is not None:
        print_robust(answers.robust)
    if plan is not None and verbose:
        _print_front(answers, asked)
    if several:
        _print_several(answers, several, asked)


def first_sentences(answers: Answers, asked: Asked, chosen: str = "") -> list[str]:
    """Return the first lines of the answers; none where no plan was built."""
    told = answers.told(asked)
    return [] if told is None else [*_first(answers, told, chosen)]


def _first(answers: Answers, told: Told, chosen: str) -> Iterator[str]:
    """Yield the first lines: the plan that was built, its figures, and the training."""
    if answers.robust is not None:
        best = "of the least regret of"
    elif answers.best is not answers.fastest:
        best = "the simplest of those that are not told from the fastest of"
    else:
        best = "faster than all" if answers.is_beyond else "the fastest of"
    compared = f"{best} {len(answers.plans)} plans of Megatron's family"
    divided, figures, trained, *rest = told.sentences(chosen, compared)
    yield from (divided, figures)
    yield f"{trained}; the plan is `{told.planned.plan.document.how}`"
    yield from rest
    if answers.apart is not None:
        yield apart_sentence(answers, answers.apart)


def apart_sentence(answers: Answers, apart: Apart) -> str:
    """Return which steps are not told apart, and the fastest plan where it was not chosen."""
    best, fastest = answers.best, answers.fastest
    text = f"steps that differ by less than {apart.share:.0%} are not told apart by published plans"
    if best is None or fastest is None or best is fastest or answers.robust is not None:
        return text
    shorter = f"{fastest.seconds / best.seconds - 1:+.1%}"
    several = f"{kinds(fastest.plan)} kinds of parallelism for {kinds(best.plan)}"
    return f"{text}: the fastest is `{fastest.plan}`, {shorter}, with {several}"


def _figures(answers: Answers) -> str:
    timed = ""
    if answers.software is not None:
        timed = (
            f"; plans are compared as {answers.software.name} runs them, but for what "
            f"hosts launch between passes; {_account(answers.software)}"
        )
    return (
        "steps and memory are simulated, and those of the compiled program; plans are left out "
        "where a lower bound is above the best step or the memory limit; by figures of "
        f"{answers.subject.cluster.name} as its cluster file says{timed}"
        f"{attained_text(answers.subject.cluster)}"
    )


def _account(software: Software) -> str:
    if software.memory is None:
        return "what it keeps in memory is not known, and memory is that of the program"
    return "memory is that of the program or as it keeps tensors, whichever is more"


def _title(answers: Answers) -> str:
    model, subject = answers.model, answers.subject
    devices = f"{answers.devices} device{'s' if answers.devices > 1 else ''}"
    size = f"{(model.elements + model.frozen_elements) / 1e9:.3g}B parameters"
    if model.frozen_elements:
        size += f", {model.elements / 1e9:.3g}B of them trained"
    batch = f"batch {subject.samples}"
    text = f" of {subject.sequence:,} tokens" if subject.sequence else ""
    options = f"{model.options.precision}, {model.options.optimizer.title}"
    where = f"{subject.cluster.name}{subject.cluster.part_text(answers.devices)}"
    return f"{subject.name} on {devices} of {where}: {size}, {batch}{text}, {options}"


def _print_verdict(answers: Answers) -> None:
    model, count = answers.model, answers.larger
    limit = bytes_text(model.limit_bytes)
    least = least_devices(model)
    if answers.best is not None:
        if answers.kept is not None:
            kept = bytes_text(answers.kept.limit)
            limit += f", and as {answers.software_name} keeps tensors in {kept}"
        _line("fits", f"yes, in {limit}; {count} of {len(answers.plans)} plans take more")
    elif least > answers.devices:
        needed = bytes_text(model.least_bytes)
        _line(
            "fits",
            f"no, proven: parameters and optimizer states take {needed}, "
            f"{answers.devices} devices have {limit} each",
        )
    else:
        _line("fits", f"no plan of this family was found that fits {limit}")
    _line(
        "devices",
        f"{_fewest(answers)}; no plan fits on fewer than {least}, proven by the "
        f"{bytes_text(model.least_bytes)} of parameters and optimizer states",
    )


def _fewest(answers: Answers) -> str:
    fewest = answers.fewest
    if fewest is None or fewest.best is None:
        return f"no plan of this family fits on up to {device_counts(answers.model)[-1]} devices"
    best = fewest.best
    verb = "is" if fewest.devices == 1 else "are"
    return (
        f"{fewest.devices} {verb} enough (of powers of two) for `{best.plan}`: "
        f"{seconds_text(best.seconds)}, {bytes_text(best.memory_bytes)}"
    )


def _print_plan(answers: Answers, plan: Evaluated, asked: Asked) -> None:
    best = "best plan" if answers.robust is None else "robust"
    _line(best if answers.best is not None else "smallest", f"`{plan.plan}`")
    how = "" if answers.software is None else f"as {answers.software.name} runs it: "
    step, fits = plan.seconds, "" if plan.fits else ", which does not fit"
    text = f"{how}{_speed(step, answers)}, {bytes_text(plan.memory_bytes)} on each device{fits}"
    _line("", text + _training_text(asked.of_step(step, answers.subject.tokens, plan.devices)))
    if answers.kept is not None:
        kept = answers.kept
        said = f"{bytes_text(kept.report.peak_bytes)} of {bytes_text(kept.limit)}"
        _line("", f"as {answers.software_name} keeps tensors: {said}")
    kinds = plan.memory_by_kind.items()
    _line("", ", ".join(f"{k} {bytes_text(v)}" for k, v in kinds if round(v)))


def _speed(step: float, answers: Answers) -> str:
    tokens = answers.subject.tokens
    rate = "" if tokens is None else f", {tokens / step / answers.devices:,.0f} tokens/s on each"
    return f"step {seconds_text(step)}{rate}"


def _print_limits(answers: Answers) -> None:
    of_batch, free = answers.micro_batch
    own = f"{of_batch} of those that divide the batch" if of_batch else "none fits"
    _line("micro-batch", f"largest with these degrees: {own}; {free} whatever the batch is")
    if answers.sequences is not None:
        own, any_plan = map(_length, answers.sequences)
        _line(
            "sequence",
            f"longest with this plan: {own}; with the smallest of this family on "
            f"{answers.devices} devices: {any_plan} (in eighths of {answers.subject.sequence:,})",
        )


def _length(longest: Longest) -> str:
    if longest.tokens is None:
        return "none fits" if longest.is_last else "none found"
    return f"{'' if longest.is_last else 'at least '}{longest.tokens:,} tokens"


def _print_changes(answers: Answers, base: Evaluated) -> None:
    rows = []
    for change in sorted(answers.changes, key=lambda one: one.then.memory_bytes):
        one = change.then
        step = one.seconds / base.seconds - 1
        memory = (one.memory_bytes - base.memory_bytes) / _GIB
        rows.append(
            (
                change.text,
                f"{'~ ' if answers.tells(change) is False else ''}{step:+.1%}",
                f"{memory:+.2f} GiB",
                bytes_text(one.memory_bytes),
                "yes" if one.fits else "no",
            )
        )
    headings = ("one change to this plan", "step", "memory", "then", "fits")
    print()
    title = "what a change costs, the least memory first"
    if answers.apart is not None:
        title += "; ~ steps that are not told apart"
    print_table(title, headings, rows, right=(1, 2, 3))


def _print_front(answers: Answers, asked: Asked) -> None:
    rows = [_row(one, answers.subject.tokens, asked) for one in answers.front]
    if rows:
        title = f"step against memory: {len(rows)} plans that fit, of which none beats another"
        print_table(title, _headings("plan", asked), rows, right=(1, 2, 3, 4, 5))


def _headings(first: str, asked: Asked) -> tuple[str, ...]:
    days = ("days",) if asked.tokens is not None else ()
    cost = ("money",) if asked.tokens is not None and asked.price is not None else ()
    return (first, "step", "tokens/s each", "memory", *days, *cost)


def _row(one: Evaluated, tokens: int | None, asked: Asked) -> tuple[str, ...]:
    step = one.seconds
    rate = "" if tokens is None else f"{tokens / step / one.devices:,.0f}"
    trained = _cells(asked.of_step(step, tokens, one.devices))
    return (_spaced(one), seconds_text(step), rate, bytes_text(one.memory_bytes), *trained)


def _spaced(one: Evaluated) -> str:
    """Return the text of a plan that a table can break."""
    return one.plan.text.replace(",", ", ")


def _cells(found: Training | None) -> tuple[str, ...]:
    if found is None:
        return ()
    money = () if found.money is None else (f"{found.money:,.0f}",)
    return (f"{found.days:,.3g}", *money)


def _training_text(found: Training | None) -> str:
    if found is None:
        return ""
    money = "" if found.money is None else f" and {found.money:,.0f} in money"
    return f"; the training takes {found.days:,.3g} days{money}"


def _print_several(answers: Answers, found: Sequence[OnDevices], asked: Asked) -> None:
    """Print the fastest plan on each number of devices."""
    rows: list[tuple[str, ...]] = []
    for one in found:
        if one.best is None:
            told = f"no plan of this family fits ({one.plans} plans)"
            rows.append((str(one.devices), told))
            continue
        rows.append((str(one.devices), *_row(one.best, answers.subject.tokens, asked)))
    headings = ("devices", *_headings("fastest plan", asked))
    filled = [(*row, *("",) * (len(headings) - len(row))) for row in rows]
    print_table("by the number of devices", headings, filled, right=(0, 2, 3, 4, 5, 6))
