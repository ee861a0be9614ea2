"""Whole training plans of large models, beside the best plan that has a name.

    python benchmarks/whole_plans.py list
    python benchmarks/whole_plans.py run llama3-70b-64 --time-limit 300
    python benchmarks/whole_plans.py run llama3-70b-64 --ablation recompute=none
    python benchmarks/whole_plans.py table

A run appends its result to a file of JSON lines; the last result of a row counts. A row that runs
out of time says so, and the table can be written from whatever is there.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from machine import machine

import shardwright
from shardwright.compilation import Compilation
from shardwright.compiler.options import OPTION_NAMES
from shardwright.cost_model.cluster import cluster
from shardwright.ir.errors import NoPlanError, ShardwrightError, StrategyError
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import bytes_text, gap_text, seconds_text
from shardwright.tools.documents import compile_document
from shardwright.tools.named_plans import BestNamedPlan, best_named_plan

HERE = Path(__file__)
# Zoo models, with the batch of each device.
ZOO = {
    "resnet50": 32,
    "vit-b16": 32,
    "bert-large": 8,
    "gpt2-xl": 4,
    "llama3-8b": 1,
    "dlrm": 2048,
    "unet": 4,
    "vgg16": 32,
}
# Options that a named plan decides.
BY_PLAN = ("micro_batches", "recompute")
# What is compared, and what JSON calls it.
FIGURES = (
    "overlapped_step_seconds",
    "predicted_step_seconds",
    "tokens_per_second_per_device",
    "samples_per_second",
    "model_flops_utilization",
    "memory_bytes_per_device",
    "memory_by_kind",
    "micro_batches",
    "precision",
    "objective",
    "lower_bound",
    "lower_bound_covers",
    "gap",
    "status",
    "how",
)


@dataclass(frozen=True)
class Row:
    """One training run: a model on devices.

    Parameters
    ----------
    model, cluster, devices, batch
        The arguments of `compile`.
    options : dict
        Further options.
    """

    model: str
    cluster: str
    devices: int
    batch: int
    options: dict[str, Any]


def rows() -> dict[str, Row]:
    """Return the rows of the table by name."""
    trained = {"optimizer": "adam", "precision": "bfloat16"}
    large = {**trained, "micro_batches": "search"}
    table = {
        f"llama3-70b-{devices}": Row("llama3-70b", "h100-pod", devices, devices, large)
        for devices in (64, 512)
    }
    for devices in (64, 128, 256, 512, 1024):
        name = f"gpt3-175b-{devices}"
        table[name] = Row("gpt3-175b", "a100-pod", devices, 1536, large)
    table["mixtral-8x7b-64"] = Row("mixtral-8x7b", "h100-pod", 64, 64, large)
    for model, batch in ZOO.items():
        for devices in (8, 64, 1024):
            name = f"{model}-{devices}"
            table[name] = Row(model, "h100-pod", devices, batch * devices, trained)
    return table


# Measuring one row


def measured(name: str, row: Row, ablation: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the result of a row: the best named plan, and the search."""
    options = {**row.options, **ablation}
    described = cluster(row.cluster)
    begin = time.perf_counter()
    settled = {name: value for name, value in options.items() if name not in BY_PLAN}
    named = best_named_plan(
        row.model, described, row.devices, batch=row.batch, time_limit=seconds / 2, **settled
    )
    enumerated = time.perf_counter() - begin
    found = searched(row, options, named, seconds)
    return {
        "row": name,
        **asdict(row),
        "ablation": ablation,
        "named": None
        if named.plan is None
        else {**figures(named.compilation), "plan": named.plan.text},
        "named_account": named.account,
        "named_seconds": enumerated,
        **found,
    }


def figures(compilation: Compilation) -> dict[str, Any]:
    """Return the figures of a compilation."""
    limit = compilation.plan.document.memory.limit
    document = compile_document(compilation, inf if limit is None else limit)
    found = {name: document[name] for name in FIGURES}
    return {**found, "mesh": str(compilation.compiled.mesh)}


def searched(
    row: Row, options: dict[str, Any], named: BestNamedPlan, seconds: float
) -> dict[str, Any]:
    """Search on the default mesh and on that of the best named plan; return the faster plan."""
    meshes: list[Mesh | None] = [None]
    if named.compilation is not None:
        meshes.append(named.compilation.compiled.mesh.of_ranks)
    plans, reasons, spent = [], [], 0.0
    counts = (row.batch & -row.batch).bit_length()  # powers of two that divide the batch
    searches = len(meshes) * (counts if options.get("micro_batches") == "search" else 1)
    for mesh in meshes:
        begin = time.perf_counter()
        try:
            compilation = shardwright.compile(
                row.model,
                row.devices,
                cluster=row.cluster,
                batch=row.batch,
                mesh=mesh,
                time_limit=seconds / 2 / searches,
                **options,
            )
            plans.append(figures(compilation))
        except (NoPlanError, StrategyError) as error:
            reasons.append(f"{type(error).__name__}: {error}")
        spent += time.perf_counter() - begin
    best = min(plans, key=lambda plan: plan["overlapped_step_seconds"], default=None)
    return {"found": best, "on_meshes": plans, "reasons": reasons, "search_seconds": spent}


# The table


HEAD = (
    "run", "batch", "ours: step", "tokens/s a device", "MFU", "memory", "bound", "gap",
    "search s", "best named plan", "its step", "MFU", "memory", "ours faster by",
)  # fmt: skip


def document(results: Sequence[dict[str, Any]]) -> str:
    """Return the page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *table(results))]
    template = HERE.with_suffix(".template.md").read_text()
    notes = "\n".join(f"- {note}" for note in remarks(results)) or "None."
    return template.format(table="\n".join(lines), machine=machine(), remarks=notes)


def table(results: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row."""
    for result in results:
        ours, named = result["found"], result["named"]
        yield (
            label(result),
            f"{result['batch']:,}",
            *(our_cells(ours) if ours else ("no plan found",) + ("",) * 5),
            f"{result['search_seconds']:.0f}",
            *(named_cells(named) if named else (untold(result), "", "", "")),
            f"{named['overlapped_step_seconds'] / ours['overlapped_step_seconds'] - 1:.1%}"
            if ours and named
            else "",
        )


def label(result: dict[str, Any]) -> str:
    """Return the name of a row with what its ablation sets."""
    changed = ", ".join(f"{name}={value}" for name, value in result["ablation"].items())
    name = f"{result['model']} on {result['devices']:,} of {result['cluster']}"
    return f"{name}, {changed}" if changed else name


def our_cells(plan: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of the plan of the search."""
    tokens = plan["tokens_per_second_per_device"]
    return (
        seconds_text(plan["overlapped_step_seconds"]),
        "" if tokens is None else f"{tokens:,.0f}",
        f"{plan['model_flops_utilization']:.1%}",
        bytes_text(plan["memory_bytes_per_device"]),
        bound_text(plan) if plan["lower_bound"] else "",
        gap_text(plan["gap"]) if plan["lower_bound"] else "",
    )


def bound_text(plan: dict[str, Any]) -> str:
    """Return the lower bound; with its objective where that is not the step that is shown."""
    bound = seconds_text(plan["lower_bound"])
    overlapped = plan["objective"] == plan["overlapped_step_seconds"]
    return bound if overlapped else f"{bound} of {seconds_text(plan['objective'])} serial"


def untold(result: dict[str, Any]) -> str:
    """Return why no named plan is shown."""
    return "not tried" if result["named_account"].startswith("0 of 0 ") else "none fits"


def named_cells(plan: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of the best named plan."""
    return (
        f"`{plan['plan']}`",
        seconds_text(plan["overlapped_step_seconds"]),
        f"{plan['model_flops_utilization']:.1%}",
        bytes_text(plan["memory_bytes_per_device"]),
    )


def remarks(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what the cells leave out: reasons without a plan, and plans that were not tried."""
    for result in results:
        for reason in result["reasons"]:
            yield f"{label(result)}: {reason}"
        if "left out" in result["named_account"]:
            yield f"{label(result)}: {result['named_account']}"


# The command


def main() -> None:
    """Run one row, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the names of the rows")
    run = commands.add_parser("run", help="measure one row")
    run.add_argument("row", choices=tuple(rows()), metavar="ROW")
    run.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="(600)")
    run.add_argument(
        "--ablation", action="append", default=[], metavar="OPTION=VALUE", help="repeatable"
    )
    write = commands.add_parser("table", help="write the page")
    write.add_argument("--out", type=Path, default=HERE.with_suffix(".md"))
    for command in (run, write):
        command.add_argument("--results", type=Path, default=HERE.with_suffix(".jsonl"))
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(rows()))
    elif arguments.command == "run":
        append(arguments)
    else:
        arguments.out.write_text(document(read(arguments.results)))


def append(arguments: argparse.Namespace) -> None:
    """Measure a row and append the result."""
    try:
        ablation = dict(setting(text) for text in arguments.ablation)
        row = rows()[arguments.row]
        result = measured(arguments.row, row, ablation, arguments.time_limit)
    except ShardwrightError as error:
        sys.exit(f"whole_plans: {error}")
    with arguments.results.open("a") as file:
        file.write(json.dumps(result, default=str) + "\n")
    print(" | ".join(next(table([result]))))


def setting(text: str) -> tuple[str, Any]:
    """Return the option and the value in ``option=value``."""
    name, equals, value = text.partition("=")
    if not equals or name not in OPTION_NAMES:
        sys.exit(f"whole_plans: `{text}` is no option with a value; there are {OPTION_NAMES}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def read(path: Path) -> list[dict[str, Any]]:
    """Return the last result of each row and ablation, in the order of the rows."""
    if not path.is_file():
        sys.exit(f"whole_plans: there are no results in `{path}`: run a row first")
    results = [json.loads(line) for line in path.read_text().splitlines()]
    last = {(item["row"], json.dumps(item["ablation"])): item for item in results}
    order = [*rows()]
    return sorted(last.values(), key=lambda item: order.index(item["row"]))


if __name__ == "__main__":
    main()
