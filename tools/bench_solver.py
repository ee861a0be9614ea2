"""``shardwright bench solver``: instances of the contest, each within a time limit."""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from shardwright.ir.files.reading import from_json, read_bytes
from shardwright.ir.files.writing import check_names, write_files
from shardwright.ir.units import first_names, seconds_text
from shardwright.ir.values import POSITIVE, POSITIVE_INTEGER, SEED
from shardwright.solver.anytime.search import warm_up
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.conflict import memory_conflict
from shardwright.solver.formats.contest import contest_name, read_contest
from shardwright.solver.problem import Problem
from shardwright.solver.solution import relative_gap
from shardwright.solver.solve import solve
from shardwright.solver.work import Budget, Clock
from shardwright.tools.console.arguments import UsageError, add_number
from shardwright.tools.console.progress import following_search
from shardwright.tools.console.tables import print_table
from shardwright.tools.reports.documents import print_document

_SOLUTION = "the solution"


def add_solver_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".json or .json.gz")
    text = "time limit in seconds for each file, reading included (default 60)"
    add_number(parser, "--time-limit", POSITIVE, text, "S", 60.0)
    add_number(parser, "--seed", SEED, "seed of the search (default 0)", "N", 0)
    text = "number of processes (default 2)"
    add_number(parser, "--workers", POSITIVE_INTEGER, text, "N", 2)
    parser.add_argument(
        "--solution-out", type=Path, metavar="DIR", help="write the strategies to DIR/INSTANCE.json"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run_solver(arguments: argparse.Namespace) -> int:
    """Solve every file."""
    if arguments.solution_out is not None:
        names = [_solution_name(path) for path in arguments.files]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise UsageError(f"two instances would write `{twice}`", hint="solve them one by one")
        check_names(arguments.solution_out, names, _SOLUTION, _is_solution)
    for path in arguments.files:
        read_bytes(path)  # what cannot be read is told before loops are compiled for seconds
    with following_search("solver", "compiling the inner loops (once)"):
        warm_up()  # before any clock runs
    solved = [_solve_file(path, arguments) for path in arguments.files]
    rows = [{**row, "reason": reason or None} for row, reason in solved]
    if arguments.json:
        print_document(rows)
        return 0
    for row, reason in solved:
        if reason:
            print(f"{row['instance']}: {reason}")
    headings = ("instance", "status", "cost", "lower bound", "gap", "time", "nodes", "presolved")
    print_table("", headings, [_cells(row) for row in rows], right=(2, 3, 4, 5, 6, 7))
    return 0


def _solution_name(path: Path) -> str:
    return f"{contest_name(path)}.json"


def _is_solution(path: Path) -> bool:
    """Return whether a file holds strategies, as opposed to an instance."""
    try:
        content = from_json(read_bytes(path))
    except (OSError, ValueError):
        return False
    return isinstance(content, list) and all(type(item) is int for item in content)


def _reason(problem: Problem) -> str:
    """Return the reason why no assignment fits."""
    conflict = memory_conflict(problem)
    if conflict is None:
        return "no assignment fits, although each time alone could be met"
    names = first_names([problem.variables[index].name for index in conflict.variables])
    return (
        f"no assignment fits: at time {conflict.time}, {names} need at least "
        f"{_number(conflict.least)}, and the limit is {_number(conflict.limit)}"
    )


def _solve_file(path: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    started = time.monotonic()
    name = contest_name(path)
    with following_search(name, "reading") as progress:
        problem = read_contest(path)
        spent = time.monotonic() - started
        solution = solve(
            problem,
            method="anytime",
            budget=Budget(max(arguments.time_limit - spent, 0.0), Clock()),
            seed=arguments.seed,
            workers=arguments.workers,
            progress=lambda seconds, cost, bound: progress(spent + seconds, cost, bound),
        )
    chosen = solution.assignment
    if arguments.solution_out is not None:
        content = json.dumps([] if chosen is None else list(chosen)) + "\n"
        write_files(arguments.solution_out, {_solution_name(path): content.encode()}, _SOLUTION)
    judged = None if chosen is None else evaluate(problem, chosen)
    cost = math.inf if judged is None else judged.cost
    nodes = len(problem.variables)
    row = {
        "instance": name,
        "status": solution.status,
        "cost": cost,
        "lower_bound": solution.lower_bound,
        "gap": relative_gap(cost, solution.lower_bound),
        "seconds": round(time.monotonic() - started, 3),
        "feasible": judged is not None and judged.feasible,
        "nodes": nodes,
        "nodes_after_presolve": int(solution.statistics.get("variables_after_presolve", nodes)),
    }
    return row, _reason(problem) if solution.status == "infeasible" else ""


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["instance"],
        row["status"] if row["feasible"] or row["cost"] == math.inf else "not feasible",
        _number(row["cost"]),
        _number(row["lower_bound"]),
        f"{row['gap']:.4%}" if math.isfinite(row["gap"]) else "",
        seconds_text(row["seconds"]),
        str(row["nodes"]),
        str(row["nodes_after_presolve"]),
    )


def _number(value: float) -> str:
    return f"{value:,}".replace(",", " ") if math.isfinite(value) else ""
