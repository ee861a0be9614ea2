"""What people ask before they train: how few devices, how large a micro-batch, what to change."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from shardwright.compiler.fit.estimates import SPARE, Estimate
from shardwright.compiler.fit.family import family, fastest
from shardwright.compiler.fit.model import FitModel
from shardwright.ir.errors import ClusterError, OptionError, ShardwrightError
from shardwright.search.named_plan import RECOMPUTE, ZERO, divisors

_MOST_SAMPLES = 2**20  # of a micro-batch
_EVALUATIONS = 8  # of the memory at a sequence length
_UNITS = 8  # in which a sequence length is told, of that of the model

BELOW = 0.05
"""Share by which an estimate may exceed the limit of a plan that fits: built ones take less so."""


def least_devices(model: FitModel) -> int:
    """Return a number of devices below which no plan fits, whatever it is.

    Every trained element and its optimizer states are on some device between steps, so the
    devices together have the memory for them. Tensors that are offloaded to host memory are not
    counted among plans.
    """
    return max(1, ceil(model.least_bytes / model.limit_bytes))


def device_counts(model: FitModel) -> list[int]:
    """Return the numbers of devices that are tried: powers of two that the cluster has."""
    cluster, found = model.cluster, list[int]()
    for count in (2**power for power in range(cluster.size.bit_length())):
        try:
            cluster.for_devices(count)
        except ClusterError:
            continue
        found.append(count)
    return found


@dataclass(frozen=True)
class OnDevices:
    """The fastest plan on a number of devices.

    Parameters
    ----------
    devices : int
        The number.
    plans, fitting : int
        How many plans the family has, and how many of them fit.
    best : Estimate or None
        The fastest that fits.
    """

    devices: int
    plans: int
    fitting: int
    best: Estimate | None


def on_devices(model: FitModel, devices: int) -> OnDevices:
    """Return the fastest plan on a number of devices."""
    plans = family(model, devices)
    best = fastest(plans)
    fitting = sum(one.fits for one in plans)
    return OnDevices(devices, len(plans), fitting, best[0] if best else None)


def fewest_devices(model: FitModel) -> OnDevices | None:
    """Return the fewest devices of those tried on which a plan fits; None without any."""
    for count in device_counts(model):
        if count >= least_devices(model):
            found = on_devices(model, count)
            if found.best is not None:
                return found
    return None


def may_fit(one: Estimate) -> bool:
    """Return whether a plan may fit once it is built, though its estimate is near the limit."""
    return not one.fits and one.memory_bytes <= (1 + BELOW) * one.model.limit_bytes


def largest_micro_batch(one: Estimate, limit: float | None = None) -> tuple[int | None, int]:
    """Return the largest micro-batch of a plan that fits.

    Parameters
    ----------
    one : Estimate
        The plan.
    limit : float, optional
        The limit of its estimate; by default that of the model, with a share to spare.

    Returns
    -------
    tuple of (int or None, int)
        Of those that divide the batch, None where none fits; and whatever the batch is, with as
        many micro-batches in flight, 0 where none fits.
    """
    limit = (1 - SPARE) * one.model.limit_bytes if limit is None else limit
    samples = one.model.samples // (one.plan.data or 1)
    sizes = (replace(one, plan=replace(one.plan, micro_batch=n)) for n in divisors(samples))
    fitting = [size.plan.micro_batch for size in sizes if size.memory_bytes <= limit]
    counts = range(_MOST_SAMPLES)
    free = bisect_right(counts, limit, key=one.memory_with) - 1
    return max((n for n in fitting if n), default=None), max(0, free)


@dataclass(frozen=True)
class Longest:
    """The longest sequence that was found to fit.

    Parameters
    ----------
    tokens : int, optional
        Its length; None where none fits.
    is_last : bool
        Whether the next eighth is known not to fit; if not, longer ones may fit.
    """

    tokens: int | None
    is_last: bool


def longest_sequence(length: int, most: Callable[[int], float], limit: float) -> Longest:
    """Return the longest sequence, in eighths of that of the model, whose memory is in a limit.

    Memory grows with the length no slower than linearly, so that a line through two points leads
    from one length to the next.

    Parameters
    ----------
    length : int
        The sequence of the model.
    most : callable
        Returns the memory of a length; raises `ShardwrightError` where the model has no program of
        it, which ends the search.
    limit : float
        The limit.
    """
    unit = max(length // _UNITS, 1)
    low, high = 0, inf  # in units: fits, does not
    known: dict[int, float] = {}
    tried = _UNITS
    while len(known) < _EVALUATIONS and low + 1 < high:
        try:
            known[tried] = most(tried * unit)
        except ShardwrightError:
            break
        if known[tried] <= limit:
            low = tried
        else:
            high = tried
        tried = _next_length(known, limit, low, high)
    return Longest(low * unit or None, low + 1 >= high)


def _next_length(known: dict[int, float], limit: float, low: int, high: float) -> int:
    """Return the length that a line through the longest two known ones says, in bounds."""
    (last, most), *others = sorted(known.items(), reverse=True)
    said: float = 2 * last if most <= limit else last // 2
    if others and others[0][1] < most < inf:  # a length without a plan takes infinite memory
        before, less = others[0]
        said = last + (limit - most) * (last - before) / (most - less)
    return int(min(max(said, low + 1), high - 1))


@dataclass(frozen=True)
class Change:
    """A plan that differs from another one in one thing.

    Parameters
    ----------
    kind : str
        What is changed: recomputation, ZeRO, micro-batch, degrees, devices.
    text : str
        The change.
    estimate : Estimate
        The changed plan.
    named : bool
        Whether it has a name, so that it can be built as it is.
    """

    kind: str
    text: str
    estimate: Estimate
    named: bool = True


def changes(one: Estimate) -> list[Change]:
    """Return the plans that differ from another one in one thing."""
    found = [
        *_of_plan(one, "recomputation", "recompute", RECOMPUTE),
        *_of_plan(one, "ZeRO", "zero", ZERO),
        *_within(one),
        *_micro_batches(one),
        *_degrees(one),
        *_more_devices(one),
    ]
    return [change for change in found if _exists(change.estimate)]


def _exists(one: Estimate) -> bool:
    """Return whether a plan is one of the model on its devices."""
    try:
        one.plan.mesh(one.model.cluster, one.devices)
        one.plan.passes(one.model.samples, one.devices)
    except ShardwrightError:
        return False
    plan = one.plan
    rotates = plan.chunks == 1 or one.passes % plan.pipeline == 0
    fits = plan.pipeline * plan.chunks <= one.model.layers
    return rotates and fits and plan.recompute in one.model.rules(plan.tensor)


def _with(one: Estimate, devices: int | None = None, **values: Any) -> Estimate | None:
    try:
        plan = replace(one.plan, **values)
    except OptionError:
        return None
    return replace(one, plan=plan, devices=devices or one.devices, sharing=None)


def _of_plan(one: Estimate, kind: str, name: str, values: Sequence[object]) -> Iterator[Change]:
    """Yield the plans with other values of a field."""
    for value in values:
        values_of: dict[str, Any] = {name: value}
        changed = None if value == getattr(one.plan, name) else _with(one, **values_of)
        if changed is not None and (name != "zero" or (one.plan.data or 1) > 1):
            yield Change(kind, f"{name}={value}", changed)


def _within(one: Estimate) -> Iterator[Change]:
    """Yield the plan that divides over the data ranks of a node alone (hybrid sharding)."""
    parts = one.plan.parts(one.model.cluster, one.devices)["data"]
    if len(parts) > 1:
        inner, level = parts[0]
        base = one if one.plan.zero == ZERO[-1] else _with(one, zero=ZERO[-1])
        if base is not None:
            name = one.model.cluster.levels[level].name
            text = f"zero=3 over the {inner} data ranks of a {name} (hybrid sharding)"
            yield Change("ZeRO", text, replace(base, sharing=inner), named=False)


def _micro_batches(one: Estimate) -> Iterator[Change]:
    size = one.plan.micro_batch or 1
    for other in (size // 2, 2 * size):
        changed = _with(one, micro_batch=other) if other else None
        if changed is not None:
            yield Change("micro-batch", f"micro_batch={other}", changed)


def _degrees(one: Estimate) -> Iterator[Change]:
    """Yield the plans with twice or half of a degree, taken from or given to the data ranks."""
    data = one.plan.data or 1
    for name in ("tensor", "pipeline"):
        degree = getattr(one.plan, name)
        for other, ranks in ((2 * degree, data / 2), (degree / 2, 2 * data)):
            if other % 1 or ranks % 1:
                continue
            values: dict[str, Any] = {name: int(other), "data": int(ranks)}
            if name == "tensor":
                values["sequence_parallel"] = other > 1
                if other > one.model.cluster.levels[0].size:
                    continue
            elif other == 1:
                values |= {"chunks": 1, "schedule": None}
            if ranks == 1:
                values["zero"] = 0
            changed = _with(one, **values)
            if changed is not None:
                yield Change("degrees", f"{name}={other:g},data={ranks:g}", changed)


def _more_devices(one: Estimate) -> Iterator[Change]:
    """Yield the plan with twice as many data ranks, on twice as many devices."""
    data, samples = 2 * (one.plan.data or 1), one.plan.micro_batch or 1
    for size in (samples, samples // 2):
        changed = _with(one, 2 * one.devices, data=data, micro_batch=size) if size else None
        if changed is not None and _exists(changed):
            text = f"{changed.devices} devices, data={data}"
            if size != samples:
                text += f",micro_batch={size}"
            yield Change("devices", text, changed)
            return
