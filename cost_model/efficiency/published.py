"""The fastest published step on a device: no prediction above it is news.

A step that is predicted above what any published run attains is told so in its report. It is never
clamped: the figures of the cluster are wrong, or the program leaves out what a real run pays.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

_TABLE = files("shardwright.cost_model") / "published" / "steps.yaml"
_LIKE = "like"
SHORT = ("bfloat16", "float16")
"""The types whose products published shares are of; a device has one peak for both."""


@dataclass(frozen=True)
class Published:
    """The fastest published step on a device, or on its nearest relative.

    Parameters
    ----------
    share : float
        Its model flops over the peak rate of 16-bit products.
    source : str
        The run.
    device : str
        The device that it ran on.
    """

    share: float
    source: str
    device: str


def best_published(device: str, kind: str = SHORT[0]) -> Published | None:
    """Return the fastest published step on a device; None where none is known.

    Parameters
    ----------
    device : str
        The name of the device, as cluster files have it.
    kind : str
        What most products were computed in: ``bfloat16``, which float16 counts as, or ``float8`` or
        ``float4``.

    Examples
    --------
    >>> best_published("H800 SXM 80GB").device
    'H100 SXM5 80GB'
    """
    known = _table().get(device)
    if known is None:
        return None
    if kind in known:
        return Published(known[kind]["share"], known[kind]["source"], device)
    return best_published(known[_LIKE], kind) if _LIKE in known else None


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table


def beyond_published(device: str, dtype: str, rate: str, utilization: float) -> str | None:
    """Return the sentence about a step that is above every published one; None where it is not.

    Parameters
    ----------
    device : str
        The name of the device.
    dtype : str
        What most products of the program are computed in.
    rate : str
        The peak rate of the products that a recipe of low precision quantizes; empty without one.
    utilization : float
        The predicted share of the peak.
    """
    if dtype not in SHORT:
        return None
    best = best_published(device, rate or SHORT[0])
    if best is None or utilization <= best.share:
        return None
    where = "on this device" if best.device == device else f"on its nearest relative, {best.device}"
    return (
        f"out of range: {utilization:.0%} MFU is above the {best.share:.0%} of the fastest "
        f"published step {where}, {best.source}"
    )
