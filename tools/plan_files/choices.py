"""What a present plan costs, how far it is from the best, and what each of its choices costs.

The plan is given by layouts of its parameters. Its figures are those of the best plan that keeps
them; then each choice is released alone, and at last all of them, on the same mesh.
"""

import argparse
from dataclasses import dataclass
from math import inf
from typing import Any

from shardwright.compilation import Compilation
from shardwright.cost_model.efficiency.software import software
from shardwright.cost_model.pipelines.mixed import of_one_kind
from shardwright.frontends.configs.layouts import NamedLayouts, is_layouts, read_layouts
from shardwright.ir.errors import InfeasibleError
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.models import training_definition
from shardwright.tools.console.arguments import UsageError
from shardwright.tools.console.options import memory_limit
from shardwright.tools.console.tables import print_table
from shardwright.tools.plan_files.pins import Pins, pins_of
from shardwright.tools.reports.documents import print_document
from shardwright.tools.reports.named_plans import compile_named

__all__ = ["estimate_layouts", "is_layouts"]


@dataclass(frozen=True)
class _Row:
    """A line of the table: what is free, and the best plan then."""

    free: str
    operators: int
    step_seconds: float
    memory_bytes: float


def estimate_layouts(arguments: argparse.Namespace) -> int:
    """Print what the plan of a file of layouts costs, and each of its choices.

    Parameters
    ----------
    arguments : Namespace
        The command line, whose plan is the file.

    Raises
    ------
    ShardwrightError
        If the file does not fit the model, or the plan not the memory.
    """
    given = {"html": arguments.html, "software": software(arguments.software)}
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"`--{name}` has no effect on a file of layouts",
                hint=f"compile with the pins, or leave `--{name}` out",
            )
    found = read_layouts(arguments.plan)
    if isinstance(found, NamedLayouts):
        _take_mesh(arguments, found)
    elif arguments.devices is None:
        raise UsageError("strategies do not say how many devices there are", hint="add `--devices`")
    definition, _ = training_definition(arguments.model, arguments.batch, 1)
    pins = pins_of(definition.graph, found, arguments.plan)
    pinned = _compiled(arguments, pins.strategies)
    limit = memory_limit(arguments, of_one_kind(pinned.cluster, "a file of layouts has no stages"))
    rows = _rows(arguments, pins, pinned, limit)
    if arguments.json:
        print_document(_document(arguments, pins, rows))
    else:
        _print(pinned, pins, rows)
    if rows[0].memory_bytes > limit:
        raise InfeasibleError(
            f"the plan of `{arguments.plan}` takes {bytes_text(rows[0].memory_bytes)} on each "
            f"device, the limit is {bytes_text(limit)}",
            hint="release choices, or recompute activations",
        )
    return 0


def _take_mesh(arguments: argparse.Namespace, found: NamedLayouts) -> None:
    if arguments.devices not in (None, found.devices):
        raise UsageError(
            f"`--devices` is {arguments.devices}, the mesh of `{found.where}` has {found.devices}",
            hint="leave `--devices` out",
        )
    if arguments.mesh is not None:
        raise UsageError(
            f"`--mesh` is given, and `{found.where}` has a mesh", hint="leave `--mesh` out"
        )
    arguments.devices = found.devices
    arguments.mesh = ",".join(f"{name}={size}" for name, size in found.mesh.items())


def _compiled(arguments: argparse.Namespace, pins: Any) -> Compilation:
    return compile_named(arguments.model, arguments, plan=None, strategies=dict(pins))


def _rows(
    arguments: argparse.Namespace, pins: Pins, pinned: Compilation, limit: float
) -> list[_Row]:
    """Return the lines: all pinned, each choice free, all free.

    A plan that keeps more choices is one of those that keep fewer, so no line is above the first.
    """
    first = _row("nothing", 0, pinned, limit)
    rows = [first]
    releases = {choice: pins.without(choice) for choice in pins.choices}
    if len(pins.choices) == 1:
        releases.clear()
    releases["everything"] = {}
    for free, kept in releases.items():
        one = _row(free, len(pins.strategies) - len(kept), _compiled(arguments, kept), limit)
        fits = one.memory_bytes <= limit or one.memory_bytes <= first.memory_bytes
        better = one.step_seconds <= first.step_seconds or first.memory_bytes > limit
        if fits and better:
            rows.append(one)
        else:
            rows.append(_Row(free, one.operators, first.step_seconds, first.memory_bytes))
    return rows


def _row(free: str, operators: int, found: Compilation, limit: float) -> _Row:
    memory = found.plan.document.memory.peak_bytes
    timeline = found.timeline_within(limit if memory <= limit else inf)
    return _Row(free, operators, timeline.step_seconds, memory)


def _document(arguments: argparse.Namespace, pins: Pins, rows: list[_Row]) -> dict[str, Any]:
    return {
        "model": arguments.model,
        "devices": arguments.devices,
        "layouts": arguments.plan,
        "notes": list(pins.notes),
        "choices": [
            {
                "free": row.free,
                "operators": row.operators,
                "overlapped_step_seconds": row.step_seconds,
                "memory_bytes_per_device": row.memory_bytes,
            }
            for row in rows
        ],
    }


def _print(pinned: Compilation, pins: Pins, rows: list[_Row]) -> None:
    document, first = pinned.plan.document, rows[0]
    cells = [
        [
            row.free,
            str(row.operators),
            seconds_text(row.step_seconds),
            "" if row is first else f"{row.step_seconds / first.step_seconds - 1:+.1%}",
            bytes_text(row.memory_bytes),
        ]
        for row in rows
    ]
    title = f"{document.model} on {document.devices} devices of {document.cluster.name}, as given"
    print_table(title, ("free", "operators", "step", "change", "memory"), cells, (1, 2, 3, 4))
    for note in pins.notes:
        print(f"note: {note}")
    print(
        "Every line is the best plan found that keeps the other choices, on the mesh of the file; "
        "what the file does not say is searched."
    )
