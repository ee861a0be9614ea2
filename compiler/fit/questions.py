"""What people ask before they train: how few devices, how large a micro-batch, what to change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from shardwright.compiler.evaluation.evaluated import Evaluated, evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import MICRO_BATCHES, family
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.ir.errors import ClusterError, OptionError, ShardwrightError
from shardwright.search.named_plan import ZERO, NamedPlan, divisors
from shardwright.search.plan_dimensions import DIMENSIONS, differing, values_of, word_text

_EVALUATIONS = 8  # most evaluations of the memory at a sequence length or micro-batch
_Other = tuple[str, str, NamedPlan, int]  # a change: its kind and text, the plan, and the devices
_UNITS = 8  # parts of the model's sequence length in which lengths are told


def least_devices(model: EvaluatedModel) -> int:
    """Return a number of devices below which no plan fits, whatever it is.

    Every trained element and its optimizer states are on some device between steps, so the
    devices together have the memory for them. Tensors that are offloaded to host memory are not
    counted among plans.
    """
    return max(1, ceil(model.least_bytes / model.limit_bytes))


def device_counts(model: EvaluatedModel) -> list[int]:
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
    plans, larger : int
        How many plans the family has, and how many of them take more than the limit at least.
    best : Evaluated or None
        The fastest that fits.
    """

    devices: int
    plans: int
    larger: int
    best: Evaluated | None


def on_devices(model: EvaluatedModel, devices: int, most: float = inf) -> OnDevices:
    """Return the fastest plan on a number of devices, of at most so many that are evaluated."""
    plans = family(model, devices)
    larger = sum(not model.may_fit(one) for one in plans)
    return OnDevices(devices, len(plans), larger, fastest(model, plans, most=most))


def fewest_devices(model: EvaluatedModel) -> OnDevices | None:
    """Return the fewest devices of those tried on which a plan fits; None without any."""
    for count in device_counts(model):
        found = on_devices(model, count) if may_fit_on(model, count) else None
        if found is not None and found.best is not None:
            return found
    return None


def may_fit_on(model: EvaluatedModel, devices: int) -> bool:
    """Return whether a plan may fit on some devices, by what all hold that have several passes."""
    passes = ceil(model.samples / (devices * max(MICRO_BATCHES)))
    held = model.least_held(devices, passes)
    if devices < least_devices(model) or held > model.limit_bytes:
        return False
    if model.least_held(devices, 2) <= model.limit_bytes:
        return True
    in_one = family(model, devices, among=lambda one: one.passes(model.samples, devices) == 1)
    return any(map(model.may_fit, in_one))


def largest_micro_batch(one: Evaluated) -> int | None:
    """Return the largest micro-batch of a plan that fits, of those that divide the batch."""
    samples = one.model.samples // (one.plan.data or 1)
    largest = one.plan.micro_batch if one.fits else None
    for size in divisors(samples):
        if size > (largest or 0):
            other = evaluated(one.model, replace(one.plan, micro_batch=size), one.devices)
            if other is None or not other.fits:
                break
            largest = size
    return largest


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
    found, is_last = largest_fitting(_UNITS, lambda units: most(units * unit), limit)
    return Longest(found * unit or None, is_last)


def largest_fitting(tried: int, most: Callable[[int], float], limit: float) -> tuple[int, bool]:
    """Return the largest number whose memory is in a limit, and whether the next one's is not.

    Memory grows no slower than linearly, so that a line through two points leads from one number to
    the next.

    Parameters
    ----------
    tried : int
        The number that is tried first.
    most : callable
        Returns the memory of a number; raises `ShardwrightError` where it has none, which ends the
        search.
    limit : float
        The limit.
    """
    low, high = 0, inf
    known: dict[int, float] = {}
    while len(known) < _EVALUATIONS and low + 1 < high:
        try:
            known[tried] = most(tried)
        except ShardwrightError:
            break
        if known[tried] <= limit:
            low = tried
        else:
            high = tried
        tried = _next_number(known, limit, low, high)
    return low, low + 1 >= high


def _next_number(known: dict[int, float], limit: float, low: int, high: float) -> int:
    """Return the number that a line through the largest two known ones says, in bounds."""
    (last, most), *others = sorted(known.items(), reverse=True)
    said: float = 2 * last if most <= limit else last // 2
    if others and others[0][1] < most < inf:  # what has no plan takes infinite memory
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
    then : Evaluated
        The changed plan.
    """

    kind: str
    text: str
    then: Evaluated


def changes(one: Evaluated) -> Iterator[Change]:
    """Yield the plans that differ from another one in one thing."""
    known: list[Evaluated] = []
    expect_changes(one)
    for kind, text, plan, devices in _others(one):
        then = evaluated(one.model, plan, devices)
        if then is not None and not any(_is_same(then, other) for other in (one, *known)):
            known.append(then)
            yield Change(kind, text, then)


def expect_changes(one: Evaluated) -> None:
    """Let other processes evaluate the plans of which `changes` is going to be asked."""
    for _, _, plan, devices in _others(one):
        one.model.expect(plan, devices, ("seconds", "memory", "fits"))


def _others(one: Evaluated) -> list[_Other]:
    return [*_on_same_devices(one), *_more_devices(one)]


def improved(one: Evaluated) -> Evaluated:
    """Return the plan that no change on the same devices makes faster, within the memory limit.

    Some changes are beyond the family: parameters may be divided in a node alone. Each is tried
    with every way to recompute, too: more pipeline stages may leave room to recompute less.
    """
    best, before = one, None
    while best is not before:
        before, plans = best, list[Bound]()
        changed = [
            (replace(plan, recompute=rule), devices, max(MICRO_BATCHES))
            for _, _, plan, devices in _on_same_devices(best)
            for rule in one.model.ways
        ]
        for asked in changed:
            one.model.expect_bound(*asked)
        for asked in changed:
            bound = one.model.rough_bound(*asked)
            plans += () if bound is None else (bound,)
        best = fastest(one.model, plans, best=best) or best
    return best


def _is_same(one: Evaluated, other: Evaluated) -> bool:
    """Return whether two plans are the same in all they take, as where nothing is recomputed."""
    if one.devices != other.devices or one.memory_bytes != other.memory_bytes:
        return False
    return one.seconds == other.seconds


def _with(one: Evaluated, **values: Any) -> NamedPlan | None:
    try:
        return replace(one.plan, **values)
    except OptionError:
        return None


def _on_same_devices(one: Evaluated) -> Iterator[_Other]:
    yield from _of_plan(one, "recomputation", "recompute", one.model.ways)
    yield from _of_plan(one, "ZeRO", "zero", ZERO)
    yield from _within(one)
    yield from _of_words(one)
    yield from _micro_batches(one)
    yield from _degrees(one)


def _of_plan(one: Evaluated, kind: str, name: str, values: Sequence[object]) -> Iterator[_Other]:
    """Yield the plans with other values of a field."""
    for value in values:
        values_of: dict[str, Any] = {name: value}
        changed = None if value == getattr(one.plan, name) else _with(one, **values_of)
        if changed is not None and (name != "zero" or (one.plan.data or 1) > 1):
            yield kind, f"{name}={value}", changed, one.devices


def _within(one: Evaluated) -> Iterator[_Other]:
    """Yield the plan that divides over the data ranks of a node alone (hybrid sharding)."""
    parts = one.plan.parts(one.model.cluster, one.devices)["data"]
    changed = _with(one, zero=ZERO[-1], shard=parts[0][0]) if len(parts) > 1 else None
    if changed is not None:
        inner, level = parts[0]
        name = one.model.cluster.levels[level].name
        text = f"zero=3 over the {inner} data ranks of a {name} (hybrid sharding)"
        yield "ZeRO", text, changed, one.devices


def _of_words(one: Evaluated) -> Iterator[_Other]:
    """Yield the plans with other values of further dimensions."""
    own = dict(one.plan.more)
    for name in DIMENSIONS:
        for value in values_of(name):
            changed = _with(one, more=differing(tuple({**own, name: value}.items())))
            if changed is not None and changed != one.plan:
                yield "words", word_text(name, value), changed, one.devices


def _micro_batches(one: Evaluated) -> Iterator[_Other]:
    size = one.plan.micro_batch or 1
    for other in (size // 2, 2 * size):
        changed = _with(one, micro_batch=other) if other else None
        if changed is not None:
            yield "micro-batch", f"micro_batch={other}", changed, one.devices


def _degrees(one: Evaluated) -> Iterator[_Other]:
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
                values["expert_tensor"] = one.plan.of_experts if one.plan.folds else None
                if other > one.model.cluster.levels[0].size:
                    continue
            elif other == 1:
                values |= {"chunks": 1, "schedule": None}
            if ranks == 1:
                values["zero"] = 0
            changed = _with(one, **values)
            if changed is not None:
                yield "degrees", f"{name}={other:g},data={ranks:g}", changed, one.devices


def _more_devices(one: Evaluated) -> Iterator[_Other]:
    """Yield the plan with twice as many data ranks, on twice as many devices."""
    data, samples = 2 * (one.plan.data or 1), one.plan.micro_batch or 1
    for size in (samples, samples // 2):
        changed = _with(one, data=data, micro_batch=size) if size else None
        if changed is None or one.model.samples % (data * size):
            continue
        text = f"{2 * one.devices} devices, data={data}"
        if size != samples:
            text += f",micro_batch={size}"
        yield "devices", text, changed, 2 * one.devices
        return
