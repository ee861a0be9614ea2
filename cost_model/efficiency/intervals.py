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


def step_interval(
    seconds: float, cluster: Cluster, is_dense: bool, recipe: str = ""
) -> Interval | None:
    """Return the interval of a predicted step; None where `known_by` says that nothing tells."""
    how = known_by(seconds, cluster, is_dense, recipe)
    if how is None:
        return None
    found = _table()[how]
    return Interval(seconds * found["low"], seconds * found["high"], how, found["source"])


def told_apart(seconds: float, cluster: Cluster, is_dense: bool, recipe: str = "") -> Apart | None:
    """Return by how much steps have to differ; None where no published ratios tell.

    That is where `known_by` says that nothing tells, and of programs without a software.
    """
    how = known_by(seconds, cluster, is_dense, recipe)
    found = None if how is None else _table()[how].get("apart")
    return None if how is None or found is None else Apart(**found, known_by=how)


def known_by(seconds: float, cluster: Cluster, is_dense: bool, recipe: str = "") -> str | None:
    """Return how the figures of a predicted step are known, as `Interval` says.

    None where the device's figures, or that of a recipe, are of its data sheet or scaled from
    another device's, or the step is shorter than all published ones: no published step of such a
    kind was compared.

    Parameters
    ----------
    seconds : float
        The step.
    cluster : Cluster
        The devices, with the software that the step is of.
    is_dense : bool
        Whether no expert is chosen; published steps of dense models alone were fitted to.
    recipe : str
        The recipe of low precision of its products; empty without one.
    """
    table, run_by, device = _table(), cluster.software, cluster.device
    found = "program"
    if run_by is not None:
        is_fitted = device.name in table["fitted_to"].get(run_by.name.split("+")[0], ())
        found = "fitted" if is_fitted and is_dense else "left_out"
    is_known = device.efficiency is not None and device.efficiency.matmul.tag in _KNOWN
    if seconds < table["shortest"] or not (is_known or found == "fitted"):
        return None
    if recipe and device.recipes[recipe].tag not in _KNOWN:
        return None
    return found


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table
