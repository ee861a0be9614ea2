"""How far measured steps are from predicted ones, as intervals that hold four in five.

``python -m benchmarks.measurements intervals`` writes them to the product's file. A source counts
as much as another, whatever its number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
import yaml

from benchmarks.measurements.figures import FOLDER, Fitted
from benchmarks.measurements.left_out import known_left_out
from benchmarks.measurements.predictions import Floats, Prepared, Steps
from benchmarks.measurements.rows import Row
from shardwright.compiler.evaluation.model import EvaluatedModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.intervals import SHARE
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.recipes import RECIPES
from shardwright.planner.options import CompileOptions

_FILE = FOLDER / "published" / "errors.yaml"
_HEAD = """# Measured over predicted steps of published runs: four in five lie between `low` and
# `high`, and as many below as above; each source counts as much as another. Made by
# `python -m benchmarks.measurements intervals`. `fitted` are steps of sources whose software and
# devices were fitted to, which `fitted_to` names; `left_out` those of sources that were left out
# of the fit; `program` those of programs by the figures of devices alone, without what the
# software adds. `shortest` is the shortest of all steps in seconds: what is shorter has no
# interval.
"""
_FEWEST = 20  # rows of a source that the check counts
_PROGRAMS = 12  # rows of a source whose programs are evaluated
_CONSTANT = 0.15  # relative, the half-width that intervals are compared with


@dataclass(frozen=True)
class Spread:
    """log(measured / predicted) of the rows of sources.

    Parameters
    ----------
    by_source : dict of str to array
        Of each source.
    """

    by_source: dict[str, Floats]

    @property
    def bounds(self) -> tuple[float, float]:
        """The logarithms that four in five lie between, as many below as above."""
        found = np.concatenate([*self.by_source.values()])
        weights = np.concatenate([np.full(len(e), 1 / len(e)) for e in self.by_source.values()])
        order = np.argsort(found)
        below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
        low, high = np.interp([(1 - SHARE) / 2, (1 + SHARE) / 2], below, found[order])
        return float(low), float(high)

    def without(self, source: str) -> "Spread":
        """Return that of the other sources."""
        return Spread({name: one for name, one in self.by_source.items() if name != source})


def spreads(prepared: Prepared, figures: Sequence[Fitted]) -> dict[str, Spread]:
    """Return how far measured steps are from predicted ones, by how the figures are known."""
    rows = prepared.rows
    measured = np.log([row.seconds for row in rows])
    values = [figure.value for figure in figures]
    fitted = measured - np.log(Steps(prepared, figures).seconds(values))
    sources = list(dict.fromkeys(row.source for row in rows))
    own = {source: np.array([row.source == source for row in rows]) for source in sources}
    left_out = known_left_out(figures)
    return {
        "fitted": Spread({source: fitted[own[source]] for source in sources}),
        "left_out": Spread({s: -left_out[s] for s in sources if s in left_out}),
        "program": _of_programs(rows),
    }


def _of_programs(rows: Sequence[Row]) -> Spread:
    """Return how far rows are from their programs by figures of devices, no software beside them.

    Of each source some rows are evaluated, evenly spaced: a program of all layers takes a second.
    Steps by a recipe of low precision are left out.
    """
    found: dict[str, list[float]] = {}
    rows = [row for row in rows if row.precision not in RECIPES]
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        few = own[:: max(len(own) // _PROGRAMS, 1)][:_PROGRAMS]
        found[source] = [log(row.seconds / _program_seconds(row)) for row in few]
    return Spread({source: np.array(each) for source, each in found.items()})


def _program_seconds(row: Row) -> float:
    """Return the step of the program of a row, as `shardwright estimate` tells it."""
    sizes = {"layers": row.layers, **dict(row.sizes)}
    text = ",".join(f"{name}={value}" for name, value in sizes.items())
    tied = ",tied=false" if row.family == "gpt" and row.plan.pipeline > 1 else ""
    definition = training_definition(f"{row.family}:{text}{tied}", row.batch, 1)[0]
    types = (row.precision, row.reduce_type, row.accumulate_type)
    names = ("precision", "reduce_type", "accumulate_type")
    asked = CompileOptions(optimizer=Optimizer("adam", {}), **dict(zip(names, types, strict=True)))
    model = EvaluatedModel(definition.graph, cluster(row.cluster), asked)
    return model.evaluation(row.plan, row.devices).seconds


def write(prepared: Prepared, found: dict[str, Spread]) -> None:
    """Write the intervals, and what was fitted to, to the product's file."""
    document: dict[str, object] = {}
    for name, spread in found.items():
        low, high = map(exp, spread.bounds)
        rows = sum(map(len, spread.by_source.values()))
        document[name] = {
            "low": round(low, 3),
            "high": round(high, 3),
            "source": f"{rows} published steps: {', '.join(spread.by_source)}",
        }
    document["shortest"] = min(row.seconds for row in prepared.rows)
    devices: dict[str, list[str]] = {}
    for row in prepared.rows:
        of = devices.setdefault(row.software.split("+")[0], [])
        name = cluster(row.cluster).device.name
        if name not in of:
            of.append(name)
    document["fitted_to"] = dict(sorted(devices.items()))
    text = yaml.safe_dump(document, sort_keys=False, width=100)
    _FILE.write_text(_HEAD + text, encoding="utf-8")


def section(found: dict[str, Spread]) -> list[str]:
    """Return the lines of the page: what intervals hold that were made without the source."""
    left_out = found["left_out"]
    lines = [
        "## Intervals",
        "",
        f"The interval of a step holds {SHARE:.0%} of the measured ones",
        "([errors.yaml](../cost_model/published/errors.yaml)). Here each source is judged by the",
        "interval that the other sources give, each left out of the fit. The score is the width",
        "plus 10 times what a row lies outside, in logarithms; beside it that of a constant 15 %.",
        "",
        "| source left out | rows | interval | held | half-width | score | of 15 % |",
        "|---|---|---|---|---|---|---|",
    ]
    shares, held, count = list[float](), 0, 0
    for source, own in left_out.by_source.items():
        low, high = left_out.without(source).bounds
        inside = int(((own >= low) & (own <= high)).sum())
        ends = f"{_signed(low)} to {_signed(high)}"
        width = f"{50 * (exp(high) - exp(low)):.1f} %"
        scores = [f"{_score(own, *each):.2f}" for each in ((low, high), _constant())]
        shares.append(inside / len(own))
        cells = (source, f"{len(own)}", ends, f"{shares[-1]:.0%}", width, *scores)
        lines.append(f"| {' | '.join(cells)} |")
        if len(own) >= _FEWEST:
            held, count = held + inside, count + len(own)
    if count:
        rows = (
            f"Of the {count} rows of sources with at least {_FEWEST}, {held / count:.0%} are held"
        )
        lines += ["", f"{rows}; in the mean of all sources {np.mean(shares):.0%}."]
    return [*lines, "", *_kinds(found)]


def _kinds(found: dict[str, Spread]) -> Iterator[str]:
    """Yield the lines on the intervals that the product has."""
    yield "| figures | measured over predicted step |"
    yield "|---|---|"
    for name, spread in found.items():
        if spread.by_source:
            low, high = map(exp, spread.bounds)
            yield f"| {name.replace('_', ' ')} | {low:.3f} to {high:.3f} |"


def _constant() -> tuple[float, float]:
    return log(1 - _CONSTANT), log(1 + _CONSTANT)


def _score(own: Floats, low: float, high: float) -> float:
    """Return the mean interval score (Gneiting and Raftery, 2007) of logarithms; less is better."""
    outside = np.maximum(low - own, 0) + np.maximum(own - high, 0)
    return float((high - low + 2 / (1 - SHARE) * outside).mean())


def _signed(logarithm: float) -> str:
    return f"{100 * (exp(logarithm) - 1):+.1f} %"
