"""Predicted steps of rows, and their derivatives by figures."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurements.figures import Fitted, Rates, concerns
from benchmarks.measurements.programs import repetition, work_of
from benchmarks.measurements.rows import Row
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.fitting import Fit, fit
from shardwright.cost_model.efficiency.program_work import ProgramTimes, ProgramWork, Repetition
from shardwright.dataflow.schedule_paths import Path

Floats = NDArray[np.float64]
_NOISE = 0.05  # relative, of a measured step that the model has the physics of


@dataclass
class Prepared:
    """Rows with the work of their programs."""

    rows: Sequence[Row]
    works: list[ProgramWork] = field(default_factory=list)
    repetitions: list[Repetition] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Prepared":
        """Read or make the work of rows; equal ones are one object."""
        known: dict[object, ProgramWork] = {}
        found = cls(rows)
        for row in rows:
            made = work_of(row)
            key = (made.mesh, made.entries, len(made.parts))
            found.works.append(known.setdefault(key, made))
            found.repetitions.append(repetition(row, cluster(row.cluster)))
        return found

    def only(self, keep: Sequence[bool]) -> "Prepared":
        """Return some of the rows."""
        triples = zip(self.rows, self.works, self.repetitions, strict=True)
        kept = [triple for triple, is_kept in zip(triples, keep, strict=True) if is_kept]
        return Prepared(*(list(column) for column in zip(*kept, strict=True)))

    def times(self, rates: Rates, only: Sequence[bool] | None = None) -> list[ProgramTimes | None]:
        """Return the times of the program of every row under some rates."""
        known: dict[tuple[int, str, str], ProgramTimes] = {}
        found: list[ProgramTimes | None] = []
        for i, (row, made) in enumerate(zip(self.rows, self.works, strict=True)):
            if only is not None and not only[i]:
                found.append(None)
                continue
            key = id(made), row.cluster, row.software
            if key not in known:
                known[key] = ProgramTimes(made, rates.cluster(row.cluster, row.software))
            found.append(known[key])
        return found


@dataclass
class Steps:
    """The predicted steps of rows for values of figures."""

    prepared: Prepared
    figures: Sequence[Fitted]
    paths: list[Path | None] = field(default_factory=list)

    def seconds(self, values: Sequence[float]) -> Floats:
        """Return the predicted steps."""
        times = self.prepared.times(Rates(self.figures, values))
        pairs = zip(times, self.prepared.repetitions, strict=True)
        found = [one.step_and_path(shape) for one, shape in pairs if one is not None]
        self.paths = [path for _, path in found]
        return np.array([step for step, _ in found])

    def residuals(self, values: Sequence[float]) -> Floats:
        """Return log(predicted / measured)."""
        measured = np.array([row.seconds for row in self.prepared.rows])
        return np.log(self.seconds(values) / measured)

    def derivatives(self, values: Sequence[float], difference: float) -> Floats:
        """Return the derivatives of the residuals, along the critical paths of the last call."""
        base = self._along(Rates(self.figures, values), None)
        slopes = np.zeros((len(base), len(self.figures)))
        for column, figure in enumerate(self.figures):
            other = list(values)
            other[column] *= 1 - difference
            only = [concerns(figure, *r.kind) for r in self.prepared.rows]
            found = self._along(Rates(self.figures, other), only)
            change = np.where(only, np.log(found / base), 0.0)
            slopes[:, column] = change / np.log(1 - difference)
        return slopes

    def _along(self, rates: Rates, only: Sequence[bool] | None) -> Floats:
        times = self.prepared.times(rates, only)
        triples = zip(times, self.prepared.repetitions, self.paths, strict=True)
        return np.array(
            [one.step_and_path(shape, path)[0] if one else 1.0 for one, shape, path in triples]
        )


def weights(rows: Sequence[Row]) -> Floats:
    """Return the weights of rows: a source of n rows counts as n to the power 3/4."""
    counts = Counter(row.source for row in rows)
    return np.array([counts[row.source] ** -0.25 for row in rows])


def fitted(
    prepared: Prepared,
    figures: Sequence[Fitted],
    keep: Sequence[bool],
    steps: int = 20,
    held: Sequence[Fitted] = (),
) -> Fit:
    """Return the figures, fitted to the rows that are kept; some are held at their priors."""
    part = prepared.only(keep)
    predicted = Steps(part, figures)
    return fit(
        [figure.held if figure in held else figure.unknown for figure in figures],
        predicted.residuals,
        predicted.derivatives,
        weights(part.rows) / _NOISE**2,
        steps,
    )


def parts(rows: Sequence[Row], figures: Sequence[Fitted]) -> list[tuple[list[bool], list[Fitted]]]:
    """Divide rows and figures into parts without a figure in common, which are fitted apart."""
    found = []
    kinds = dict.fromkeys(row.kind for row in rows)
    while kinds:
        own = {next(iter(kinds))}
        while True:
            touched = [f for f in figures if any(concerns(f, *kind) for kind in own)]
            more = {k for k in kinds if k not in own and any(concerns(f, *k) for f in touched)}
            if not more:
                break
            own |= more
        found.append(([row.kind in own for row in rows], touched))
        kinds = dict.fromkeys(kind for kind in kinds if kind not in own)
    return found
