"""``shardwright estimate``: the step, rates and memory of a plan given by its degrees."""

import argparse
from dataclasses import replace
from math import prod
from pathlib import Path

from shardwright.compiler.page.page import check_page
from shardwright.compiler.stages.places import limits_text
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.model_flops import batch_size
from shardwright.cost_model.pipelines.mixed import any_cluster
from shardwright.ir.errors import InfeasibleError
from shardwright.ir.units import bytes_text
from shardwright.models import with_batch, with_new_size
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.answers.told import Told
from shardwright.tools.answers.training import Asked, add_training
from shardwright.tools.compile import default_directory
from shardwright.tools.console.options import (
    HTML,
    add_compile_options,
    add_html,
    add_model,
    add_sequence,
    add_software,
    add_verbose,
    memory_limit_of_plan,
    take_batch,
)
from shardwright.tools.console.tables import print_line
from shardwright.tools.estimate.estimate_document import Estimated
from shardwright.tools.estimate.estimate_report import print_estimate
from shardwright.tools.plan_files import read_plan_file
from shardwright.tools.plan_files.choices import estimate_layouts, is_layouts
from shardwright.tools.reports.documents import print_document, timeline_of
from shardwright.tools.reports.named_plans import compile_named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_model(parser)
    add_compile_options(parser, devices=False, search=False, plan=False)
    add_sequence(parser)
    parser.add_argument(
        "--plan",
        required=True,
        metavar="PLAN",
        help="the degrees: `tensor=8,data=4,zero=1,sequence_parallel`; or a script with the flags "
        "of Megatron (.sh, .args), a TOML file of torchtitan, or JSON of DeepSpeed; or layouts by "
        "name: placements of DTensor or partition specs (.json), strategies of MindSpore (.ckpt)",
    )
    add_software(parser)
    add_training(parser)
    parser.set_defaults(devices=None)
    add_html(parser, "MODEL-SIZES-N.html")
    add_verbose(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Build the plan and print its figures, whether it fits or not.

    Raises
    ------
    InfeasibleError
        If it does not fit; the figures are printed first.
    """
    arguments.model = with_new_size(arguments.model, "sequence", arguments.sequence)
    if is_layouts(arguments.plan):
        return estimate_layouts(arguments)
    asked = Asked.of(arguments)
    read_plan_file(arguments)
    plan, run_by = NamedPlan.parse(arguments.plan), software(arguments.software)
    if arguments.devices is None:
        arguments.devices = prod((plan.tensor, plan.data or 1, plan.pipeline, plan.context))
    chosen = take_batch(arguments, arguments.model, arguments.devices)
    page = _page(arguments)
    described = any_cluster(arguments.cluster).used_by(arguments.devices)
    made_for = described.for_programs_of(run_by)
    compilation = compile_named(arguments.model, arguments, cluster=made_for)
    compilation = replace(compilation, cluster=described)
    limit = memory_limit_of_plan(arguments, compilation)
    timed = replace(compilation, cluster=described.run_by(run_by))
    timeline = timeline_of(timed, limit)
    document = compilation.plan.document
    asked.check(arguments.model, batch_size(compilation.plan.model).tokens)
    found = Estimated(compilation, timed.cluster, timeline, limit, arguments.memory_limit)
    told = Told.of(compilation, timed.cluster, timeline, limit, asked, found.kept)
    if page is not None:
        timed.write_page(page, timeline, told.sentences(chosen))
    if arguments.json:
        print_document({**found.document, **told.training_document})
    else:
        print_estimate(found, told.sentences(chosen), arguments.verbose)
        if page is not None:
            print_line("page", str(page))
    if not found.fits:
        raise InfeasibleError(_too_much(found), hint=NamedPlan.parse(document.how).hint)
    return 0


def _too_much(found: Estimated) -> str:
    """Return what a plan takes that does not fit, and the limit."""
    document, kept = found.planned.plan.document, found.kept
    needed, limit = bytes_text(document.memory.peak_bytes), limits_text(found.limit)
    if kept is not None and not kept.fits:
        needed = f"{bytes_text(kept.report.peak_bytes)} as {kept.software.name} keeps tensors"
        limit = bytes_text(kept.limit)
    return f"the plan `{document.how}` takes {needed} on each device, the limit is {limit}"


def _page(arguments: argparse.Namespace) -> Path | None:
    """Return the file of the page, which can be written; None where none is asked for."""
    page: Path | None = arguments.html
    if page == HTML:
        model = with_batch(arguments.model, arguments.batch)
        page = Path(f"{default_directory(model, arguments.devices).name}.html")
    if page is not None:
        check_page(page)
    return page
