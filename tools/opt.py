"""``shardwright opt``: run any passes on the text of a graph."""

import argparse
import sys
from pathlib import Path

from shardwright.ir.errors import IRError, OutputError
from shardwright.ir.files.reading import read_bytes
from shardwright.ir.files.writing import Recognizer, begins, check_file, write_file
from shardwright.ir.graph import Graph
from shardwright.ir.text import parse, to_text
from shardwright.operators.verify import verify
from shardwright.passes.base import PASSES, Pass, options_of, summary_of
from shardwright.passes.manager import PassManager, check_graphs
from shardwright.passes.pipeline import BUILT_IN, parse_pipeline, value_text
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.tables import print_table
from shardwright.tools.passes_document import HEAD, document

_STANDARD = "-"
_is_graph: Recognizer = begins(b"graph ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "graph", metavar="FILE", nargs="?", help="the text of a graph, `-` for standard input"
    )
    parser.add_argument(
        "--passes", metavar="PASSES", help="`canonicalize,differentiate{loss_scale=2}`"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, help="write the graph instead of printing it"
    )
    parser.add_argument(
        "--verify-each",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="verify the graph after every pass, and the properties that the pass ensures (on)",
    )
    parser.add_argument(
        "--dump-ir", type=Path, metavar="DIR", help="write the graph after every pass: NN_PASS.ir"
    )
    parser.add_argument("--list", action="store_true", help="list the passes with their options")
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="write docs/passes.md, in the repository"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the passes, or list them."""
    if arguments.list or arguments.markdown is not None:
        _check_alone(arguments)
        if arguments.markdown is not None:
            _write_document(arguments.markdown)
        else:
            _print_passes()
        return 0
    if arguments.graph is None or arguments.passes is None:
        missing = "FILE" if arguments.graph is None else "`--passes`"
        hint = "write `shardwright opt FILE --passes PASSES`, or `--list` for all passes"
        raise UsageError(f"{missing} is missing", hint=hint)
    pipeline = parse_pipeline(arguments.passes)
    _check_outputs(arguments)
    manager = PassManager(arguments.verify_each)
    text = to_text(manager.run_all(pipeline, _read(arguments.graph)))
    if arguments.dump_ir is not None:
        manager.write(arguments.dump_ir)
    if arguments.out is None:
        print(text, end="")
    else:
        write_file(arguments.out, text.encode(), "the graph", _is_graph)
    return 0


def _check_alone(arguments: argparse.Namespace) -> None:
    """Refuse options that run passes, where none runs."""
    mode = "--list" if arguments.list else "--markdown"
    unused = {
        "FILE": arguments.graph,
        "`--passes`": arguments.passes,
        "`--out`": arguments.out,
        "`--dump-ir`": arguments.dump_ir,
        "`--no-verify-each`": None if arguments.verify_each else True,
        "`--markdown`": arguments.markdown if arguments.list else None,
    }
    for name, value in unused.items():
        if value is not None:
            hint = "leave one of them out"
            raise UsageError(f"{name} has no effect with `{mode}`", hint=hint)


def _check_outputs(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        check_file(arguments.out, "the graph", _is_graph)
    if arguments.dump_ir is not None:
        check_graphs(arguments.dump_ir)


def _read(path: str) -> Graph:
    """Read and verify a graph.

    Raises
    ------
    IRError
        If there is no such file, or it holds no graph that is well formed.
    """
    name = "standard input" if path == _STANDARD else path
    try:
        data = sys.stdin.buffer.read() if path == _STANDARD else read_bytes(Path(path))
        text = data.decode("utf-8")
    except OSError as error:
        raise IRError(f"cannot read the graph: {(error.strerror or '').lower()}", name) from error
    except UnicodeDecodeError as error:
        raise IRError("cannot read the graph: it is not text", name) from error
    try:
        graph = parse(text)
        verify(graph)
    except IRError as error:
        where = f"{name}, {error.where}" if error.where else name
        raise IRError(error.what, where, error.hint) from None
    return graph


def _print_passes() -> None:
    others = [PASSES[name] for name in PASSES if PASSES[name] not in BUILT_IN]
    rows = [(kind.name, summary_of(kind), _options_text(kind)) for kind in (*BUILT_IN, *others)]
    print_table("", ("pass", "what it does", "options"), rows)


def _options_text(kind: type[Pass]) -> str:
    """Return the options of a pass with their defaults, or what those without one have to be."""
    return "\n".join(
        f"{option.name}: {option.expected}"
        if option.required
        else f"{option.name}={value_text(option.literal(option.default))}"
        for option in options_of(kind)
    )


def _write_document(path: Path) -> None:
    golden = Path("tests/golden")
    if not golden.is_dir():
        raise OutputError(
            "the document shows golden files, and there is no folder `tests/golden`",
            hint="run it in the repository",
        )
    write_file(path, document(golden).encode(), "the document", begins(HEAD[:8].encode()))
