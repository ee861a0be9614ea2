"""Predicted against measured peak memory of published runs.

The program of a row is compiled at full depth, with the micro-batches that fill its pipeline, and
its memory is counted as its software keeps it (`shardwright.cost_model.efficiency.memory_as_run`).
"""

import json
import pickle
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.figures import Fitted, Rates
from benchmarks.measurements.pictures import Point
from benchmarks.measurements.programs import CACHE, at
from benchmarks.measurements.rows import (
    SOURCES,
    LeftOutError,
    Row,
    gpt_row,
    plan_of,
)
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.fitting import Fit, fit
from shardwright.cost_model.efficiency.memory_as_run import lasting_bytes, memory_as_run
from shardwright.ir.graph import Graph

Floats = NDArray[np.float64]
GIB = 2.0**30
_MANY = 1e15
_NOISE = 0.03
# The prior, the standard deviation of its logarithm, and the upper bound of figures.
_KINDS = {
    "memory.activations": (1.0, 0.3, _MANY),
    "memory.logits": (8.0, 0.5, _MANY),
    "memory.workspace": (5e7, 1.0, _MANY),
}


def _figures(profile: str, kinds: Mapping[str, tuple[float, float, float]]) -> list[Fitted]:
    place = ("software", profile)
    return [Fitted(f"{profile} {key}", *how, ((*place, key),)) for key, how in kinds.items()]


FIGURES = (
    *_figures("megatron-core", _KINDS),
    *_figures("nanotron", _KINDS),
    *_figures(
        "torchtitan",
        _KINDS
        | {"memory.workspace": (4e9, 0.3, _MANY), "memory.reserved": (1.3, 0.05, _MANY)}
        | {"options.eager.memory.activations": (1.1, 0.3, _MANY)},
    ),
)


@dataclass(frozen=True)
class Measured:
    """A row with its measured memory.

    Parameters
    ----------
    row : Row
        The run.
    gib : float
        Its peak.
    between : float or None
        What is allocated between steps, where that is given.
    device : str
        The cluster of its device; by default that of the row.
    """

    row: Row
    gib: float
    between: float | None = None
    device: str = ""

    @property
    def source(self) -> str:
        """The source."""
        return self.row.source

    @property
    def configuration(self) -> Hashable:
        """What its memory depends on."""
        row = self.row
        where = self.device or row.cluster
        return row.sizes, row.layers, row.plan, row.devices, row.batch, row.software, where

    def program(self, folder: Path = CACHE) -> Graph:
        """Return the program at full depth, of the cache if it is there."""
        row = self.row
        stages = row.plan.pipeline
        passes = min(row.passes, stages + 1 if stages > 1 else 2)
        if row.plan.chunks > 1:
            passes = min(row.passes, 2 * stages)
        wanted = at(row, row.layers, stages, passes)
        if row.plan.chunks > 1:
            plan = replace(row.plan, micro_batch=row.plan.micro_batch)
            wanted = replace(wanted, plan=plan.text)
        path = folder / f"{wanted.key}.program"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pickle.dumps(wanted.program()))
        found = pickle.loads(path.read_bytes())
        assert isinstance(found, Graph)
        return found


PROFILES = ("megatron-core", "nanotron", "torchtitan")
_CI = "Megatron's tests"
_CI_DEVICES = {"A100": "a100-selene", "H100": "h100-3200g", "GB200": "gb200-nvl72"}
_WORST = 8
_HEAD = """The peak of a rank, by the program at full depth as its software keeps tensors (`estimate
--software`, `kept`). torchtitan measures what its allocator reserves, the others what is allocated;
Megatron's tests log the last rank, and equal configurations of them differ up to 1.96 times.

![Predicted against measured peaks](measurements/memory.svg)
"""
_UNLIKE = ("frozen", "uneven", "distill", "account_for", "fp8", "grpo", "7b", "memory_speed")


def read_memory(path: Path) -> tuple[list[Measured], list[tuple[str, str, str]]]:
    """Return the rows with memory, and of every other one with memory the reason."""
    found, left_out = [], []
    for record in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if "memory_gib_per_gpu" not in record:
            continue
        source = record["source"]
        try:
            found.append(_measured(record))
        except LeftOutError as error:
            left_out.append((source, str(record["id"]), str(error)))
    return found, left_out


def _measured(record: Mapping[str, Any]) -> Measured:
    source, gib = record["source"], record["memory_gib_per_gpu"]
    if "CI" in source:
        text = record["memory_kind"].partition("between steps ")[2]
        return Measured(_ci(record), gib, float(text.split()[0]), _CI_DEVICES[record["gpu"]])
    make = next((make for name, make in SOURCES.items() if source.startswith(name)), None)
    if make is None:
        raise LeftOutError("no reader for this source")
    return Measured(make({**record, "quality": "exact"}), gib)  # memory is not noisy


def _ci(record: Mapping[str, Any]) -> Row:
    arch, model = record["arch"], record["model"]
    flags = json.loads(record["notes"] or "{}")
    if not model.startswith("gpt/") or arch["experts"] or arch["mla"] or arch["swiglu"]:
        raise LeftOutError("no plain GPT: BERT, experts, latent attention, images or SwiGLU")
    if any(word in model for word in _UNLIKE) or arch["hidden"] != 512:
        raise LeftOutError("a GPT with uneven stages, frozen parts, float8 or other sizes")
    tensor, stages, data = record["tp"], record["pp"], record["dp"]
    each = flags.get("num-layers-per-virtual-pipeline-stage")
    padded = 128 * tensor
    sizes = {
        "hidden": arch["hidden"],
        "heads": arch["heads"],
        "sequence": record["seq"],
        "vocabulary": -(-50_257 // padded) * padded,
    }
    plan = plan_of(
        record,
        chunks=arch["layers"] // (stages * each) if each else 1,
        sequence_parallel=tensor > 1 and bool(flags.get("sequence-parallel")),
        zero=1 if flags.get("use-distributed-optimizer") and data * record["cp"] > 1 else 0,
        context=record["cp"],
        recompute="full" if record["recompute"].startswith("full") else "none",
    )
    # Flash kernels run where contexts are split, and on the newest devices.
    software = "megatron-core"
    if not model.startswith("gpt/gpt3_mcore_te"):
        software += "+local"
    elif record["cp"] == 1 and "GB" not in record["gpu"]:
        software += "+separate_attention"
    software += "+deterministic" if flags.get("deterministic-mode") else ""
    where = {"cluster": "h100-3200g", "software": software, "precision": "bfloat16"}
    return gpt_row(record, _CI, sizes, plan, 1.0, **where)


def predicted(measured: Measured, graph: Graph, rates: Rates) -> tuple[float, float]:
    """Return the peak and what stays between steps in GiB."""
    device = cluster(measured.device or measured.row.cluster).device
    profile = rates.software(measured.row.software)
    report = memory_as_run(graph, profile, device)
    peak = report.by_group[-1] if measured.source == _CI and report.by_group else report.peak_bytes
    return peak / GIB, lasting_bytes(graph, profile, device)[-1] / GIB


@dataclass
class Account:
    """The rows of one profile; those of one configuration have one program."""

    rows: Sequence[Measured]
    figures: Sequence[Fitted]
    programs: dict[Hashable, Graph] = field(default_factory=dict)

    def predicted(self, rates: Rates) -> list[tuple[float, float]]:
        """Return the peak and what stays between steps of every row in GiB."""
        found = dict[Hashable, tuple[float, float]]()
        for one in self.rows:
            if one.configuration not in found:
                if one.configuration not in self.programs:
                    self.programs[one.configuration] = one.program()
                program = self.programs[one.configuration]
                found[one.configuration] = predicted(one, program, rates)
        return [found[one.configuration] for one in self.rows]

    def residuals(self, values: Sequence[float]) -> Floats:
        """Return log(predicted / measured) of the peaks, then of what stays where it is known."""
        found = self.predicted(Rates(self.figures, values))
        peaks = [np.log(peak / r.gib) for (peak, _), r in zip(found, self.rows, strict=True)]
        stays = [
            np.log(b / r.between) for (_, b), r in zip(found, self.rows, strict=True) if r.between
        ]
        return np.array([*peaks, *stays])

    def derivatives(self, values: Sequence[float], difference: float) -> Floats:
        """Return their derivatives by the logarithms of figures."""
        base, columns = self.residuals(values), []
        for i in range(len(values)):
            other = [v * (1 + 10 * difference) if i == j else v for j, v in enumerate(values)]
            columns.append((self.residuals(other) - base) / np.log(1 + 10 * difference))
        return np.array(columns).T

    def fitted(self, steps: int = 8) -> Fit:
        """Return the figures of the least error; rows that are alike count as one."""
        every = [*self.rows, *(row for row in self.rows if row.between)]
        counts = Counter(row.configuration for row in self.rows)
        weights = np.array([1 / counts[row.configuration] for row in every]) / _NOISE**2
        unknowns = [figure.unknown for figure in self.figures]
        return fit(unknowns, self.residuals, self.derivatives, weights, steps)


def account_of(path: Path, profile: str) -> Account:
    """Return the rows of a profile, with the figures to fit to them."""
    rows = [one for one in read_memory(path)[0] if one.row.software.split("+")[0] == profile]
    return Account(rows, [f for f in FIGURES if f.places[0][1] == profile])


def section(path: Path) -> tuple[list[str], list[Point]]:
    """Return the lines of the page about memory, and the points of its picture."""
    rows, left_out = read_memory(path)
    errors: dict[str, list[tuple[float, float | None, Measured]]] = {}
    found = Account(rows, ()).predicted(Rates((), ()))
    for one, (peak, between) in zip(rows, found, strict=True):
        lasting = None if one.between is None else between / one.between - 1
        errors.setdefault(one.source, []).append((peak / one.gib - 1, lasting, one))
    lines = [
        "## Memory",
        "",
        _HEAD,
        "| source | rows | peak | bias | within 10 % | between steps |",
    ]
    lines += ["|---|---|---|---|---|---|"]
    for source, own in errors.items():
        peaks = np.array([peak for peak, _, _ in own])
        lasting = [abs(error) for _, error, _ in own if error is not None]
        cells = (
            f"{len(own)}",
            f"**{100 * np.abs(peaks).mean():.1f} %**",
            f"{100 * peaks.mean():+.1f}",
            f"{100 * (np.abs(peaks) <= 0.1).mean():.0f} %",
            f"{100 * np.mean(lasting):.1f} %" if lasting else "not measured",
        )
        lines.append(f"| {source} | {' | '.join(cells)} |")
    lines += [
        "",
        "| farthest off | plan | software | measured | predicted |",
        "|---|---|---|---|---|",
    ]
    worst = sorted((e for own in errors.values() for e in own), key=lambda e: -abs(e[0]))
    shown = {str(one.row.plan): (error, one) for error, _, one in reversed(worst[:40])}
    for error, one in sorted(shown.values(), key=lambda pair: -abs(pair[0]))[:_WORST]:
        gib = f"{one.gib:.4g} GiB", f"{one.gib * (1 + error):.4g} GiB ({100 * error:+.0f} %)"
        cells = (f"{one.source} {one.row.id}", f"`{one.row.plan}`", one.row.software, *gib)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| left out | rows | reason |", "|---|---|---|"]
    reasons = Counter((source, reason) for source, _, reason in left_out)
    lines += [f"| {s} | {n} | {reason} |" for (s, reason), n in sorted(reasons.items())]
    pairs = zip(rows, found, strict=True)
    return lines, [(one.source, one.gib, peak) for one, (peak, _) in pairs]
