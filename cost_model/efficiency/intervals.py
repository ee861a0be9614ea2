"""The interval of a predicted step: how far published steps were from predicted ones."""

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


def step_interval(
    seconds: float, cluster: Cluster, is_dense: bool, recipe: str = ""
) -> Interval | None:
    """Return the interval of a predicted step.

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
    known_by = "program"
    if run_by is not None:
        is_fitted = device.name in table["fitted_to"].get(run_by.name.split("+")[0], ())
        known_by = "fitted" if is_fitted and is_dense else "left_out"
    is_known = device.efficiency is not None and device.efficiency.matmul.tag in _KNOWN
    if seconds < table["shortest"] or not (is_known or known_by == "fitted"):
        return None
    if recipe and device.recipes[recipe].tag not in _KNOWN:
        return None
    found = table[known_by]
    return Interval(seconds * found["low"], seconds * found["high"], known_by, found["source"])


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table
