"""``shardwright dump``: a model, a plan, or what a pass leaves."""

import argparse
from pathlib import Path

from shardwright.api import as_plan, load_model
from shardwright.ir.errors import PlanError
from shardwright.ir.export import to_dot, to_json
from shardwright.ir.graph import Graph
from shardwright.ir.text import to_text
from shardwright.passes.binding import bind_rank, rank_text
from shardwright.tools.main import UsageError
from shardwright.tools.options import add_compile_options, add_search, compile_model

_FORMATS = {"text": to_text, "dot": to_dot, "json": to_json}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "target", metavar="MODEL|PLAN", help="a model as `compile` takes it, or a plan's directory"
    )
    parser.add_argument("--after", metavar="PASS", help="compile, and print what this pass leaves")
    parser.add_argument("--rank", type=int, metavar="R", help="print the program of one rank")
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="(text)")
    add_search(parser)
    add_compile_options(parser, devices=False)


def run(arguments: argparse.Namespace) -> int:
    """Print."""
    graph = _graph(arguments)
    if arguments.rank is not None and arguments.format == "text":
        print(rank_text(graph, arguments.rank), end="")
        return 0
    if arguments.rank is not None:
        graph = bind_rank(graph, arguments.rank)
    print(_FORMATS[arguments.format](graph), end="")
    return 0


def _graph(arguments: argparse.Namespace) -> Graph:
    """Return the graph that is asked for."""
    if is_plan(arguments.target):
        if arguments.after is not None:
            raise PlanError(
                "a plan holds what the last pass left",
                arguments.target,
                "give the model to see what another pass leaves",
            )
        return as_plan(arguments.target).program
    if arguments.after is None and arguments.rank is None:
        ranks = arguments.devices if arguments.mode == "hybrid_parallel" else 1
        return load_model(arguments.target, arguments.batch, ranks).graph
    if arguments.after is not None and arguments.rank is not None:
        raise UsageError("a rank is bound after the last pass", hint="leave `--after` out")
    compilation = compile_model(arguments.target, arguments)
    if arguments.after is None:
        return compilation.plan.program
    return compilation.compiled.passes.after(arguments.after)


def is_plan(target: str) -> bool:
    """Return whether a target is a directory rather than a model."""
    return Path(target).is_dir()
