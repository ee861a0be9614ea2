"""The plans of Megatron's family on a number of devices."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import gcd, inf

from shardwright.compiler.evaluation.degrees import Degrees, on_tensor_ranks
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.cost_model.efficiency.software import Software
from shardwright.dataflow.orders import DualPipeV, Interleaved, InterleavedPairs, Pairs
from shardwright.planner.choice.configuration import Form, searched_forms
from shardwright.search.named_plan import RECOMPUTE, ZERO, NamedPlan, divisors, with_words

MICRO_BATCHES = (1, 2, 4, 8)
"""Samples of a micro-batch that are tried."""
_OF_EXPERTS = (
    (1, Pairs.name),
    *((chunks, InterleavedPairs.name) for chunks in Interleaved.searched_chunks),
    (2, DualPipeV.name),
)


def family(
    model: EvaluatedModel,
    devices: int,
    micro_batches: Sequence[int] = MICRO_BATCHES,
    tensors: Sequence[int] | None = None,
    among: Callable[[NamedPlan], bool] = lambda plan: True,
) -> list[Bound]:
    """Return the plans of a model on a number of devices, whether they fit or not.

    They have tensor ranks inside the innermost level of the cluster, with sequence parallelism,
    device groups and chunks, data ranks, a ZeRO stage, a micro-batch, a way to recompute, and the
    values of further dimensions that are tried. The
    experts of a mixture are whole, and divided over no ranks, over as many of the innermost level
    as divide them, and over twice as many as long as the least bound of those that may fit falls.
    Pipelines have the schedules that the software has. Where it runs pairs of passes beside each
    other, divided experts have pipelines of such pairs too; those of several chunks, which are
    Megatron-Core's, recompute no whole layers.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    devices : int
        Number of devices.
    micro_batches : sequence of int
        Samples of a micro-batch.
    tensors : sequence of int, optional
        Numbers of tensor ranks; by default all that divide the innermost level.
    among : callable, optional
        Returns whether a plan is asked for, whatever it recomputes; by default each is.

    Raises
    ------
    ClusterError
        If the cluster has no such number of devices.
    """
    inner = model.cluster.for_devices(devices)[0]
    divided = model.cluster, devices, model.samples, micro_batches, ZERO
    degrees = Degrees(*divided, *_forms(model.software))

    @cache
    def plans_on(ranks: NamedPlan) -> list[NamedPlan]:
        return [
            replace(one, recompute=rule)
            for plan in filter(among, degrees.plans(ranks, model.layers))
            for one in with_words(plan)
            for rule in model.ways
            if rule != RECOMPUTE[-1] or one.schedule != InterleavedPairs.name
        ]

    @cache
    def expect(ranks: NamedPlan) -> None:
        for plan in plans_on(ranks):
            model.expect_bound(plan, devices, max(micro_batches))

    def on(ranks: NamedPlan) -> list[Bound]:
        expect(ranks)
        bounds = (model.rough_bound(one, devices, max(micro_batches)) for one in plans_on(ranks))
        return [bound for bound in bounds if bound]

    def least_of(plans: Sequence[Bound]) -> float:
        return min((one.seconds for one in plans if model.may_fit(one)), default=inf)

    found, most = list[Bound](), devices
    tried = [[*_of_experts(one, inner, model.experts)] for one in tensors or divisors(inner)]
    for ranks in (one for number, each in enumerate(tried) for one in each[: 1 + (not number)]):
        expect(ranks)  # all of them are going to be asked for
    for each in tried:
        own = list[Bound]()
        for ranks in each:
            if own and ranks.expert > most:
                break
            more, least = on(ranks), least_of(own)
            own += more
            if least_of(more) >= least < inf:
                most = ranks.expert // 2
                break
        found += own
    return found


def _forms(software: Software | None) -> tuple[list[Form], list[Form]]:
    """Return the chunks and schedules that software has, and those of divided experts alone."""
    pairs = _OF_EXPERTS if software is not None and software.pairs == "beside" else ()

    def had(forms: Sequence[Form]) -> list[Form]:
        has = None if software is None else software.schedules
        return [form for form in forms if has is None or form[1] in has]

    return had(searched_forms()), had(pairs)


def _of_experts(tensor: int, inner: int, experts: int) -> Iterator[NamedPlan]:
    """Yield the plans of some tensor ranks and of more and more expert ranks."""
    within = gcd(inner, experts)
    if tensor == 1 or within < tensor:
        yield on_tensor_ranks(tensor)
    while within >= tensor and within > 1 and experts % within == 0:
        yield on_tensor_ranks(tensor, within, 1)
        within *= 2
