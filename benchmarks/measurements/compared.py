"""Rows beside what is predicted of them: by the figures of the files, and by those left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measurements.figures import Fitted
from benchmarks.measurements.left_out import known_left_out
from benchmarks.measurements.predictions import Floats, Prepared, Steps
from benchmarks.measurements.rows import Row


@dataclass(frozen=True)
class Compared:
    """Measured rows and their predicted steps.

    Parameters
    ----------
    prepared : Prepared
        The rows, with the work of their programs.
    figures : sequence of Fitted
        The figures that they are predicted by.
    model : array
        Seconds of the predicted step of each, by the values in the files.
    left : mapping of str to array
        Of sources log(predicted / measured) of their rows, by figures fitted to the others.
    """

    prepared: Prepared
    figures: Sequence[Fitted]
    model: Floats
    left: Mapping[str, Floats]

    @classmethod
    def of(cls, prepared: Prepared, figures: Sequence[Fitted]) -> "Compared":
        """Predict the steps of rows by the figures of the files."""
        model = Steps(prepared, figures).seconds([figure.value for figure in figures])
        return cls(prepared, figures, model, known_left_out(prepared.rows, figures))

    @property
    def rows(self) -> Sequence[Row]:
        """The rows."""
        return self.prepared.rows

    @property
    def measured(self) -> Floats:
        """Seconds of the measured step of each row."""
        return np.array([row.seconds for row in self.rows])
