"""What a plan trains, and what it does not, and why."""

from collections.abc import Iterator

from shardwright.dataflow.cotangents import untrained_parameters
from shardwright.ir.graph import Graph
from shardwright.tools.console.tables import print_table


def print_trained(model: Graph) -> None:
    """Print the parameters of a model: whether each is trained, and if not, why.

    Parameters
    ----------
    model : Graph
        The whole model, before it is partitioned.
    """
    rows = list(trained_rows(model))
    count = sum(row[2] == "yes" for row in rows)
    print_table(
        f"{count} of {len(rows)} tensors of the model are trained",
        ("tensor", "type", "trained"),
        rows,
        shortened=0,
    )


def trained_rows(model: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the type of each parameter, and whether it is trained."""
    without, written = set(untrained_parameters(model)), {name for name, _ in model.updates}
    for parameter in model.parameters:
        if parameter.role == "state":
            continue
        if not parameter.trainable:
            is_written = parameter.name in written
            why = "no: the forward pass writes it" if is_written else "no: frozen, or a constant"
        else:
            why = "no: no gradient reaches it" if parameter.name in without else "yes"
        yield parameter.name, str(parameter.value.type), why
