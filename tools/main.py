"""The command line: ``shardwright COMMAND ...``.

Only the module of the command that is asked for is imported, so that help is fast.
"""

import argparse
import gc
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn, TextIO

from shardwright import __version__
from shardwright.ir.errors import (
    InfeasibleError,
    NotFoundError,
    ShardwrightError,
    ShardwrightWarning,
)
from shardwright.ir.versions import PACKAGES, installed, tested
from shardwright.tools.console.arguments import HelpFormatter, Parser, UsageError
from shardwright.tools.console.endings import ExitCode, own_rank, say, terminated_as_interrupted

COMMANDS = {
    "compile": "choose how to split a model over devices, and write the plan",
    "estimate": "print the step, rates and memory of a plan given by its degrees",
    "diff": "tell what changed from a plan to another, and why the one is faster",
    "fit": "tell whether a model fits on devices, with which plan, and what to change",
    "run": "train on a plan",
    "launch": "run a script as several processes, one for each rank",
    "reshard": "cut a checkpoint anew for another plan, or merge it to one file",
    "export": "write a plan as files of another system",
    "certificates": "make certificates, to try encrypted messages with",
    "prove": "prove that a plan computes its model, at full size, without running it",
    "verify": "prove a plan, and compare its numbers with one device",
    "dump": "print a model, a plan, or the graph after a pass",
    "opt": "run any passes on the text of a graph, or list the passes",
    "bench": "compare searches, or solve instances of the assignment problem",
    "models": "list the models of the zoo and their sizes",
    "operators": "list the operators with their rules, and the coverage of MindSpore",
    "clusters": "list the clusters that come with the package",
    "check": "compare a parallel PyTorch program with one device, and find missing or doubled sums",
    "calibrate": "measure this machine, or read measurements, and write a cluster file",
}
EXAMPLES = {
    "compile": (
        "mlp --devices 8",
        "gpt:layers=24,hidden=1024,heads=16,batch=16,sequence=512 --devices 8 --out plans/gpt",
        "my_model.py:network --devices 16 --cluster my_cluster.yaml --memory 24 --optimizer adam",
    ),
    "estimate": (
        "gpt2-xl:batch=64 --plan tensor=8,data=8,zero=1,sequence_parallel",
        "llama3-8b --batch 64 --devices 64 --plan tensor=2,zero=3 --cluster a100-pod --json",
    ),
    "fit": (
        "llama3-70b --devices 64 --batch 64",
        "gpt3-175b --devices 64,128,256 --batch 256 --cluster a100-pod --tokens 300e9 "
        "--price-per-hour 2",
    ),
    "diff": (
        "plans/kept plans/mlp-8",
        "plans/kept plans/mlp-8 --max-slower 1%",
    ),
    "run": (
        "plans/mlp-8 --steps 100",
        "plans/mlp-8 --data path/to/mnist --save trained.npz",
        "plans/mlp-8 --checkpoints checkpoints --save-every 50 --keep 2",
        "plans/mlp-8 --backend mpi      (started as: mpiexec -n 8 shardwright run ...)",
    ),
    "launch": (
        "-n 4 train.py",
        "-n 4 --restarts 3 --timeout 120 train.py",
        "--worker_num=8 --local_worker_num=8 --log_dir=logs train.py --epochs 3",
        "--worker_num=8 --local_worker_num=4 --master_addr=10.0.0.1 --node_rank=1 train.py",
        "--worker_num=2 --server_num=2 train.py      (with parameter servers)",
    ),
    "reshard": (
        "checkpoints --to plans/mlp-4 --out for-four",
        "checkpoints/step-200 --merge --out whole",
    ),
    "export": ("plans/mlp-8 --to placements --out for-torch",),
    "certificates": ("certificates", "certificates --host 10.0.0.1 --server_password prompt"),
    "check": ("torch_program.py",),
    "calibrate": (
        "--out machine.yaml",
        "--out machine.yaml         (started as: mpiexec -n 2 shardwright calibrate ...)",
        "--out mine.yaml --cluster h100-pod --nccl all_reduce.log --csv operators.csv",
    ),
    "prove": ("plans/mlp-8",),
    "verify": ("plans/mlp-8",),
    "dump": (
        "gpt:layers=2 --format dot",
        "gpt:layers=2 --devices 8 --after partition",
        "gpt:layers=2 --devices 8 --diff insert_mirrors",
        "plans/mlp-8 --rank 3",
    ),
    "opt": (
        "graph.ir --passes canonicalize,differentiate",
        "graph.ir --passes 'differentiate{loss_scale=2},append_optimizer{optimizer=adam}'",
        "--list",
    ),
    "bench": (
        "strategies gpt:layers=24,hidden=1024,heads=16,batch=16,sequence=512 --devices 8",
        "solver instance.json.gz --time-limit 60",
    ),
}
_OWN_SIGNALS = ("run", "launch")  # commands that end what they have begun, and save it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: one of `ExitCode`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A compilation keeps most objects, and makes few cycles.
    gc.set_threshold(*map(max, gc.get_threshold(), (500_000, 20, 100)))
    try:
        with _warnings_in_one_line(), _complete_output():
            return _dispatch(given)
    except ShardwrightError as error:
        say(str(error))
        return _exit_code(error)
    except BrokenPipeError:
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        place = f" (in {error.filename})" if error.filename else ""
        say(f"{(error.strerror or str(error)).lower()}{place}")
    except MemoryError:
        say("out of memory on this machine")
    except KeyboardInterrupt:
        say("interrupted")
        return ExitCode.INTERRUPTED
    return ExitCode.MISTAKE


def _exit_code(error: ShardwrightError) -> int:
    if isinstance(error, InfeasibleError):
        return ExitCode.INFEASIBLE
    return ExitCode.UNDECIDED if isinstance(error, NotFoundError) else ExitCode.MISTAKE


@contextmanager
def _complete_output() -> Iterator[None]:
    """Flush the buffered output, so that its errors set the exit code.

    Python itself reports them only after the program has ended.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have every character
    try:
        yield
    finally:
        if sys.stdout is not None:
            _flush(sys.stdout)


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):  # the rest of the buffer is discarded
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Write each warning as one line on standard error."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", ShardwrightWarning)
        warnings.showwarning = show
        yield


def _dispatch(given: list[str]) -> int:
    overview = _overview()
    with _told_once():
        known = overview.parse_args(given[:1])
        if known.command is not None:
            run, arguments = _parsed(known.command, given[1:])
    if known.command is None:
        overview.print_help()
        return 0
    if known.command in _OWN_SIGNALS:
        return run(arguments)
    with terminated_as_interrupted():
        return run(arguments)


def _parsed(
    name: str, given: list[str]
) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    """Return what runs a command, and its arguments."""
    if name not in COMMANDS:
        commands = ", ".join(COMMANDS)
        raise UsageError(f"unknown command `{name}`", hint=f"expected one of {commands}")
    rest = _load_plugins(given)
    module = import_module(f"shardwright.tools.{name}")
    command = Parser(
        prog=f"shardwright {name}",
        description=_sentence(COMMANDS[name]),
        epilog=_examples(name),
        formatter_class=HelpFormatter,
    )
    module.add_arguments(command)
    _add_plugin(command)
    return module.run, command.parse_args(rest)


@contextmanager
def _told_once() -> Iterator[None]:
    """Let the first of the processes that a launcher starts alike tell what is wrong."""
    try:
        yield
    except ShardwrightError:
        if own_rank():
            raise SystemExit(ExitCode.MISTAKE) from None
        raise


def _load_plugins(arguments: list[str]) -> list[str]:
    """Load installed plugins and the files of ``--plugin``; return the other arguments.

    Done before the command is imported, since its options list what is registered.
    """
    parser = Parser(prog="shardwright", add_help=False, allow_abbrev=False)
    _add_plugin(parser)
    found, rest = parser.parse_known_args(arguments)
    plugins = import_module("shardwright.plugins")
    plugins.load_installed_plugins()
    for path in found.plugin:
        plugins.load_plugin(path)
    return rest


def _add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file that registers operators, passes, searches or cost profiles",
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for kind in action.choices.values():
                _add_plugin(kind)


class _Versions(argparse.Action):
    """Print the versions of the product and of what it can use, and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print a line for each package; those that are not installed share one."""
        print(f"shardwright {__version__}")
        print(f"python {platform.python_version()}")
        for package in PACKAGES:
            if found := installed(package):
                known = tested().get(package)
                outside = f" (tested with {known})" if known and found not in known else ""
                print(f"{package} {found}{outside}")
        if absent := [package for package in PACKAGES if not installed(package)]:
            print(f"not installed: {', '.join(absent)}")
        parser.exit()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _examples(command: str) -> str | None:
    lines = [f"  shardwright {command} {example}" for example in EXAMPLES.get(command, ())]
    return "examples:\n" + "\n".join(lines) if lines else None


def _overview() -> Parser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, what in COMMANDS.items()]
    parser = Parser(
        prog="shardwright",
        usage="shardwright COMMAND ...",
        description="An auto-parallel graph compiler: from a model and a cluster to verified "
        "per-rank programs.",
        epilog="commands:\n"
        + "\n".join(lines)
        + "\n\nshardwright COMMAND --help shows the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Versions, nargs=0, help="print versions and exit")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
