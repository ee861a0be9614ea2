"""``shardwright dump``: a model, a plan, or what a pass leaves."""

import argparse
from difflib import unified_diff
from pathlib import Path

from shardwright.api import as_plan
from shardwright.compiler.plans.binding import bind_rank, rank_text
from shardwright.ir.errors import PlanError
from shardwright.ir.export import to_dot, to_json
from shardwright.ir.graph import Graph
from shardwright.ir.text import to_text
from shardwright.models import load_model
from shardwright.operators.models.precision import MASTER
from shardwright.passes.manager import pass_not_run
from shardwright.planner.pipelines import pass_names
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.options import (
    add_compile_options,
    compile_model,
    refuse_compile_options,
)
from shardwright.tools.console.tables import styled
from shardwright.zoo import assumed_precision

_STYLES = {"-": "red", "+": "green", "@": "cyan"}
_FORMATS = {"text": to_text, "dot": to_dot, "json": to_json}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "target", metavar="MODEL|PLAN", help="a model as `compile` takes it, or a plan's directory"
    )
    parser.add_argument("--after", metavar="PASS", help="compile, and print what this pass leaves")
    parser.add_argument("--diff", metavar="PASS", help="compile, and print what this pass changes")
    parser.add_argument("--rank", type=int, metavar="R", help="print the program of one rank")
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="(text)")
    add_compile_options(parser, devices=False)


def run(arguments: argparse.Namespace) -> int:
    """Print."""
    _check_used(arguments)
    if arguments.diff is not None:
        print(_diff(arguments), end="")
        return 0
    graph = _graph(arguments)
    if arguments.rank is not None and arguments.format == "text":
        print(rank_text(graph, arguments.rank), end="")
        return 0
    if arguments.rank is not None:
        graph = bind_rank(graph, arguments.rank)
    print(_FORMATS[arguments.format](graph), end="")
    return 0


def _check_used(arguments: argparse.Namespace) -> None:
    """Refuse options of a compilation where there is none."""
    if is_plan(arguments.target):
        refuse_compile_options(arguments, (), "a plan is compiled already")
    elif arguments.after is None and arguments.diff is None and arguments.rank is None:
        hand_written = arguments.mode == "hybrid_parallel"
        names = ("devices", "batch", "mode") if hand_written else ("batch",)
        refuse_compile_options(arguments, names, "the model is printed as it was traced")
    elif arguments.explain_search:
        raise UsageError(
            "`--explain-search` has no effect, graphs alone are printed", hint="leave it out"
        )


def _graph(arguments: argparse.Namespace) -> Graph:
    """Return the graph that is asked for."""
    if is_plan(arguments.target):
        _check_no_pass(arguments.target, arguments.after)
        return as_plan(arguments.target).program
    if arguments.after is None and arguments.rank is None:
        return _traced(arguments)
    if arguments.after is not None and arguments.rank is not None:
        raise UsageError("a rank is bound after the last pass", hint="leave `--after` out")
    _check_runs(arguments.after, arguments)
    compilation = compile_model(arguments.target, arguments)
    if arguments.after is None:
        return compilation.plan.program
    return compilation.compiled.passes.after(arguments.after)


def _check_no_pass(target: str, name: str | None) -> None:
    if name is not None:
        raise PlanError(
            "a plan holds what the last pass left",
            target,
            "give the model to see what another pass leaves",
        )


def _check_runs(name: str | None, arguments: argparse.Namespace) -> None:
    """Refuse a pass that the mode does not run, before a search that takes long."""
    precision = arguments.precision or assumed_precision(arguments.target) or MASTER
    recompute = arguments.recompute or "search"
    micro_batches = "search" if arguments.plan is not None else arguments.micro_batches or 1
    names = pass_names(arguments.mode, arguments.extra_passes, precision, micro_batches, recompute)
    if name is not None and name not in names:
        raise pass_not_run(name, names)


def _diff(arguments: argparse.Namespace) -> str:
    """Return the lines that a pass takes away and adds."""
    if arguments.after is not None or arguments.rank is not None or arguments.format != "text":
        hint = "leave `--after`, `--rank` and `--format` out"
        raise UsageError("`--diff` shows two graphs as text", hint=hint)
    if is_plan(arguments.target):
        _check_no_pass(arguments.target, arguments.diff)
    _check_runs(arguments.diff, arguments)
    passes = compile_model(arguments.target, arguments).compiled.passes
    record = passes.record(arguments.diff)
    before, after = to_text(record.before), to_text(record.graph)
    lines = unified_diff(
        before.splitlines(),
        after.splitlines(),
        f"before {arguments.diff}",
        f"after {arguments.diff}",
        n=2,
        lineterm="",
    )
    if before == after:
        return f"`{arguments.diff}` changes nothing\n"
    return "".join(styled(line, _STYLES.get(line[:1], "")) + "\n" for line in lines)


def _traced(arguments: argparse.Namespace) -> Graph:
    """Return the model as it was traced."""
    ranks = arguments.devices if arguments.mode == "hybrid_parallel" else 1
    return load_model(arguments.target, arguments.batch, ranks).graph


def is_plan(target: str) -> bool:
    """Return whether a target is a directory rather than a model."""
    return Path(target).is_dir()
