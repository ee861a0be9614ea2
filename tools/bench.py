"""``shardwright bench``: search modes side by side, and instances of the assignment problem."""

import argparse
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.api import Compilation
from shardwright.ir.errors import InfeasibleError, ShardwrightError
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.strategy_search import SEARCH_MODES
from shardwright.solver.solution import relative_gap
from shardwright.tools.bench_solver import add_solver_arguments, run_solver
from shardwright.tools.documents import compile_document, peak_memory_bytes, print_document
from shardwright.tools.main import HelpFormatter
from shardwright.tools.options import add_compile_options, add_model, compile_model
from shardwright.tools.report import gap_text
from shardwright.tools.tables import print_table, width

_GIB = 2**30
_FAILED = dict.fromkeys(
    (
        "objective",
        "lower_bound",
        "lower_bound_covers",
        "gap",
        "predicted_step_seconds",
        "memory_bytes_per_device",
        "search_seconds",
        "compile_seconds",
    )
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    strategies = kinds.add_parser(
        "strategies",
        help="every search mode and baseline side by side",
        formatter_class=HelpFormatter,
    )
    add_model(strategies, several=True)
    add_compile_options(strategies, search=False)
    strategies.add_argument("--json", action="store_true", help="print one JSON document")
    solver = kinds.add_parser(
        "solver", help="instances of the assignment problem", formatter_class=HelpFormatter
    )
    add_solver_arguments(solver)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark that is asked for."""
    if arguments.kind == "solver":
        return run_solver(arguments)
    rows = [row for model in arguments.model for row in _bench_model(model, arguments)]
    if arguments.json:
        print_document([row.document for row in rows])
        return 0
    for model in arguments.model:
        _print_model(model, [row for row in rows if row.model == model], arguments)
    return 0


@dataclass(frozen=True)
class _Row:
    """One search mode on one model."""

    model: str
    document: Mapping[str, Any]
    limit: float
    problem: str = ""


def _bench_model(model: str, arguments: argparse.Namespace) -> list[_Row]:
    """Compile with every search mode.

    Only the exact search plans within the memory; the others may use any amount, so that it can be
    said whether what they find fits.
    """
    rows = []
    for search in SEARCH_MODES:
        limit = {} if search == "exact" else {"memory_limit": math.inf}
        try:
            rows.append(_row(model, compile_model(model, arguments, search=search, **limit)))
        except InfeasibleError as error:
            rows.append(_failed(model, search, arguments, error))
    return _with_gaps(rows, arguments)


def _row(model: str, compilation: Compilation) -> _Row:
    document = compile_document(compilation)
    del document["strategies"]
    return _Row(model, document, compilation.cluster.device.memory_bytes)


def _failed(
    model: str, search: str, arguments: argparse.Namespace, error: ShardwrightError
) -> _Row:
    document = {
        "model": model,
        "devices": arguments.devices,
        "mode": arguments.mode,
        "search": search,
        "cost_model": arguments.cost_model,
        "status": "infeasible",
        **_FAILED,
        "peak_memory_bytes": peak_memory_bytes(),
        "parameters": {},
        "communication": {},
    }
    return _Row(model, document, 0.0, str(error))


def _with_gaps(rows: list[_Row], arguments: argparse.Namespace) -> list[_Row]:
    """Give every mode the lower bound of the exact search, where it knows none itself."""
    bound = rows[0].document["lower_bound"] or 0.0
    found = []
    for row in rows:
        document = dict(row.document)
        if document["objective"] is not None and not document["lower_bound"]:
            document["lower_bound"] = bound
            document["gap"] = relative_gap(document["objective"], bound)
        limit = row.limit if arguments.memory is None else arguments.memory * _GIB
        found.append(_Row(row.model, document, limit, row.problem))
    return found


def _print_model(model: str, rows: list[_Row], arguments: argparse.Namespace) -> None:
    headings = ("search", "step", "gap", "memory", "fits", "sends", "searching", "compiling")
    title = f"{model} on {arguments.devices} devices of {arguments.cluster}"
    print_table(title, headings, [_cells(row) for row in rows], right=(1, 2, 3, 5, 6, 7))
    for row in rows:
        if row.problem:
            print(textwrap.fill(f"{row.document['search']}: {row.problem}", width()))


def _cells(row: _Row) -> tuple[str, ...]:
    document = row.document
    name = str(document["search"])
    if document["objective"] is None:
        return (name, "", "", "", "no", "", "", "")
    memory = document["memory_bytes_per_device"]
    sent = sum(volume["bytes"] for volume in document["communication"].values())
    return (
        name,
        seconds_text(document["predicted_step_seconds"]),
        gap_text(document["gap"]) if document["lower_bound"] else "",
        bytes_text(memory),
        "yes" if memory <= row.limit else "no",
        bytes_text(sent),
        seconds_text(document["search_seconds"]),
        seconds_text(document["compile_seconds"]),
    )
