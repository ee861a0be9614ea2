"""Options that several commands share, and the compilation that they ask for.

Defaults, help and the allowed values of an option of the compiler are those of `CompileOptions`.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.api import compile
from shardwright.compilation import Compilation
from shardwright.cost_model.cluster import DEFAULT_CLUSTER, Cluster
from shardwright.cost_model.efficiency.lines import ATTAINED, DATASHEET, with_figures
from shardwright.cost_model.efficiency.software import IDEAL, software_names
from shardwright.cost_model.pipelines.mixed import groups_on
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.ir.values import POSITIVE, POSITIVE_INTEGER, SEED, number_in
from shardwright.models import batch_on
from shardwright.operators.models.loss_scale import LossScale, loss_scale
from shardwright.operators.models.optimizer import Kind, Optimizer
from shardwright.operators.models.optimizer_text import optimizer_of
from shardwright.operators.models.precision import PRECISIONS
from shardwright.operators.models.schedule import check_rate
from shardwright.passes.manager import graphs_asked_for
from shardwright.planner.option_checks import read_fusion
from shardwright.planner.options import DEFAULTS, OPTION_NAMES, OPTIONS, option_help
from shardwright.tools.console.arguments import UsageError, add_number, number
from shardwright.tools.console.progress import following_search
from shardwright.zoo import assumed_precision

_GIB = 2**30
_MODEL = "a model of the zoo, with its sizes: `gpt:layers=4`; `file.py:function`; or `file.onnx`"
HTML = Path("-")
"""The value of `--html` without a file."""
_Arguments = argparse.ArgumentParser | argparse._ArgumentGroup


def add_model(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the argument MODEL."""
    parser.add_argument("model", metavar="MODEL", nargs="+" if several else None, help=_MODEL)


def add_software(group: _Arguments) -> None:
    """Add the option that says as which training software a step is timed."""
    group.add_argument(
        "--software",
        default=IDEAL,
        metavar="NAME",
        help="time the step as a training software runs the program: "
        f"{', '.join(software_names())} (default: {IDEAL})",
    )


class _OnCluster(argparse.Action):
    """Keeps a cluster and the figures that are asked of it as one line, in any order."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.cluster = with_figures(namespace.cluster, namespace.figures)


def add_cluster(place: argparse._ArgumentGroup) -> None:
    """Add the options that say the devices and their links."""
    place.add_argument(
        "--cluster",
        action=_OnCluster,
        default=DEFAULT_CLUSTER,
        metavar="NAME|FILE|LINE",
        help="the devices and their links: a name of `shardwright clusters`, a file, or a line "
        f"like `h100:nodes=8,network=400Gb/s` (default {DEFAULT_CLUSTER}, as many nodes as needed)",
    )
    place.add_argument(
        "--figures",
        action=_OnCluster,
        choices=(ATTAINED, DATASHEET),
        help="what devices and links attain: figures that were measured, fitted or scaled "
        "(default), or peaks of data sheets",
    )


def add_compile_options(
    parser: argparse.ArgumentParser,
    devices: bool = True,
    search: bool = True,
    plan: bool = True,
) -> None:
    """Add the options that say for which devices, and how, a model is compiled."""
    place = parser.add_argument_group("devices")
    add_number(place, "--devices", POSITIVE_INTEGER, "number of ranks", "N", 1, required=devices)
    add_cluster(place)
    place.add_argument(
        "--mesh",
        metavar="SHAPE",
        help="`2x4`, `data=2,model=4`, `search` for the best of several, or `default` for the "
        "cluster's (default the cluster's; for a large model everything is searched, unless "
        "stages, chunks or micro-batches are given)",
    )
    add_memory(place)
    add_number(place, "--batch", POSITIVE_INTEGER, "batch size (default the model's)", "B")
    _add_decisions(parser.add_argument_group("compiler"), search, plan)
    _add_training_options(parser.add_argument_group("training step"))


def add_sequence(parser: _Arguments) -> None:
    """Add the option that sets the model's size `sequence`."""
    add_number(
        parser, "--sequence", POSITIVE_INTEGER, "tokens of a sample (default the model's)", "S"
    )


def add_html(parser: _Arguments, default: str) -> None:
    """Add the option that writes a page; without a file its value is `HTML`.

    Parameters
    ----------
    parser : parser or group
        Where.
    default : str
        Where the page is written without a file, in words.
    """
    parser.add_argument(
        "--html",
        type=Path,
        nargs="?",
        const=HTML,
        metavar="FILE",
        help="write a page with the model, timeline, memory, communication and search "
        f"(without FILE: {default})",
    )


def take_batch(arguments: argparse.Namespace, model: str, devices: int) -> str:
    """Take the batch that is assumed where the user gives none, and return why it is that one.

    The answer is empty where the user gives one, or the model's own serves.
    """
    batch = batch_on(model, arguments.batch, devices)
    if batch is None or arguments.batch == batch:
        return ""
    arguments.batch, each = batch, batch // devices
    return (
        f"chosen: {each} sample{'s' * (each > 1)} for each device, as the model's own batch does "
        f"not divide over {devices}; `--batch` sets it"
    )


def add_workers(parser: _Arguments) -> None:
    """Add the option that says how many processes search."""
    _add_option(parser, "--workers", "N")


def add_verbose(parser: _Arguments) -> None:
    """Add the option that prints the whole report."""
    parser.add_argument("--verbose", action="store_true", help="print the whole report")


def refuse_compile_options(
    arguments: argparse.Namespace, allowed: Sequence[str], reason: str
) -> None:
    """Refuse options of a compilation, where nothing is compiled.

    Raises
    ------
    UsageError
        If one that is not among the allowed ones has another value than its default.
    """
    parser = argparse.ArgumentParser()
    add_compile_options(parser, devices=False)
    for action in parser._actions:
        name = action.dest
        if name in allowed or name == "help" or getattr(arguments, name) == action.default:
            continue
        raise UsageError(
            f"`{action.option_strings[0]}` has no effect, {reason}", hint="leave it out"
        )


def _add_decisions(how: argparse._ArgumentGroup, search: bool, plan: bool) -> None:
    _add_option(how, "--mode", "MODE")
    if search:
        _add_option(how, "--search", "SEARCH")
    if plan:
        how.add_argument("--plan", metavar="PLAN", help=option_help("plan"))
    _add_option(how, "--cost-model", "MODEL")
    how.add_argument(
        "--strategies",
        type=Path,
        metavar="FILE",
        help="pin these strategies; a file such as a plan's strategies.json",
    )
    how.add_argument(
        "--dataset-strategy",
        choices=("data_parallel", "full_batch"),
        metavar="STRATEGY",
        help="layout of the inputs: data_parallel, full_batch (default chosen by the search)",
    )
    how.add_argument(
        "--optimizer-parallel",
        "--hsdp",
        nargs="?",
        const=True,
        default=False,
        metavar="RULE",
        help=option_help("optimizer_parallel"),
    )
    how.add_argument("--cost-weights", metavar="WEIGHTS", help=option_help("cost_weights"))
    how.add_argument("--gather-fusion", metavar="SIZES", help=option_help("gather_fusion"))
    how.add_argument("--fusion", type=_fusion, metavar="MB", help=option_help("fusion"))
    how.add_argument("--recompute", metavar="WHAT", help=option_help("recompute"))
    _add_option(how, "--offload", "WHAT")
    _add_option(how, "--imbalance", "TIMES")
    _add_option(how, "--gradients-mean", "")
    _add_search(how, explained=search)
    _add_option(how, "--objective", "STEP")
    how.add_argument(
        "--extra-passes", default=(), metavar="PASSES", help=option_help("extra_passes")
    )


def _add_search(how: argparse._ArgumentGroup, *, explained: bool) -> None:
    """Add what bounds a search, and who runs it."""
    _add_option(how, "--effort", "E")
    _add_option(how, "--time-limit", "S")
    _add_option(how, "--gap", "G")
    if explained:  # its report is that of `compile`
        _add_option(how, "--explain-search", "")
    add_workers(how)
    text = option_help("executor")
    how.add_argument("--executor", default=DEFAULTS["executor"], metavar="WHO", help=text)
    text = "keep nothing of searches for later ones, and use nothing that is kept"
    how.add_argument("--no-cache", dest="cache", action="store_false", help=text)


def add_training_types(step: argparse._ArgumentGroup) -> None:
    """Add the options that say how much memory an element of a parameter takes."""
    step.add_argument(
        "--optimizer", type=_optimizer_in, metavar="KIND", help=option_help("optimizer")
    )
    _add_precision(step)
    step.set_defaults(learning_rate=None)


def _add_precision(step: argparse._ArgumentGroup) -> None:
    step.add_argument(
        "--precision", choices=tuple(PRECISIONS), metavar="POLICY", help=option_help("precision")
    )
    for flag in ("--reduce-type", "--accumulate-type"):
        _add_option(step, flag, "TYPE")
    _add_option(step, "--loss-chunks", "N")


def _add_training_options(step: argparse._ArgumentGroup) -> None:
    step.add_argument(
        "--optimizer", type=_optimizer_in, metavar="KIND", help=option_help("optimizer")
    )
    step.add_argument(
        "--learning-rate",
        type=_rate,
        metavar="R",
        help="learning rate (default the optimizer's own): a number, or a formula over `step`, the "
        "steps before, such as `0.1 * 0.5 ** floor(step / 100)`",
    )
    _add_precision(step)
    # Without a default: a large model is searched unless one of them is given, be it 1.
    for name, metavar in (("micro_batches", "M"), ("stages", "S"), ("chunks", "V")):
        flag = f"--{name.replace('_', '-')}"
        read = _number_or_word(name, flag)
        step.add_argument(flag, type=read, metavar=metavar, help=option_help(name))
    _add_option(step, "--schedule", "NAME")
    step.add_argument("--loss-scale", type=_loss_scale, metavar="F", help=option_help("loss_scale"))
    add_number(step, "--seed", SEED, "seed of the initial values (default 0)", "N", 0)


def _optimizer_in(text: str) -> Optimizer:
    """Return an optimizer from its name and settings."""
    return optimizer_of(text, "--optimizer")


def _rate(text: str) -> float | str:
    """Return a learning rate from a number or a formula."""
    rate = number_in(text)
    if isinstance(rate, str):
        check_rate("--learning-rate", rate)
    else:
        POSITIVE.check("--learning-rate", rate)
        rate = float(rate)
    return rate


def _loss_scale(text: str) -> LossScale:
    """Return a loss scale from a number or `dynamic`."""
    return loss_scale(number_in(text), "--loss-scale")


def _add_option(group: _Arguments, flag: str, metavar: str, *aliases: str) -> None:
    """Add an option of `CompileOptions`; its flag is the name with dashes."""
    name = flag.removeprefix("--").replace("-", "_")
    option, default = OPTIONS[name], DEFAULTS[name]
    if isinstance(default, bool):
        group.add_argument(flag, *aliases, action="store_true", help=option_help(name))
    elif option.allowed is not None:
        add_number(group, flag, option.allowed, option_help(name), metavar, default)
    else:
        group.add_argument(
            flag,
            choices=tuple(option.choices),
            default=default,
            metavar=metavar,
            help=option_help(name),
        )


def add_memory(group: _Arguments) -> None:
    """Add the memory limit, which the command line takes in GiB."""
    allowed = OPTIONS["memory_limit"].allowed
    assert allowed is not None
    read = number("--memory", allowed)
    text = option_help("memory_limit").replace("bytes", "GiB")
    group.add_argument(
        "--memory",
        dest="memory_limit",
        type=lambda argument: read(argument) * _GIB,
        metavar="GIB",
        help=text,
    )


def _number_or_word(name: str, flag: str) -> Callable[[str], object]:
    """Return the function that reads the argument of an option that is a number or a word."""

    def read(text: str) -> object:
        value = number_in(text)
        OPTIONS[name].check(flag, value)
        return value

    return read


def _fusion(text: str) -> object:
    value = number_in(text)
    if isinstance(value, str):
        return read_fusion(value, "--fusion")
    OPTIONS["fusion"].check("--fusion", value)
    return value


def compile_model(model: str, arguments: argparse.Namespace, **others: Any) -> Compilation:
    """Compile a model with the options of the command line; `others` override them.

    Raises
    ------
    ShardwrightError
        If an option is wrong, or there is no plan.
    """
    options = {**compile_arguments(model, arguments), **others}
    with following_search(model) as progress:
        return compile(model, arguments.devices, progress=progress, **options)


def compile_arguments(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `compile` that the command line gives."""
    names = ("cluster", "mesh", "batch", "strategies", "dataset_strategy", "seed", *OPTION_NAMES)
    values = {name: getattr(arguments, name, None) for name in names}
    values["optimizer"] = _optimizer(model, arguments)
    return {name: value for name, value in values.items() if value is not None}


def with_options(arguments: argparse.Namespace, **options: Any) -> argparse.Namespace:
    """Return the command line with other values of some options; None is that of one left out."""
    return argparse.Namespace(**{**vars(arguments), **options})


def memory_limit(arguments: argparse.Namespace, cluster: Cluster) -> float:
    """Return the memory limit of a device in bytes: the option's, or the cluster's."""
    if arguments.memory_limit is not None:
        return float(arguments.memory_limit)
    return cluster.device.usable_bytes


def memory_limit_of_plan(arguments: argparse.Namespace, compilation: Compilation) -> MemoryLimit:
    """Return the memory limit of a device; with several kinds, that of each device group."""
    groups = groups_on(compilation.cluster, compilation.plan.mesh)
    if not groups.is_mixed:
        return memory_limit(arguments, groups.of(0))
    return tuple(memory_limit(arguments, cluster) for cluster in groups.clusters)


def _optimizer(model: str, arguments: argparse.Namespace) -> Optimizer | None:
    """Return the optimizer of the command line; None for the model's own."""
    if arguments.optimizer is None and arguments.learning_rate is None:
        return None
    own: Kind = "sgd" if assumed_precision(model) is None else "adam"
    optimizer: Optimizer = arguments.optimizer or Optimizer(own, {})
    if arguments.learning_rate is not None:
        settings = {**optimizer.settings, "learning_rate": arguments.learning_rate}
        optimizer = replace(optimizer, settings=settings)
    return optimizer


def graphs_folder(directory: Path | None) -> tuple[Path | None, int]:
    """Return the folder for the graphs of all passes, None for no graphs, and the level of detail.

    That of the option, or the one that the environment asks for: see `graphs_asked_for`.
    """
    folder, level = graphs_asked_for()
    return (directory, 1) if directory is not None else (folder, level)
