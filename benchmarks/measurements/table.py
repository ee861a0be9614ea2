"""The page of predicted against measured steps."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.choice import choices
from benchmarks.measurements.compared import Compared
from benchmarks.measurements.constant import CLAIMS
from benchmarks.measurements.constant import errors as constant_errors
from benchmarks.measurements.figures import Fitted
from benchmarks.measurements.left_out import errors_of
from benchmarks.measurements.pictures import Point
from benchmarks.measurements.predictions import Prepared
from benchmarks.measurements.programs import repetition
from benchmarks.measurements.rows import Row
from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.attained import DeviceEfficiency
from shardwright.cost_model.efficiency.figures import Figure, Rate
from shardwright.cost_model.efficiency.program_work import ProgramTimes
from shardwright.cost_model.efficiency.software import software

Floats = NDArray[np.float64]
_WORST = 12

_WHY = """Beside each row is the one of the same source and model whose plan is most alike. Where
that one is predicted well, the program lacks what makes the row slow or fast."""
_HEAD = """# Predicted against measured steps

Published runs that the product can express, by source. The step is predicted on the product's own
path: the model of the zoo, the program of the named plan, and its timeline with the figures of the
cluster and software files (`python -m benchmarks.measurements table`). Errors are of the step,
relative to the measured one. Means are over all rows of a source but those listed as left out.

- **data sheet**: the same program with every operator and link at its peak, no host time, nothing
  hidden or fused.
- **model**: with the figures of the files, fitted to all rows here (`... fit`).
- **left out**: with figures fitted to the other sources alone, of each at most 50 rows (`...
  left-out SOURCE`); **scaled**: and one factor for all rows of the source.
- **constant**: the operations of the step over the peak times a constant, the best for the source;
  **one for all**: the best for all sources.

![Predicted against measured steps](measurements/time.svg)

The dashed lines are 10 % off.
"""

_TRIED = (
    "## Tried and left out",
    "",
    "Mean errors of the step; none of these is in the product.",
    "",
    "| change | fitted to | Korthikanti | SC21 | vTrain multi | vTrain single | nanotron |",
    "|---|---|---|---|---|---|---|",
    "| ranks that launch apart as host time alone, log2(n) of a constant for each software | 233"
    " rows of all sources | 3.0 % | 2.8 % | 6.0 % | 8.2 % | 12.5 % |",
    "| the host time of a collective by log2(n), the skew of devices beside it | 131 rows on A100 |"
    " 3.5 % | 2.5 % | 5.3 % | 7.6 % | |",
    "| a source of n rows counts as n to the power 1/2 instead of 3/4 | all rows | 4.4 % | 2.4 % |"
    " 5.3 % | 7.0 % | 13.0 % |",
    "| the host time of a collective by log2(n), the skew of devices beside it, measured NVLink |"
    " 273 rows on A100 | 3.6 % | 2.5 % | 4.3 % | 6.3 % | |",
    "| the skew of devices at what nccl-tests show, 20 us for each doubling, measured NVLink | 273"
    " rows on A100 | 3.7 % | 2.5 % | 4.7 % | 6.9 % | |",
    "",
    "Each with the figures fitted anew. The first three were tried before the bandwidth of NVLink",
    "on A100 was a measured figure (all-reduces of nccl-tests, which vTrain publishes with its",
    "rows: 229 GB/s of 300): rows told it to 14 % alone, and a fit took 260 GB/s, which nobody",
    "measures, against the skew of ranks. Korthikanti's error was 4.1 % so, and is 3.7 % with the",
    "measured one. The last two are with it; without them the same 273 rows gave 3.6, 2.5, 4.3",
    "and 6.2 %.",
    "",
    "Computation that communication beside it slows has no figure of its own: it takes as much",
    "longer as if a share of the communication were exposed, and steps alone do not tell the two",
    "apart. So the shares of a profile (`exposed_parameters`, `exposed_activations`) hold both.",
    "",
    "Products of 16-bit numbers whose last dimension is no multiple of 8 keep a fifth to two",
    "fifths of their rate on an H100, as measured on one ([page](gpu/h100.md)). Only rows of",
    "nanotron have such a dimension, a vocabulary of 50,257. Without that share its copies were",
    "fitted to 9.2 times their traffic; with it the rows do not tell them from their prior.",
    "",
    "The share that rings of several, but not all, devices of a node attain between nodes",
    "(`several`) is a figure of `a100-800g` alone, whose nodes have four network cards for eight",
    "devices: 24 rows of vTrain have such groups, and its error of many nodes was 5.3 % without.",
    "Where each device has a card, the rows speak against it: with a share of one half, SC21's",
    "error was 5.3 % instead of 2.5 %, and those of Megatron-Core and nanotron were the same",
    "within 0.1 %.",
    "",
    "Two rows are slower with a larger micro-batch, and nothing here says why: 18 billion",
    "parameters on 256 devices with 16 samples (10.5 s, with 8 it was 9.6 s), which costs the",
    "regret of that group, and 3.6 billion on 64 with 64 samples (9.8 s, with 32 it was 5.0 s).",
    "It is not the size of a message, nor a device near the end of its memory, as far as rows",
    "tell: 18 billion with `tensor=8,pipeline=8,micro_batch=32` sends messages of the same 805 MB",
    "as the second of them and holds as many activations (43 and 42 GiB by the formulas of",
    "Korthikanti et al.), and plans of 175 billion hold 71 GiB in all, where these two hold 60",
    "and 49; those are predicted within 5 %. No smaller skew of ranks changes the choice: where",
    "it is what nccl-tests show, the larger micro-batch is still predicted to be the fastest.",
    "",
    "Copies of recipes of low precision were priced after the figures of H100 and B200 had been",
    "fitted, and first by each product for itself. But queries, keys and values read one quantized",
    "copy of their input, and so do the first products of a gated feed-forward: in a layer of",
    "Llama 3 70B on 4 tensor ranks that was 42 % too many bytes, and too many kernels.",
    "Both are priced once now, as the software makes copies, and three rows of Megatron-Core are",
    "read as what they were, delayed scaling; no figure was fitted for it:",
    "",
    "| errors | price | Megatron-Core | torchtitan | nanotron | SimuMax |",
    "|---|---|---|---|---|---|",
    "| all rows | copies of each product | 7.7 % | 5.5 % | 11.9 % | 2.4 % |",
    "| all rows | bytes of copies once | 6.8 % | 4.7 % | 11.9 % | 2.4 % |",
    "| all rows | their kernels too | 6.0 % | 4.7 % | 11.9 % | 2.4 % |",
    "| all rows | delayed scaling, as it is | 5.7 % | 4.7 % | 11.9 % | 2.4 % |",
    "| left out | copies of each product | 18.6 % | 10.6 % | 15.7 % | 6.3 % |",
    "| left out | bytes of copies once | 17.8 % | 10.0 % | 15.8 % | 6.5 % |",
    "| left out | their kernels too | 17.1 % | 9.8 % | 15.9 % | 6.4 % |",
    "| left out | delayed scaling, as it is | 16.6 % | 9.7 % | 15.9 % | 6.5 % |",
    "",
    "Two changes that were fitted to the 69 rows of these devices before that are not taken. With",
    "the figures fitted anew to the price of then, the errors of Megatron-Core were 4.5 %, but no",
    "source that was left out was predicted better, and two figures had no meaning: element-wise",
    "operators would move 0.23 of their traffic, where the activation of a gated feed-forward in",
    "one kernel moves 0.6, and copies 1.39 of theirs. *Sums in products*: Megatron-Core adds the",
    "gradient of a weight to its float32 sum in the product that makes it; the program converts it",
    "and adds it apart, 18 bytes of each weight in every micro-batch, 6 % of that model's step in",
    "fp8. With it and the bytes once, fitted anew, the errors were 4.3 % and left out 24.2 %.",
    "",
)


def table(
    compared: Compared,
    left_out: Sequence[tuple[str, str, str]],
    memory: Sequence[str],
    apart: float,
) -> tuple[str, list[Point]]:
    """Return the page, with the lines about memory, and the points of its picture.

    `apart`: by which share predicted steps have to differ to be told apart.
    """
    rows, model, measured = compared.rows, compared.model, compared.measured
    peaks, left = _at_peaks(compared.prepared), compared.left
    sources = list(dict.fromkeys(row.source for row in rows))
    lines = [_HEAD, "## Time", ""]
    head = "| source | rows | data sheet | constant | one for all | model | bias | within 10 % |"
    lines += [f"{head} left out | scaled | published claim |", "|---" * 11 + "|"]
    constants = constant_errors(rows)
    for source in sources:
        own = np.array([row.source == source for row in rows])
        at = [found[own] / measured[own] for found in (peaks, model)]
        cells = (
            f"{own.sum()}",
            _percent(_error(at[0])),
            *map(_percent, constants[source]),
            f"**{_percent(_error(at[1]))}**",
            f"{100 * (at[1] - 1).mean():+.1f}",
            f"{100 * (abs(at[1] - 1) <= 0.1).mean():.0f} %",
            *map(_percent, errors_of(left[source]) if source in left else (None, None)),
            CLAIMS.get(source, ""),
        )
        lines.append(f"| {source} | {' | '.join(cells)} |")
    lines += ["", *memory, "", *choices(rows, model, peaks, apart), "", *_worst(rows, model)]
    lines += ["", *_TRIED, *_left(left_out)]
    lines += ["", *_figures(compared.figures)]
    triples = zip(rows, measured.tolist(), model.tolist(), strict=True)
    return "\n".join(lines) + "\n", [(row.source, *pair) for row, *pair in triples]


def _percent(error: float | None) -> str:
    return "not measured" if error is None else f"{100 * error:.1f} %"


def _error(ratios: Floats) -> float:
    return float(np.abs(ratios - 1).mean())


def _at_peaks(prepared: Prepared) -> Floats:
    """Return the steps at the peaks of data sheets, as the same software orders communication."""
    found = []
    known: dict[tuple[int, str, str], ProgramTimes] = {}
    for row, made in zip(prepared.rows, prepared.works, strict=True):
        described = cluster(row.cluster)
        key = (id(made), row.cluster, row.software)
        if key not in known:
            known[key] = ProgramTimes(made, _bare(described, row.software))
        found.append(known[key].step(repetition(row, described)))
    return np.array(found)


def _bare(described: Cluster, profile: str) -> Cluster:
    """Return a cluster with data-sheet rates, and a profile that adds and hides nothing."""
    one = Rate(value=1.0, tag="datasheet", source="peak")
    none = Figure(value=0.0, tag="datasheet", source="nothing")
    whole = Figure(value=1.0, tag="datasheet", source="every operator alone")
    efficiency = DeviceEfficiency(matmul=one, attention=one, memory=one)
    recipes = {name: figure.with_value(1.0) for name, figure in described.device.recipes.items()}
    device = described.device.model_copy(
        update={"efficiency": efficiency, "kernels": None, "recipes": recipes}
    )
    levels = tuple(level.model_copy(update={"efficiency": None}) for level in described.levels)
    own = software(profile)
    assert own is not None
    run_by = own.model_copy(
        update={
            **dict.fromkeys(("host", "collective", "transfer", "step"), none),
            **dict.fromkeys(("pointwise", "copies", "updates"), whole),
            **dict.fromkeys(("exposed_parameters", "exposed_activations"), one),
            "attention": "fused",
            "recompute": "reads",
            "recipes": {},
        }
    )
    return described.model_copy(update={"device": device, "levels": levels}).run_by(run_by)


def _worst(rows: Sequence[Row], model: Floats) -> list[str]:
    ratios = model / np.array([row.seconds for row in rows])
    order = np.argsort(-np.abs(np.log(ratios)))[:_WORST]
    lines = ["## Worst rows", "", _WHY, ""]
    lines += [
        "| source | row | model | plan | measured | predicted | nearest row |",
        "|---" * 7 + "|",
    ]
    for i in order:
        row = rows[i]
        model_text = f"{row.layers} layers, hidden {dict(row.sizes)['hidden']}"
        change = f"{model[i]:.3g} s ({100 * (ratios[i] - 1):+.0f} %)"
        near = _nearest(rows, int(i))
        of_near = "" if near is None else f"{rows[near].id}: {_against(rows[near], model[near])}"
        measured = f"{row.seconds:.3g} s"
        cells = (row.source, row.id, model_text, f"`{row.plan}`", measured, change, of_near)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _against(row: Row, predicted: float) -> str:
    error = f"{100 * (predicted / row.seconds - 1):+.0f} %"
    return f"`{row.plan}` {row.seconds:.3g} s ({error})"


def _nearest(rows: Sequence[Row], which: int) -> int | None:
    """Return the row of the same source and model whose plan and size are most alike."""
    row = rows[which]
    fields = asdict(row.plan)

    def distance(other: Row) -> tuple[int, int, float]:
        plan = sum(fields[name] != value for name, value in asdict(other.plan).items())
        size = (other.layers != row.layers) + (other.devices != row.devices)
        micro_batches = (other.plan.micro_batch or 1) / (row.plan.micro_batch or 1)
        return plan, size + (other.batch != row.batch), abs(math.log(micro_batches))

    others = [
        i
        for i, other in enumerate(rows)
        if i != which and (other.source, other.sizes) == (row.source, row.sizes)
    ]
    return min(others, key=lambda i: distance(rows[i]), default=None)


def _left(left_out: Sequence[tuple[str, str, str]]) -> list[str]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for source, _, reason in left_out:
        counts[source, reason] += 1
    lines = ["## Rows left out", "", "| source | rows | reason |", "|---|---|---|"]
    return lines + [f"| {s} | {n} | {reason} |" for (s, reason), n in sorted(counts.items())]


def _figures(figures: Sequence[Fitted]) -> list[str]:
    said = f"{len(figures)} figures are fitted, none for a single row or model."
    lines = ["## Figures", "", f"{said} Those that rows do not tell keep a"]
    lines += ["prior, and are tagged so in the files."]
    lines += ["", "| figure | value |", "|---|---|"]
    return lines + [f"| {f.name} | {f.value:.4g} |" for f in figures]
