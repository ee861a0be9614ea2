"""Whole training plans of large models and of the zoo, beside plans that have a name.

    python benchmarks/whole_plans.py list
    python benchmarks/whole_plans.py run llama3-70b-64 gpt3-175b-1024
    python benchmarks/whole_plans.py run llama3-70b-64 --only search --ablation recompute=none
    python benchmarks/whole_plans.py run gpt3-175b-1024 --links 0.5
    python benchmarks/whole_plans.py run gpt3-175b-1024 --exposed 0.5
    python benchmarks/whole_plans.py table
    python benchmarks/whole_plans.py ablations

A row is a search, each of its named plans, and for small models the best of all named plans of one
stage. Each is measured in a process of its own and appended to a file of JSON lines; what is there
is not measured again, and the table can be written from whatever is there.

Ablations: `recompute=none` saves everything for backward, `recompute=full` recomputes every block,
`optimizer_parallel=shard_size=1` divides parameters and optimizer states no further than their
readers do (no ZeRO), `objective=serial` minimises the step without overlap; its plan is then
simulated with overlap, and has no bound of that step.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from machine import machine
from whole_plans_rows import BEST, rows

import shardwright
from shardwright.compilation import Compilation
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.software import Software
from shardwright.exports.degrees.best import best_named_plan
from shardwright.ir.errors import InfeasibleError, NoPlanError, ShardwrightError
from shardwright.ir.units import bytes_text, gap_text, seconds_text
from shardwright.planner.options import OPTION_NAMES
from shardwright.proof.proof import prove
from shardwright.tools.reports.documents import compile_document

HERE = Path(__file__)
TRAINED = {"optimizer": "adam", "precision": "bfloat16"}
EARLIER = "2 cores of AMD EPYC, Linux, Python 3.12.1, numpy 2.4.6"  # of results that name none
# What is compared, and what JSON calls it.
FIGURES = (
    "overlapped_step_seconds",
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "memory_bytes_per_device",
    "memory_limit_bytes",
    "mesh",
    "stages",
    "micro_batches",
    "lower_bound",
    "lower_bound_covers",
    "gap",
    "how",
)

# Measuring: a task is the search, or one named plan


@dataclass(frozen=True)
class Task:
    """What one process measures.

    Parameters
    ----------
    row : str
        The name of the row.
    plan : str or None
        A named plan, `BEST`, or None for the search.
    ablation : dict
        Options that differ from those of the row.
    links : float
        Factor on the bandwidth of every link.
    exposed : float
        Share of the communication of parameters and gradients for which computation waits.
    """

    row: str
    plan: str | None
    ablation: dict[str, Any]
    links: float
    exposed: float = 0.0

    @property
    def key(self) -> str:
        """What tells tasks apart."""
        exposed = [self.exposed] if self.exposed else []
        told = [self.row, self.plan, self.ablation, self.links, *exposed]
        return json.dumps(told, sort_keys=True)


def measured(task: Task, effort: float) -> dict[str, Any]:
    """Return the figures of a task; a plan that does not fit has some, too."""
    row = rows()[task.row]
    where = waiting(scaled(cluster(row.sheets), task.links), task.exposed)
    common = {**TRAINED, **task.ablation}
    if task.plan == BEST:
        found = best_named_plan(row.model, where, row.devices, batch=row.batch, **common)
        if found.compilation is None or found.plan is None:
            return {"reason": found.account}
        return {**figures(found.compilation), "plan": found.plan.text, "account": found.account}
    options = {**row.options, **common, "effort": effort}
    if task.plan is not None:
        options = {**common, "plan": task.plan}
    compiled = partial(shardwright.compile, row.model, row.devices, cluster=where, batch=row.batch)
    try:
        compilation = compiled(**options)
    except NoPlanError as error:
        if task.plan is None:
            return {"reason": str(error), "infeasible": isinstance(error, InfeasibleError)}
        compilation = compiled(**options, memory_limit=inf, objective="serial")
    except ShardwrightError as error:
        return {"reason": str(error)}
    limit = where.device.usable_bytes
    return {**figures(compilation), "plan": task.plan, "memory_limit_bytes": limit}


def figures(compilation: Compilation) -> dict[str, Any]:
    """Return the figures of a plan and its proof; the bound of another objective is left out."""
    limit = compilation.plan.document.memory.limit
    document = compile_document(compilation, inf if limit is None else limit)
    proof = prove(compilation.plan)
    found = {name: document[name] for name in FIGURES}
    found |= {"proven": proof.proven, "proof_seconds": proof.seconds}
    bounds_step = document["objective_is"] == "overlapped step"
    return found if bounds_step else {**found, "lower_bound": 0.0, "gap": None}


def scaled(described: Cluster, factor: float) -> Cluster:
    """Return the cluster with the bandwidth of every link times a factor."""
    levels = [
        level.model_copy(update={"bandwidth": factor * level.bandwidth})
        for level in described.levels
    ]
    return described.model_copy(update={"levels": tuple(levels)})


def waiting(described: Cluster, exposed: float) -> Cluster:
    """Return the cluster where computation waits for a share of the parameters' communication."""
    if not exposed:
        return described

    def figure(value: float) -> dict[str, Any]:
        return {"value": value, "tag": "assumed", "source": "whole_plans.py"}

    none = dict.fromkeys(("softmax", "host", "collective", "skew", "transfer", "step"), figure(0))
    same = dict.fromkeys(("pointwise", "copies", "updates", "scores"), figure(1))
    told = {
        **none,
        **same,
        "name": f"{exposed:.0%} exposed",
        "attention": "fused",
        "recompute": "reads",
        "transfers": "whole",
        "exposed_parameters": figure(exposed),
        "exposed_activations": figure(1),
    }
    return described.run_by(Software.model_validate(told))


def run(task: Task, arguments: argparse.Namespace) -> None:
    """Measure a task in a process of its own, and append the result."""
    words = [sys.executable, str(HERE), "task", task.key, str(arguments.effort)]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = ended.stdout.splitlines()
    told = json.loads(lines[-1]) if ended.returncode == 0 and lines else {"reason": ended.stderr}
    told |= {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "key": task.key,
        "load": os.getloadavg()[1],
        "effort": arguments.effort,
        "machine": machine(),
    }
    with arguments.results.open("a") as file:
        file.write(json.dumps(told, default=str) + "\n")
    step = told.get("overlapped_step_seconds")
    print(task.key, told["reason"] if step is None else seconds_text(step), flush=True)


# The table


HEAD = (
    "run", "batch", "ours: step", "mesh, stages, micro-batches", "tokens/s a device", "MFU",
    "memory", "bound", "gap", "s, CPU s", "proof s", "named plan", "its step", "MFU", "memory",
    "proof s", "ours faster by",
)  # fmt: skip


def document(path: Path) -> str:
    """Return the page of a file of results."""
    results = read(path)
    lines = [f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *table(results))]
    template = HERE.with_suffix(".template.md").read_text()
    notes = "\n".join(f"- {note}" for note in remarks(results)) or "None."
    told = {"table": "\n".join(lines), "compared": compared(path)}
    return template.format(**told, machines=machines(results), remarks=notes)


def machines(results: dict[str, dict[str, Any]]) -> str:
    """Return how many searches were measured on which machine."""
    searches = (results[task.key].get("machine", EARLIER) for task, _ in variants(results))
    return "; ".join(f"{count} searches on {name}" for name, count in Counter(searches).items())


def compared(path: Path) -> str:
    """Return the table of searches by counted work beside those that a clock ended."""
    before = read(path, lambda one: not is_counted(one))
    after = read(path, is_counted)
    head = (
        *("run", "step: by the clock", "by work", "changed by", "gap: by the clock", "by work"),
        *("CPU s: by the clock", "by work"),
    )
    lines = [head, ("---",) * len(head)]
    for task, _ in variants(after):
        old, new = before.get(task.key), after[task.key]
        if old is None or "overlapped_step_seconds" not in old:
            continue
        steps = [plan["overlapped_step_seconds"] for plan in (old, new)]
        cells = [
            (seconds_text(steps[n]), gap_text(plan["gap"]), f"{plan['cpu_seconds']:.0f}")
            for n, plan in enumerate((old, new))
        ]
        step, gap, spent = zip(*cells, strict=True)
        lines.append((label(task), *step, f"{steps[1] / steps[0] - 1:+.2%}", *gap, *spent))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def is_counted(result: dict[str, Any]) -> bool:
    """Return whether counted work ended a search, not a clock."""
    return "effort" in result


def is_whole(result: dict[str, Any]) -> bool:
    """Return whether a result has all figures: some searches told step, bound and seconds alone."""
    return not result.get("told_alone", False)


def variants(results: dict[str, dict[str, Any]]) -> Iterator[tuple[Task, list[Task]]]:
    """Yield the searches that were measured, each with its named plans."""
    tasks = [Task(*json.loads(key)) for key in results]
    order = [*rows()]
    searches = [task for task in tasks if task.plan is None]
    searches.sort(
        key=lambda task: (order.index(task.row), bool(task.ablation), -task.links, task.exposed)
    )
    for search in searches:
        yield search, [task for task in tasks if task.plan and replace(task, plan=None) == search]


def table(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells: a line for each search, and one for each further named plan."""
    for search, plans in variants(results):
        ours = results[search.key]
        name = label(search) if is_counted(ours) else f"{label(search)} (clock)"
        own = (name, f"{rows()[search.row].batch:,}", *our_cells(ours))
        named = [results[plan.key] for plan in plans] or [{}]
        for place, result in enumerate(named):
            yield (
                *(own if place == 0 else ("",) * len(own)),
                *named_cells(result),
                faster(ours, result),
            )


def ablations(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of searches alone, each with what it changes, in the order of the runs."""
    head = ("run", "step", "memory", "bound", "gap", "CPU s")
    lines = [head, ("---",) * len(head)]
    for key, plan in results.items():
        step, _, _, _, memory, bound, gap, spent, _ = our_cells(plan)
        told = (label(Task(*json.loads(key))), step, memory, bound, gap, spent.split(", ")[1])
        lines.append(told)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def label(task: Task) -> str:
    """Return the name of a search with what it changes."""
    row = rows()[task.row]
    changed = [f"{name}={value}" for name, value in task.ablation.items()]
    changed += [f"links x {task.links}"] if task.links != 1 else []
    changed += [f"{task.exposed:.0%} exposed"] if task.exposed else []
    if row.options.get("micro_batches") == "search":
        changed.insert(0, "one stage")
    return ", ".join([f"{row.model} on {row.devices:,} of {row.cluster}", *changed])


def our_cells(plan: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of the plan of the search."""
    spent = f"{plan['seconds']:.0f}, {plan['cpu_seconds']:.0f}"
    if "overlapped_step_seconds" not in plan:
        found = "none fits" if plan.get("infeasible") else "none found"
        return (found, *("",) * 6, spent, "")
    tokens, bound = plan["tokens_per_second_per_device"], plan["lower_bound"]
    shape = "x".join(map(str, plan["mesh"].values()))
    return (
        seconds_text(plan["overlapped_step_seconds"]),
        f"{shape}, {plan['stages']}, {plan['micro_batches']}",
        "" if tokens is None else f"{tokens:,.0f}",
        f"{plan['model_flops_utilization']:.1%}",
        bytes_text(plan["memory_bytes_per_device"]),
        seconds_text(bound) if bound else "",
        gap_text(plan["gap"]) if bound else "",
        spent,
        proof_text(plan),
    )


def named_cells(plan: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a named plan."""
    if "overlapped_step_seconds" not in plan:
        return ("none that can be built fits" if plan else "", "", "", "", "")
    fits = plan["memory_bytes_per_device"] <= plan["memory_limit_bytes"]
    return (
        f"`{plan['plan']}`",
        seconds_text(plan["overlapped_step_seconds"]),
        f"{plan['model_flops_utilization']:.1%}",
        bytes_text(plan["memory_bytes_per_device"]) + ("" if fits else ", does not fit"),
        proof_text(plan),
    )


def proof_text(plan: dict[str, Any]) -> str:
    """Return the seconds of a plan's proof, or that there is none."""
    return f"{plan['proof_seconds']:.1f}" if plan["proven"] else "**not proven**"


def faster(ours: dict[str, Any], named: dict[str, Any]) -> str:
    """Return by how much our plan is faster than a named one that fits."""
    steps = [plan.get("overlapped_step_seconds") for plan in (named, ours)]
    if None in steps or named["memory_bytes_per_device"] > named["memory_limit_bytes"]:
        return ""
    return f"{steps[0] / steps[1] - 1:.1%}"


def remarks(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield what the cells leave out: reasons without a plan, and plans that were not tried."""
    for search, plans in variants(results):
        for task in (search, *plans):
            result = results[task.key]
            if "reason" in result:
                yield f"{label(task)}, {task.plan or 'search'}: {result['reason']}"
            if "left out" in result.get("account", ""):
                yield f"{label(task)}: {result['account']}"


# The command


def main() -> None:
    """Run rows, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the names of the rows")
    measure = commands.add_parser("run", help="measure rows")
    measure.add_argument("row", nargs="+", choices=tuple(rows()), metavar="ROW")
    measure.add_argument("--effort", type=float, default=1.0, metavar="E", help="(1)")
    measure.add_argument(
        "--ablation", action="append", default=[], metavar="OPTION=VALUE", help="repeatable"
    )
    measure.add_argument("--links", type=float, default=1.0, help="factor on bandwidths (1)")
    measure.add_argument(
        "--exposed", type=float, default=0.0, help="share of communication that is not hidden (0)"
    )
    measure.add_argument("--only", choices=("search", "named"), help="one part of each row (both)")
    measure.add_argument("--again", action="store_true", help="also what was measured before")
    write = commands.add_parser("table", help="write the page")
    write.add_argument("--out", type=Path, default=HERE.with_suffix(".md"))
    alone = commands.add_parser("ablations", help="print a table of searches alone")
    for command in (measure, write, alone):
        command.add_argument("--results", type=Path, default=HERE.with_suffix(".jsonl"))
    one = commands.add_parser("task")  # in a process of its own
    one.add_argument("key")
    one.add_argument("effort", type=float)
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(rows()))
    elif arguments.command == "run":
        run_rows(arguments)
    elif arguments.command == "task":
        task = Task(*json.loads(arguments.key))
        print(json.dumps(measured(task, arguments.effort), default=str))
    elif arguments.command == "ablations":
        print(ablations(read(arguments.results)))
    else:
        arguments.out.write_text(document(arguments.results))


def run_rows(arguments: argparse.Namespace) -> None:
    """Measure the tasks of some rows that are not measured yet."""
    ablation = dict(map(setting, arguments.ablation))
    for name in arguments.row:
        named = () if arguments.only == "search" else rows()[name].plans
        for plan in named if arguments.only == "named" else (None, *named):
            task = Task(name, plan, ablation, arguments.links, arguments.exposed)
            if arguments.again or task.key not in read(arguments.results):
                run(task, arguments)


def setting(text: str) -> tuple[str, Any]:
    """Return the option and the value in ``option=value``."""
    name, equals, value = text.partition("=")
    if not equals or name not in (*OPTION_NAMES, "mesh"):
        sys.exit(f"whole_plans: `{text}` is no option with a value; there are {OPTION_NAMES}")
    try:
        return name, value if name == "mesh" else json.loads(value)
    except json.JSONDecodeError:
        return name, value


def read(
    path: Path, wanted: Callable[[dict[str, Any]], bool] = is_whole
) -> dict[str, dict[str, Any]]:
    """Return the last wanted result of each task by its key."""
    lines: Sequence[str] = path.read_text().splitlines() if path.is_file() else ()
    results = [json.loads(line) for line in lines]
    return {one["key"]: one for one in results if wanted(one)}


if __name__ == "__main__":
    main()
