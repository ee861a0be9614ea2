"""The plans of Megatron's family on a number of devices, and which of them are best."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.outer.configuration import FORMS
from shardwright.compiler.outer.degrees import Degrees, on_tensor_ranks
from shardwright.search.named_plan import ZERO, divisors

MICRO_BATCHES = (1, 2, 4, 8)
"""Samples of a micro-batch that are tried."""
# Not `zero_bubble`: what it keeps for gradients of weights is not estimated.
_ESTIMATED = tuple(form for form in FORMS if form[1] != "zero_bubble")
_REFINED = 12  # plans whose schedules are simulated


def family(
    model: FitModel,
    devices: int,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    tensors: Sequence[int] | None = None,
) -> list[Estimate]:
    """Return the plans of a model on a number of devices, whether they fit or not.

    They have tensor ranks inside the innermost level of the cluster, with sequence parallelism,
    device groups and chunks, data ranks, a ZeRO stage, a micro-batch, and a way to recompute.

    Parameters
    ----------
    model : FitModel
        The model.
    devices : int
        Number of devices.
    micro_batches : sequence of int
        Samples of a micro-batch.
    tensors : sequence of int, optional
        Numbers of tensor ranks; by default all that divide the innermost level.

    Raises
    ------
    ClusterError
        If the cluster has no such number of devices.
    """
    inner = model.cluster.for_devices(devices)[0]
    degrees = Degrees(model.cluster, devices, model.samples, micro_batches, ZERO, _ESTIMATED)
    return [
        Estimate(replace(plan, recompute=rule), model, devices)
        for tensor in tensors or divisors(inner)
        for rules in (model.rules(tensor),)
        if rules
        for plan in degrees.plans(on_tensor_ranks(tensor), model.layers)
        for rule in rules
    ]


def fastest(plans: Iterable[Estimate], count: int = 1) -> list[Estimate]:
    """Return the plans of the least steps that fit: those of a formula, then simulated."""
    fitting = sorted((one for one in plans if one.fits), key=lambda one: one.seconds)
    refined = sorted(fitting[: max(_REFINED, count)], key=lambda one: one.refined_seconds)
    return refined[:count]


def front(plans: Iterable[Estimate]) -> list[Estimate]:
    """Return the plans that no other one beats in step and memory, the fastest first.

    Of equal ones the first counts.
    """
    found: list[Estimate] = []
    for one in sorted(plans, key=lambda one: (one.seconds, one.memory_bytes)):
        if not found or one.memory_bytes < found[-1].memory_bytes:
            found.append(one)
    return found


def least_memory(plans: Iterable[Estimate]) -> Estimate | None:
    """Return the plan that takes the least memory, of equal ones the fastest."""
    listed = list(plans)
    least = min((one.memory_bytes for one in listed), default=0.0)
    equal = [one for one in listed if one.memory_bytes == least]
    if len(equal) < 2:
        return equal[0] if equal else None
    return min(equal, key=lambda one: one.seconds)
