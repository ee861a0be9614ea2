"""Options that several commands share, and what they ask of the compiler."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from shardwright.api import DEFAULT_CLUSTER, Compilation, compile
from shardwright.compiler.options import COST_MODELS, MODES, CompileOptions
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.values import POSITIVE, POSITIVE_INTEGER, SEED, SHARE, Range
from shardwright.passes.optimizer import STATES, Optimizer
from shardwright.search.driver import SEARCHES
from shardwright.tools.main import UsageError
from shardwright.tools.progress import following_search

_GIB = 2**30
_MODEL = "a model of the zoo, with its sizes: `gpt:layers=4`; `file.py:function`; or `file.onnx`"
_MODES = "who decides what: " + ", ".join(MODES)


def add_model(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the argument MODEL."""
    parser.add_argument("model", metavar="MODEL", nargs="+" if several else None, help=_MODEL)


def add_compile_options(
    parser: argparse.ArgumentParser, devices: bool = True, search: bool = True
) -> None:
    """Add what says for what, and how, a model is compiled."""
    place = parser.add_argument_group("for what")
    place.add_argument(
        "--devices", type=positive, required=devices, default=1, metavar="N", help="number of ranks"
    )
    place.add_argument(
        "--cluster",
        default=DEFAULT_CLUSTER,
        metavar="NAME|FILE",
        help=f"the devices and their links; see `shardwright clusters` (default {DEFAULT_CLUSTER})",
    )
    place.add_argument(
        "--mesh",
        metavar="SHAPE",
        help="`2x4`, `data=2,model=4`, or `search` for the best of several (default the cluster's)",
    )
    place.add_argument(
        "--memory", type=positive_number, metavar="GIB", help="memory of a device (the cluster's)"
    )
    place.add_argument(
        "--batch", type=positive, metavar="B", help="size of the batch (the model's)"
    )
    _add_decisions(parser.add_argument_group("how"), search)
    _add_training_options(parser)


def refuse_compile_options(
    arguments: argparse.Namespace, allowed: Sequence[str], reason: str
) -> None:
    """Refuse options that say how to compile, where nothing is compiled.

    Raises
    ------
    UsageError
        If one that is not among the allowed ones has another value than its default.
    """
    parser = argparse.ArgumentParser()
    add_compile_options(parser, devices=False)
    for name, default in vars(parser.parse_args([])).items():
        if name not in allowed and getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"`{option}` has no effect, {reason}", hint="leave it out")


def _add_decisions(how: argparse._ArgumentGroup, search: bool) -> None:
    how.add_argument(
        "--mode", choices=MODES, default=MODES[0], metavar="MODE", help=f"{_MODES} (default first)"
    )
    if search:
        how.add_argument(
            "--search",
            choices=tuple(SEARCHES),
            default=CompileOptions.search,
            metavar="SEARCH",
            help=f"how strategies are chosen: {', '.join(SEARCHES)} (default first)",
        )
    how.add_argument(
        "--cost-model",
        choices=COST_MODELS,
        default="time",
        help="what is minimised: seconds of a step, or MindSpore's cost (default time)",
    )
    how.add_argument(
        "--strategies",
        type=Path,
        metavar="FILE",
        help="strategies to pin, as in a plan's strategies.json",
    )
    how.add_argument(
        "--dataset-strategy",
        choices=("data_parallel", "full_batch"),
        metavar="STRATEGY",
        help="how batches arrive: data_parallel, full_batch (default as it suits)",
    )
    how.add_argument(
        "--optimizer-parallel",
        "--hsdp",
        action="store_true",
        help="store parameters and optimizer states as finely split as they can be",
    )
    how.add_argument(
        "--fusion",
        type=positive_number,
        metavar="MB",
        help="reduce gradients together, up to so many megabytes at once (default each alone)",
    )
    how.add_argument(
        "--gradients-mean",
        action="store_true",
        help="average the gradients of a hand-written parallel program instead of adding them",
    )
    how.add_argument(
        "--time-limit",
        type=positive_number,
        default=60.0,
        metavar="S",
        help="seconds that the search may take, and building its problem (default 60 each)",
    )
    how.add_argument(
        "--gap",
        type=_share,
        default=CompileOptions.gap,
        metavar="G",
        help="exact: stop once the plan costs at most this share more than any could (0.001)",
    )


def _add_training_options(parser: argparse.ArgumentParser) -> None:
    step = parser.add_argument_group("the training step")
    step.add_argument(
        "--optimizer",
        choices=tuple(STATES),
        metavar="KIND",
        help=f"how parameters are updated: {', '.join(STATES)} (default the model's, or sgd)",
    )
    step.add_argument(
        "--learning-rate", type=positive_number, metavar="R", help="of the optimizer (its own)"
    )
    step.add_argument(
        "--loss-scale", type=positive_number, metavar="F", help="factor that gradients carry (1)"
    )
    step.add_argument("--seed", type=seed, default=0, metavar="N", help="of initial values (0)")


def _in_range(allowed: Range, kind: type[float]) -> Callable[[str], Any]:
    """Return what reads an argument that must be a number in a range."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = nan
        if number not in allowed:
            raise argparse.ArgumentTypeError(f"expected {allowed.expected}, got `{text}`")
        return number

    return read


positive = _in_range(POSITIVE_INTEGER, int)
positive_number = _in_range(POSITIVE, float)
seed = _in_range(SEED, int)
_share = _in_range(SHARE, float)


def compile_model(model: str, arguments: argparse.Namespace, **others: Any) -> Compilation:
    """Compile a model as the options say; `others` go before them.

    Raises
    ------
    ShardwrightError
        If something asked for cannot be.
    """
    asked: dict[str, Any] = {
        "cluster": arguments.cluster,
        "mode": arguments.mode,
        "cost_model": arguments.cost_model,
        "mesh": arguments.mesh,
        "batch": arguments.batch,
        "strategies": arguments.strategies,
        "dataset_strategy": arguments.dataset_strategy,
        "optimizer_parallel": arguments.optimizer_parallel,
        "gradients_mean": arguments.gradients_mean,
        "time_limit": arguments.time_limit,
        "gap": arguments.gap,
        "seed": arguments.seed,
        "search": getattr(arguments, "search", "exact"),
    }
    if arguments.memory is not None:
        asked["memory_limit"] = arguments.memory * _GIB
    if arguments.fusion is not None:
        asked["fusion"] = arguments.fusion
    if arguments.loss_scale is not None:
        asked["loss_scale"] = arguments.loss_scale
    optimizer = _optimizer(arguments)
    if optimizer is not None:
        asked["optimizer"] = optimizer
    with following_search(model) as progress:
        return compile(model, arguments.devices, progress=progress, **{**asked, **others})


def memory_limit(arguments: argparse.Namespace, cluster: Cluster) -> float:
    """Return the bytes that a device may hold: as the user says, or all of its memory."""
    if arguments.memory is not None:
        return float(arguments.memory * _GIB)
    return float(cluster.device.memory_bytes)


def _optimizer(arguments: argparse.Namespace) -> Optimizer | None:
    """Return the optimizer that is asked for; None for the model's own."""
    if arguments.optimizer is None and arguments.learning_rate is None:
        return None
    optimizer = Optimizer(arguments.optimizer or "sgd", {})
    if arguments.learning_rate is not None:
        optimizer = replace(optimizer, settings={"learning_rate": arguments.learning_rate})
    return optimizer


def graphs_folder(directory: Path | None) -> tuple[Path | None, int]:
    """Return where the graphs of all passes are written, if anywhere, and in how much detail.

    ``SHARDWRIGHT_SAVE_GRAPHS`` asks for them too: 1 for text, 2 for every pass's beginning too, 3
    for all formats, below ``SHARDWRIGHT_SAVE_GRAPHS_PATH``.
    """
    level = os.environ.get("SHARDWRIGHT_SAVE_GRAPHS", "0")
    if level not in ("", "0", "1", "2", "3"):
        raise UsageError(f"`SHARDWRIGHT_SAVE_GRAPHS` is `{level}`, it must be 0, 1, 2 or 3")
    if directory is not None or level in ("", "0"):
        return directory, 1
    return Path(os.environ.get("SHARDWRIGHT_SAVE_GRAPHS_PATH", ".")) / "rank_0", int(level)
