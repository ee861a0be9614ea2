"""What files of other systems say: `--plan train.sh`, `--plan train.toml`, and types of models."""

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from shardwright.frontends import configs
from shardwright.ir.errors import OptionError, ShardwrightWarning
from shardwright.planner.options import DEFAULTS
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.console.arguments import UsageError

_TYPES = ("precision", "optimizer", "reduce_type", "accumulate_type")


def read_types(arguments: argparse.Namespace) -> None:
    """Take the types of gradients from the file of a model that says them.

    Parameters
    ----------
    arguments : Namespace
        The command line.
    """
    name = arguments.model.partition(":")[0]
    if configs.is_model(name):
        _take_types(arguments, configs.read_model(name).options)


def _take_types(arguments: argparse.Namespace, options: Mapping[str, Any]) -> None:
    for name in _TYPES:
        if name in options and getattr(arguments, name, None) in (None, DEFAULTS.get(name)):
            setattr(arguments, name, options[name])


def read_plan_file(arguments: argparse.Namespace) -> None:
    """Replace a file that is given as the plan by what it says.

    Options of the command line hold before those of the file.

    Parameters
    ----------
    arguments : Namespace
        The command line; of a plan that is no file nothing changes.

    Raises
    ------
    ShardwrightError
        If the file cannot be read, or says something that is not supported.
    """
    if arguments.plan is None or not configs.is_plan(arguments.plan):
        read_types(arguments)
        return
    own = arguments.plan == arguments.model.partition(":")[0]
    found = configs.read_plan(arguments.plan, with_model=own)
    for sentence in () if own else found.told():
        warnings.warn(f"`{arguments.plan}`: {sentence}", ShardwrightWarning, stacklevel=2)
    launched = arguments.devices is None and found.devices is not None
    if launched:
        arguments.devices = found.devices
    plan: dict[str, Any] = dict(found.plan)
    if arguments.devices is None and "data" not in plan:
        raise UsageError(
            f"`{arguments.plan}` does not say how many devices there are", hint="add `--devices`"
        )
    undivided = {key: value for key, value in plan.items() if key != "zero"}
    degrees = NamedPlan.parse(replace(found, plan=undivided).plan_text or "tensor=1")
    if arguments.devices is None:
        sizes = (degrees.tensor, degrees.data or 1, degrees.pipeline, degrees.context)
        arguments.devices = prod(sizes)
    try:
        data = degrees.on(arguments.devices).data or 1
    except OptionError as error:
        if not launched:
            raise
        raise UsageError(
            f"`{arguments.plan}` starts {found.devices} processes, and {error.what}",
            hint="add `--devices` with the number of all devices",
        ) from error
    if data * degrees.context == 1:
        plan = undivided
    arguments.plan = replace(found, plan=plan).plan_text or "tensor=1"
    if arguments.batch is None and "batch=" not in arguments.model:
        local = found.options.get("local_batch")
        arguments.batch = local * data if local else found.sizes.get("batch")
    _take_types(arguments, found.options)
    read_types(arguments)
