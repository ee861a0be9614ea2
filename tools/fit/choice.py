"""``--robust`` of `fit` and `compile`."""

import argparse
from collections.abc import Mapping

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.software import IDEAL
from shardwright.ir.errors import NotFoundError
from shardwright.planner.options import DEFAULTS
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.options import with_options
from shardwright.tools.fit.answers import Answers
from shardwright.tools.fit.robust import read_errors
from shardwright.tools.fit.subject import Subject

_GIVEN = (
    *("mode", "search", "plan", "mesh", "strategies", "dataset_strategy", "optimizer_parallel"),
    *("cost_model", "micro_batches", "stages", "chunks", "schedule", "recompute", "offload"),
    *("explain_search", "extra_passes"),
)


def add_robust(parser: argparse.ArgumentParser) -> None:
    """Add the options of the robust choice."""
    choice = parser.add_argument_group("robust choice")
    text = (
        "choose the named plan of least worst-case regret over the errors of all figures, see "
        "docs/fit.md"
    )
    choice.add_argument("--robust", action="store_true", help=text)
    choice.add_argument(
        "--errors",
        metavar="LIST",
        help="relative errors of figures, `compute=0.1,node=0.2,pod=0.3,overlap=0.5` (default by "
        "where the figures are from); with `--robust`",
    )


def stated_errors(
    arguments: argparse.Namespace, cluster: Cluster, devices: int
) -> Mapping[str, float] | None:
    """Return the errors that the user states; None where no robust choice is asked for.

    Raises
    ------
    UsageError
        If errors are stated without `--robust`, or of links that the devices do not use.
    """
    if not arguments.robust:
        if arguments.errors is not None:
            raise UsageError("`--errors` has no effect without `--robust`", hint="add `--robust`")
        return None
    return {} if arguments.errors is None else read_errors(arguments.errors, cluster, devices)


def choose_robust(arguments: argparse.Namespace) -> None:
    """Set the plan of a compilation to the robust one, where that is asked for.

    Raises
    ------
    UsageError
        If another option decides what a named plan would.
    NotFoundError
        If no plan of the family fits.
    """
    if not arguments.robust:
        if arguments.errors is not None:
            raise UsageError("`--errors` has no effect without `--robust`", hint="add `--robust`")
        return
    for name in _GIVEN:
        value = getattr(arguments, name, None)
        if value not in (None, DEFAULTS.get(name)):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"`--robust` chooses a named plan, and `{flag}` decides what that would",
                hint="leave one of them out",
            )
    # Options of `fit` that `compile` has not.
    subject = Subject(with_options(arguments, sequence=None, software=IDEAL))
    devices = arguments.devices
    answers = Answers(subject, devices, stated_errors(arguments, subject.cluster, devices))
    found = answers.best
    if found is None:
        raise NotFoundError(
            f"no plan of Megatron's family for `{subject.name}` on {arguments.devices} devices "
            "fits the memory limit",
            hint="leave `--robust` out, and everything is searched",
        )
    arguments.plan = found.plan.text
