"""Which parameters a program trains: an error where it trains none, a warning of those left out."""

import warnings
from collections.abc import Sequence

from shardwright.dataflow.cotangents import untrained_parameters
from shardwright.ir.errors import PassError, ShardwrightWarning
from shardwright.ir.graph import Graph
from shardwright.ir.units import first_names


def check_trained(graph: Graph) -> None:
    """Refuse a forward program that trains nothing; warn of parameters that get no update.

    Raises
    ------
    PassError
        If there are trainable parameters, and the loss depends on none of them.
    """
    idle = untrained_parameters(graph)
    if idle and len(idle) == sum(parameter.trainable for parameter in graph.parameters):
        raise PassError(
            f"none of the {len(idle)} trainable parameters would be updated: the loss depends on "
            f"`{idle[0]}`{' and the others' if len(idle) > 1 else ''} by no operators that have a "
            f"gradient",
            hint="declare parameters that are not trained with `requires_grad=False`",
        )
    warn_of_idle(idle, "no gradient reaches them")


def warn_of_idle(parameters: Sequence[str], reason: str) -> None:
    """Warn of trainable parameters that get no update, and say why."""
    if not parameters:
        return
    warnings.warn(
        f"trainable parameters get no update, {reason}: {first_names(parameters)}",
        ShardwrightWarning,
        stacklevel=2,
    )
