"""``shardwright fit``: whether a model fits on devices, with which plan, and what to change."""

import argparse
from pathlib import Path

from shardwright.compiler.fit.questions import least_devices
from shardwright.compiler.page.page import check_page
from shardwright.ir.errors import InfeasibleError, NotFoundError, ShardwrightError
from shardwright.ir.units import bytes_text
from shardwright.ir.values import POSITIVE, POSITIVE_INTEGER, number_in
from shardwright.planner.choice.best_first import MOST_WORKERS
from shardwright.planner.executors.workers import usable_workers
from shardwright.tools.answers.training import Asked, add_training
from shardwright.tools.console.arguments import add_number
from shardwright.tools.console.options import (
    add_cluster,
    add_memory,
    add_model,
    add_sequence,
    add_software,
    add_training_types,
    add_verbose,
    add_workers,
    take_batch,
)
from shardwright.tools.console.tables import print_line
from shardwright.tools.fit.answers import Answers, on_several
from shardwright.tools.fit.choice import add_robust, stated_errors
from shardwright.tools.fit.explorer import write_explorer
from shardwright.tools.fit.fit_document import answers_document, on_devices_document
from shardwright.tools.fit.fit_report import first_sentences, print_answers
from shardwright.tools.fit.subject import Subject
from shardwright.tools.plan_files import read_types
from shardwright.tools.reports.documents import print_document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model(parser)
    place = parser.add_argument_group("devices")
    place.add_argument(
        "--devices",
        required=True,
        type=_counts,
        metavar="N[,N...]",
        help="number of devices; of several, the answers are about the last, and a table of all",
    )
    add_cluster(place)
    add_memory(place)
    step = parser.add_argument_group("training step")
    add_number(step, "--batch", POSITIVE_INTEGER, "batch size (default the model's)", "B")
    add_sequence(step)
    add_training_types(step)
    add_software(step)
    add_robust(parser)
    add_training(parser)
    add_workers(parser)
    add_verbose(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with all plans of the family, step against memory, what one change to "
        "each would do, and what wins on other devices, with other batches and lengths",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answers.

    Raises
    ------
    InfeasibleError
        If it is proven that no plan fits; the answers are printed first.
    NotFoundError
        If no plan of the family fits, which proves nothing about others.
    """
    asked = Asked.of(arguments)
    if arguments.memory_limit is not None:  # without one all fits, and no size is the largest
        POSITIVE.check("--memory", arguments.memory_limit)
    read_types(arguments)
    if arguments.html is not None:
        check_page(arguments.html)
    chosen = take_batch(arguments, arguments.model, max(arguments.devices))
    subject = Subject(arguments)
    asked.check(subject.name, subject.tokens)
    answers = Answers(
        subject,
        arguments.devices[-1],
        stated_errors(arguments, subject.cluster, arguments.devices[-1]),
    )
    with answers.model.by_workers(arguments.workers or usable_workers(MOST_WORKERS)):
        _print(answers, asked, chosen, arguments)
        if answers.built is None:
            raise _does_not_fit(answers)
    return 0


def _print(answers: Answers, asked: Asked, chosen: str, arguments: argparse.Namespace) -> None:
    """Print the answers, and write their page."""
    several = on_several(answers.model, arguments.devices) if len(arguments.devices) > 1 else []
    if arguments.json:
        document = answers_document(answers, asked)
        document["by_devices"] = [on_devices_document(one, asked, answers) for one in several]
        print_document(document)
    else:
        print_answers(answers, several, asked, chosen, arguments.verbose)
    if arguments.html is not None:
        write_explorer(arguments.html, answers, asked, first_sentences(answers, asked, chosen))
        if not arguments.json:
            print_line("page", str(arguments.html))


def _does_not_fit(answers: Answers) -> ShardwrightError:
    """Return the error that tells why no plan was found, as far as it is proven."""
    model, limit = answers.model, bytes_text(answers.model.limit_bytes)
    fewest = answers.fewest
    if least_devices(model) > answers.devices:
        enough = f"; {fewest.devices} are enough" if fewest is not None else ""
        return InfeasibleError(
            f"parameters and optimizer states of `{answers.subject.name}` take "
            f"{bytes_text(model.least_bytes)}, {answers.devices} devices have {limit} each",
            hint=f"use at least {least_devices(model)} devices{enough}",
        )
    hint = "use a cluster with more devices or more memory"
    if fewest is not None and fewest.devices > answers.devices:
        hint = f"use {fewest.devices} devices"
    elif fewest is not None:
        hint = "use another batch, or number of devices"
    return NotFoundError(
        f"no plan of Megatron's family for `{answers.subject.name}` on {answers.devices} devices "
        f"fits {limit}",
        hint=hint,
    )


def _counts(text: str) -> list[int]:
    """Return the numbers of devices of a list."""
    found = [number_in(item.strip()) for item in text.split(",")]
    for count in found:
        POSITIVE_INTEGER.check("--devices", count)
    return [int(count) for count in found]
