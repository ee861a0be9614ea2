"""The plans of Megatron's family on a number of devices."""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.outer.degrees import Degrees, on_tensor_ranks
from shardwright.planner.choice.configuration import FORMS
from shardwright.search.named_plan import ZERO, divisors

MICRO_BATCHES = (1, 2, 4, 8)
"""Samples of a micro-batch that are tried."""
# Not `zero_bubble`: what it keeps for gradients of weights is not estimated.
_ESTIMATED = tuple(form for form in FORMS if form[1] != "zero_bubble")


def family(
    model: FitModel,
    devices: int,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    tensors: Sequence[int] | None = None,
) -> list[Estimate]:
    """Return the plans of a model on a number of devices, whether they fit or not.

    They have tensor ranks inside the innermost level of the cluster, with sequence parallelism, of
    a mixture as many expert ranks as there are beside them, device groups and chunks, data ranks, a
    ZeRO stage, a micro-batch, and a way to recompute.

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
    found = []
    for tensor in tensors or divisors(inner):
        for expert in sorted({1, gcd(inner // tensor, model.experts, model.samples)}):
            for plan in degrees.plans(on_tensor_ranks(tensor, expert), model.layers):
                plans = (replace(plan, recompute=rule) for rule in model.rules)
                found += [Estimate.of(one, model, devices) for one in plans]
    return [one for one in found if one is not None]
