"""How far measured steps, and their ratios, are from predicted ones: intervals of four in five.

``python -m benchmarks.measurements table`` writes them to the product's file. A source counts
as much as another, whatever its number of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, log

import numpy as np
import yaml

from benchmarks.measurements.compared import Compared
from benchmarks.measurements.figures import FOLDER
from benchmarks.measurements.predictions import Floats
from benchmarks.measurements.rows import Row, groups
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.intervals import SHARE
from shardwright.models import training_definition
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.recipes import RECIPES
from shardwright.planner.options import CompileOptions

_FILE = FOLDER / "published" / "errors.yaml"
_HEAD = """# Measured over predicted steps of published runs: four in five lie between `low` and
# `high`, and as many below as above; each source counts as much as another. Made by
# `python -m benchmarks.measurements table`. `fitted` are steps of sources whose software and
# devices were fitted to, which `fitted_to` names; `left_out` those of sources that were left out
# of the fit; `program` those of programs by the figures of devices alone, without what the
# software adds. `apart` is the same of ratios of steps, of pairs of plans of one model on the same
# devices that are predicted near each other: four in five lie within one more and one less than
# `share`. `shortest` is the shortest of all steps in seconds: what is shorter has no interval.
# `left_out` is of steps whose layers take at least `shortest_layer` seconds in a micro-batch.
"""
_FEWEST = 20  # rows of a source that the check counts, and pairs that ratios are told from
_PROGRAMS = 12  # rows of a source whose programs are evaluated
# Relative: plans whose predicted steps differ by more are no pair, since nobody asks which of them
# is faster. Fitted plans are told apart by 11.7 % so, with twice as much by 10.1, half by 11.7 %.
_NEAR = 0.25
# Seconds of a step for each layer of a stage and micro-batch, from which steps of sources that were
# left out count. Shorter layers wait for the host, of which published steps of other software tell
# nothing. The check holds 77 % of rows so, 87 % with twice as much, 75 % with half, 56 % without.
_LAYER = 0.01
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
    def count(self) -> int:
        """How many there are of all sources."""
        return sum(map(len, self.by_source.values()))

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


@dataclass(frozen=True)
class Known:
    """How far steps are from predicted ones, by figures that are known in one way.

    Parameters
    ----------
    steps : Spread
        Of steps.
    ratios : Spread
        Of the ratios of pairs of plans, both ways round.
    """

    steps: Spread
    ratios: Spread

    @property
    def apart(self) -> float | None:
        """By which share of the faster step two predicted steps have to differ to be told apart.

        None where there are too few pairs.
        """
        has_several = self.ratios.count >= 2 * _FEWEST
        return exp(self.ratios.bounds[1]) - 1 if has_several else None


def spreads(compared: Compared) -> dict[str, Known]:
    """Return how far measured steps are from predicted ones, by how the figures are known."""
    rows, measured = compared.rows, np.log(compared.measured)
    fitted = measured - np.log(compared.model)
    left_out = np.full(len(rows), np.nan)
    for source, residuals in compared.left.items():
        left_out[[row.source == source for row in rows]] = -residuals
    of_layer = np.exp(measured - left_out) / [row.passes * row.layers for row in rows]
    of_layer *= [row.plan.pipeline for row in rows]
    left_out[of_layer < _LAYER] = np.nan
    errors = {"fitted": fitted, "left_out": left_out, "program": _of_programs(rows)}
    found = {name: known(rows, each) for name, each in errors.items()}
    # Few rows of programs are evaluated, for the interval of steps: they are no sample of pairs.
    found["program"] = replace(found["program"], ratios=Spread({}))
    return found


def known(rows: Sequence[Row], errors: Floats) -> Known:
    """Return how far steps and ratios are from predicted ones, by log(measured / predicted).

    Rows whose error is no number count for nothing.
    """
    steps, ratios = dict[str, list[float]](), dict[str, list[float]]()
    for row, error in zip(rows, errors, strict=True):
        if np.isfinite(error):
            steps.setdefault(row.source, []).append(error)
    predicted = np.log([row.seconds for row in rows]) - errors
    for group in groups(rows):
        for one, other in combinations(group, 2):
            is_near = abs(predicted[one] - predicted[other]) < log(1 + _NEAR)
            if is_near and rows[one].plan != rows[other].plan:
                error = errors[one] - errors[other]
                ratios.setdefault(rows[one].source, []).extend((error, -error))
    both = ({name: np.array(e) for name, e in found.items()} for found in (steps, ratios))
    return Known(*map(Spread, both))


def _of_programs(rows: Sequence[Row]) -> Floats:
    """Return how far rows are from their programs by figures of devices, no software beside them.

    Of each source some rows are evaluated, evenly spaced: a program of all layers takes a second.
    Others, and steps by a recipe of low precision, have no number.
    """
    found = np.full(len(rows), np.nan)
    for source in dict.fromkeys(row.source for row in rows):
        own = [i for i, row in enumerate(rows) if row.source == source]
        own = [i for i in own if rows[i].precision not in RECIPES]
        for i in own[:: max(len(own) // _PROGRAMS, 1)][:_PROGRAMS]:
            found[i] = log(rows[i].seconds / _program_seconds(rows[i]))
    return found


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


def write(rows: Sequence[Row], found: dict[str, Known]) -> None:
    """Write the intervals, and what was fitted to, to the product's file."""
    document: dict[str, object] = {}
    for name, each in found.items():
        low, high = map(exp, each.steps.bounds)
        of_steps = f"{each.steps.count} published steps: {', '.join(each.steps.by_source)}"
        one: dict[str, object] = {"low": round(low, 3), "high": round(high, 3), "source": of_steps}
        if each.apart is not None:
            pairs = f"{each.ratios.count // 2} pairs of published steps"
            source = f"{pairs}: {', '.join(each.ratios.by_source)}"
            one["apart"] = {"share": round(each.apart, 3), "source": source}
        document[name] = one
    document["shortest"] = min(row.seconds for row in rows)
    document["shortest_layer"] = _LAYER
    devices: dict[str, list[str]] = {}
    for row in rows:
        of = devices.setdefault(row.software.split("+")[0], [])
        name = cluster(row.cluster).device.name
        if name not in of:
            of.append(name)
    document["fitted_to"] = dict(sorted(devices.items()))
    text = yaml.safe_dump(document, sort_keys=False, width=100)
    _FILE.write_text(_HEAD + text, encoding="utf-8")


def section(found: dict[str, Known]) -> list[str]:
    """Return the lines of the page: what intervals hold that were made without the source."""
    left_out = found["left_out"].steps
    lines = [
        "## Intervals",
        "",
        f"The interval of a step holds {SHARE:.0%} of the measured ones",
        "([errors.yaml](../cost_model/published/errors.yaml)). Here each source is judged by the",
        "interval that the other sources give, each left out of the fit. Steps count whose layers",
        f"take at least {1000 * _LAYER:.0f} ms in a micro-batch: shorter ones wait for the host,",
        "of which steps of other software tell nothing, and have no interval unless they were",
        "fitted. The score is the width plus 10 times what a row lies outside, in logarithms;",
        "beside it that of a constant 15 %.",
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
    return [*lines, "", *_kinds(found), *_of_ratios(found)]


def _kinds(found: dict[str, Known]) -> Iterator[str]:
    """Yield the lines on the intervals that the product has."""
    yield "| figures | measured over predicted step | steps that are told apart |"
    yield "|---|---|---|"
    for name, each in found.items():
        if each.steps.by_source:
            low, high = map(exp, each.steps.bounds)
            apart = "not known" if each.apart is None else f"by {each.apart:.1%}"
            ends = f"{low:.3f} to {high:.3f} | {apart}"
            yield f"| {name.replace('_', ' ')} | {ends} |"


def _of_ratios(found: dict[str, Known]) -> Iterator[str]:
    """Yield the lines on ratios: what is held of a source by the ratios of the others."""
    yield from _RATIOS
    for source in found["fitted"].ratios.by_source:
        cells = [source]
        for ratios in (found[name].ratios for name in ("fitted", "left_out")):
            if source in ratios.by_source:
                own, (_, high) = ratios.by_source[source], ratios.without(source).bounds
                held = (np.abs(own) <= high).mean()
                cells += [f"{len(own) // 2}", f"{exp(high) - 1:.1%}", f"{held:.0%}"]
            else:
                cells += ["", "", ""]
        yield f"| {' | '.join(cells)} |"


_RATIOS = (
    "",
    "Errors of a source are alike, so that ratios of its steps are known better than steps. A pair",
    "is two plans of one model on the same devices, with the same batch, that are predicted within",
    f"{_NEAR:.0%} of each other; four in five of the measured ratios lie within so much of the",
    "predicted ones, and plans whose steps differ by less are not told apart. Here each source is",
    "judged by the ratios of the others, with figures fitted to all sources, and left out.",
    "",
    "| source | pairs, fitted | apart by | held | pairs, left out | apart by | held |",
    "|---|---|---|---|---|---|---|",
)


def _constant() -> tuple[float, float]:
    return log(1 - _CONSTANT), log(1 + _CONSTANT)


def _score(own: Floats, low: float, high: float) -> float:
    """Return the mean interval score (Gneiting and Raftery, 2007) of logarithms; less is better."""
    outside = np.maximum(low - own, 0) + np.maximum(own - high, 0)
    return float((high - low + 2 / (1 - SHARE) * outside).mean())


def _signed(logarithm: float) -> str:
    return f"{100 * (exp(logarithm) - 1):+.1f} %"
