"""``shardwright bench``: a comparison of searches, and instances of the assignment problem."""

import argparse
import math
import textwrap
from typing import Any

from shardwright.compiler.outer.meshes import DEFAULT
from shardwright.cost_model.cluster import cluster as cluster_named
from shardwright.ir.errors import NoPlanError
from shardwright.ir.units import bytes_text, gap_text, seconds_text
from shardwright.models import with_batch
from shardwright.planner.options import DEFAULTS
from shardwright.search.driver import SEARCHES
from shardwright.search.named_plan import NamedPlan
from shardwright.solver.solution import relative_gap
from shardwright.tools.bench_solver import add_solver_arguments, run_solver
from shardwright.tools.console.arguments import HelpFormatter, UsageError, width
from shardwright.tools.console.options import (
    add_compile_options,
    add_model,
    compile_model,
    memory_limit,
    with_options,
)
from shardwright.tools.console.tables import print_table
from shardwright.tools.reports.documents import compile_document, no_plan_document, print_document
from shardwright.tools.reports.named_plans import named_rows

_Document = dict[str, Any]
_FITS = {True: "yes", False: "no", None: "unknown"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    strategies = kinds.add_parser(
        "strategies",
        help="compare every search, baseline, and the best named plan",
        formatter_class=HelpFormatter,
    )
    add_model(strategies, several=True)
    add_compile_options(strategies, search=False, plan=False)
    strategies.add_argument(
        "--plan",
        action="append",
        default=[],
        dest="plans",
        metavar="PLAN",
        help="also this named plan, on the mesh of its degrees; repeatable",
    )
    strategies.add_argument("--json", action="store_true", help="print one JSON document")
    solver = kinds.add_parser(
        "solver", help="solve instances of the assignment problem", formatter_class=HelpFormatter
    )
    add_solver_arguments(solver)


def run(arguments: argparse.Namespace) -> int:
    """Run a benchmark."""
    if arguments.kind == "solver":
        return run_solver(arguments)
    if arguments.mode != "auto_parallel":
        raise UsageError(
            f"`bench strategies` compares searches, the mode `{arguments.mode}` has none",
            hint="leave `--mode` out",
        )
    if arguments.stages not in (None, DEFAULTS["stages"]):
        raise UsageError(
            "`bench strategies` compares searches for one pipeline stage, `--stages` is "
            f"{arguments.stages}",
            hint="leave `--stages` out; pipelines are compared by `--plan pipeline=2` and "
            "`compile`",
        )
    for plan in arguments.plans:
        NamedPlan.parse(plan).on(arguments.devices)
    documents = {model: _bench_model(model, arguments) for model in dict.fromkeys(arguments.model)}
    if arguments.json:
        print_document([row for model in arguments.model for row in documents[model]])
        return 0
    for model, rows in documents.items():
        _print_model(model, rows, arguments)
    return 0


def _bench_model(model: str, arguments: argparse.Namespace) -> list[_Document]:
    """Compile with every search.

    Only the exact search gets the memory limit, the gap and the objective; the others get no
    limit, so that the table shows whether their plans fit.
    """
    cluster = cluster_named(arguments.cluster)
    limit = memory_limit(arguments, cluster)
    # The searches are compared on one mesh, of a large model too.
    arguments = with_options(arguments, mesh=arguments.mesh or DEFAULT)
    rows = []
    for search in SEARCHES:
        asked, free = arguments, {}
        if search != "exact":
            asked = with_options(arguments, gap=None, objective=None)
            free = {"memory_limit": math.inf}
        try:
            compilation = compile_model(model, asked, search=search, **free)
            rows.append(compile_document(compilation, limit))
        except NoPlanError as error:
            how = with_options(arguments, search=search, plan=None)
            name, devices = with_batch(model, arguments.batch), arguments.devices
            rows.append(no_plan_document(error, name, cluster, devices, limit, how))
        del rows[-1]["strategies"]
    return [*_with_gaps(rows), *named_rows(model, arguments, cluster, limit)]


def _with_gaps(rows: list[_Document]) -> list[_Document]:
    """Give every mode the lower bound of the exact search, where it knows none itself.

    Where that is of the overlapped step, the objective of every mode is its overlapped step.
    """
    bound, kind = rows[0]["lower_bound"] or 0.0, rows[0]["objective_is"]
    for row in rows:
        if row["objective"] is not None and row["objective_is"] != kind == "overlapped step":
            row |= {"objective": row["overlapped_step_seconds"], "objective_is": kind}
            row |= {"lower_bound": 0.0, "status": "feasible"}
        if row["objective"] is not None and not row["lower_bound"]:
            row["lower_bound"], row["gap"] = bound, relative_gap(row["objective"], bound)
    return rows


def _print_model(model: str, rows: list[_Document], arguments: argparse.Namespace) -> None:
    priced = arguments.cost_model != "time"  # the cost is another number than the step
    cost = ("cost",) if priced else ()
    headings = ("search", *cost, "step", "gap", "memory", "fits", "sends", "searching", "compiling")
    title = f"{model} on {arguments.devices} devices of {arguments.cluster}"
    right = [i for i, heading in enumerate(headings) if heading not in ("search", "fits")]
    print_table(title, headings, [_cells(row, priced) for row in rows], right=tuple(right))
    for row in rows:
        note = row["reason"] or _note(row)
        if note:
            print(textwrap.fill(f"{_name(row)}: {note}", width()))


def _name(row: _Document) -> str:
    return str(row["search"]) if row["named_plan"] is None else str(row["named_plan"])


def _note(row: _Document) -> str:
    """Return what a strategy made by hand tells of itself after its name; empty for nothing."""
    name, _, note = str(row["how"] or "").partition(", ")
    return note if name == row["search"] else ""


def _step(row: _Document) -> float:
    """Return the step that the gap is about: the overlapped one, or the serial one."""
    is_overlapped = row["objective_is"] == "overlapped step"
    return float(row["objective" if is_overlapped else "predicted_step_seconds"])


def _cells(row: _Document, priced: bool) -> tuple[str, ...]:
    name, fits, objective = _name(row), _FITS[row["fits"]], row["objective"]
    if objective is None:
        return (name, *("",) * priced, "", "", "", fits, "", "", "")
    sent = sum(volume["bytes"] for volume in row["communication"].values())
    return (
        name,
        *(f"{objective:.6g}",) * priced,
        seconds_text(_step(row)),
        gap_text(row["gap"]) if row["lower_bound"] else "",
        bytes_text(row["memory_bytes_per_device"]),
        fits,
        bytes_text(sent),
        seconds_text(row["search_seconds"]),
        seconds_text(row["compile_seconds"]),
    )
