"""How sure predicted steps are: how far published ones, and their ratios, were from predicted ones.

Errors of one source are alike, so the ratio of two of its steps is known better than a step. Which
of two plans is faster is therefore told by ratios of published plans, not by the intervals of both.
"""

from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

from shardwright.cost_model.cluster import Cluster

SHARE: Final = 0.8
"""Of measured steps, the share that an interval holds; below it are as many as above."""
_TABLE = files("shardwright.cost_model") / "published" / "errors.yaml"
_KNOWN = ("measured", "fitted")


@dataclass(frozen=True)
class Interval:
    """What runs like a predicted one take.

    Parameters
    ----------
    low, high : float
        Its ends in seconds.
    known_by : str
        How the figures are known: ``fitted`` to published steps of the same software and device,
        ``left_out`` where published steps of others tell, or ``program`` where the step is that of
        the program, without what a training software adds.
    source : str
        The published steps that the ends are from.
    """

    low: float
    high: float
    known_by: str
    source: str

    @property
    def document(self) -> dict[str, Any]:
        """The interval as scripts read it."""
        return {"share": SHARE, **asdict(self)}


@dataclass(frozen=True)
class Apart:
    """By how much two predicted steps have to differ to tell which plan is the faster one.

    The plans are of one model, on the same devices, with the same batch.

    Parameters
    ----------
    share : float
        Of the faster step. Measured over predicted ratios of published plans that are predicted
        near each other lie within one more and one less than it as often as steps in an interval.
    known_by, source : str
        As of `Interval`.
    """

    share: float
    known_by: str
    source: str

    def tells(self, one: float, other: float) -> bool:
        """Return whether two predicted steps are far enough apart."""
        return max(one, other) >= min(one, other) * (1 + self.share)

    @property
    def document(self) -> dict[str, Any]:
        """The same as scripts read it."""
        return {"interval_share": SHARE, **asdict(self)}


@dataclass(frozen=True)
class Step:
    """A predicted step.

    Parameters
    ----------
    seconds : float
        How long it takes.
    of_layer : float
        The same for each layer and micro-batch on a device of a pipeline: seconds of the step over
        the layers of a stage and the micro-batches.
    cluster : Cluster
        The devices, with the software that the step is of.
    is_dense : bool
        Whether no expert is chosen; published steps of dense models alone were fitted to.
    recipe : str
        The recipe of low precision of its products; empty without one.
    """

    seconds: float
    of_layer: float
    cluster: Cluster
    is_dense: bool
    recipe: str = ""

    @property
    def known_by(self) -> str | None:
        """How its figures are known, as `Interval` says.

        None where the device's figures, or that of a recipe, are of its data sheet or scaled from
        another device's, or the step is shorter than all published ones: no published step of such
        a kind was compared. So it is where nothing was fitted to its software and its layers are
        short: they take what the host takes to launch them, which software alone tells.
        """
        table, run_by, device = _table(), self.cluster.software, self.cluster.device
        found = "program"
        if run_by is not None:
            is_fitted = device.name in table["fitted_to"].get(run_by.name.split("+")[0], ())
            found = "fitted" if is_fitted and self.is_dense else "left_out"
        is_known = device.efficiency is not None and device.efficiency.matmul.tag in _KNOWN
        if self.seconds < table["shortest"] or not (is_known or found == "fitted"):
            return None
        if found == "left_out" and self.of_layer < table["shortest_layer"]:
            return None
        if self.recipe and device.recipes[self.recipe].tag not in _KNOWN:
            return None
        return found


def step_interval(step: Step) -> Interval | None:
    """Return the interval of a predicted step; None where no published step tells."""
    how = step.known_by
    if how is None:
        return None
    found, seconds = _table()[how], step.seconds
    return Interval(seconds * found["low"], seconds * found["high"], how, found["source"])


def told_apart(step: Step) -> Apart | None:
    """Return by how much other steps have to differ; None where no published ratios tell.

    That is where no published step tells, and of programs without a software.
    """
    how = step.known_by
    found = None if how is None else _table()[how].get("apart")
    return None if how is None or found is None else Apart(**found, known_by=how)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table
