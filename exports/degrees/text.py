"""What the files of all systems of degrees have in common: their heads, and what they leave out."""

from collections.abc import Collection
from dataclasses import dataclass
from math import gcd
from typing import Literal

from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.dataflow.placement import block_count
from shardwright.exports.degrees.nearest import samples
from shardwright.exports.emission.writing import Code, lines, paragraph
from shardwright.ir.errors import OptionError
from shardwright.ir.values import in_words
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.schedule import is_schedule


@dataclass(frozen=True)
class Facts:
    """What a file says of a training besides its degrees.

    Parameters
    ----------
    title : str
        The model and the devices.
    devices, each : int
        Number of devices, and of those in a node.
    batch, blocks : int
        Samples of a step, and repeated blocks of the model.
    precision, reduce_type, accumulate_type : str
        The types; see `CompileOptions`.
    optimizer : Optimizer
        The update rule.
    """

    title: str
    devices: int
    each: int
    batch: int
    blocks: int
    precision: str
    reduce_type: str
    accumulate_type: str
    optimizer: Optimizer

    @staticmethod
    def of(plan: Plan) -> "Facts":
        """Return the facts of a plan."""
        document = plan.document
        return Facts(
            f"{document.model} on {document.devices} devices of {document.cluster.name}",
            document.devices,
            _devices_of_node(document.cluster, document.devices),
            samples(plan),
            block_count(plan.model),
            document.precision,
            document.reduce_type,
            document.accumulate_type,
            document.optimizer.optimizer,
        )


def title(facts: Facts, system: str) -> str:
    """Return the first sentence of a file: what the plan is of, and for which system."""
    return f"for {system}: a plan of {facts.title}"


def comment(facts: Facts, system: str, notes: tuple[str, ...]) -> Code:
    """Return the head of a file as comments: which plan it says, of what, and what that costs."""
    return lines(paragraph(one, "# ", "#   ") for one in [title(facts, system), *notes])


Written = Literal["nothing", "rule", "settings"]  # what of an optimizer a system's file has


def optimizer_notes(plan: Plan, system: str, written: Written = "nothing") -> list[str]:
    """Return what is left to the user of the update rule.

    Parameters
    ----------
    plan : Plan
        The plan.
    system : str
        The name of the system.
    written : {"nothing", "rule", "settings"}
        What its file has: the name of the rule; its settings too, but for rates that follow the
        step.
    """
    optimizer = plan.document.optimizer
    settings = ", ".join(
        f"{name} {value}"
        for name, value in optimizer.settings.items()
        if written != "settings" or is_schedule(value)
    )
    notes = []
    if settings:
        notes.append(
            f"settings of the optimizer `{optimizer.kind}` are left to the script, here they are: "
            f"{settings}"
        )
    elif written == "nothing":
        notes.append(f"the optimizer is left to the script, here it is `{optimizer.kind}`")
    if optimizer.overrides:
        notes.append(
            f"{len(optimizer.overrides)} parameters have settings of their own, which {system}'s "
            "file does not say"
        )
    if plan.document.loss_scale != 1.0:
        notes.append(f"the loss scale is left to the script, here it is {plan.document.loss_scale}")
    return notes


def check_choice_of(system: str, what: str, value: str, known: Collection[str]) -> None:
    """Check that a system has a word for a value.

    Raises
    ------
    OptionError
        If not.
    """
    if value not in known:
        raise OptionError(
            f"{system} has no word for the {what} `{value}`, expected {in_words([*known])}",
            hint=f"compile the model with another {what}",
        )


def _devices_of_node(cluster: AnyCluster, devices: int) -> int:
    """Return how many devices of a node are used; of parts, that all nodes have."""
    if isinstance(cluster, MixedCluster):
        pairs = zip(cluster.parts, cluster.shares(devices), strict=True)
        return gcd(*(part.for_devices(share)[0] for part, share in pairs))
    return cluster.for_devices(devices)[0]
