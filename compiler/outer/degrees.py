"""The degrees of the plans of Megatron's family, and how long their schedules take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.schedule_paths import chain_transfers, simulate_schedule
from shardwright.dataflow.schedules import FORWARD, make_schedule
from shardwright.ir.errors import ShardwrightError
from shardwright.planner.choice.configuration import Form, searched_forms
from shardwright.search.named_plan import NamedPlan, divisors

_FORWARD_SHARE = {"full": 1 / 4}  # of a pass, for others 1 / 3


@dataclass(frozen=True)
class Degrees:
    """The plans of a number of devices that divide them, their levels, the batch and the layers.

    Parameters
    ----------
    cluster : Cluster
        The devices.
    devices, samples : int
        Number of ranks, and samples of a step.
    micro_batches : sequence of int or None
        Samples of a micro-batch on a data rank; None for all that it has.
    zero : sequence of int
        ZeRO stages; the first one where there is one data rank.
    forms : sequence of Form
        Chunks and schedules of pipelines.
    alone : sequence of int, optional
        The same as `micro_batches` in one stage, where they differ.
    """

    cluster: Cluster
    devices: int
    samples: int
    micro_batches: Sequence[int | None]
    zero: Sequence[int]
    forms: Sequence[Form] = field(default_factory=searched_forms)
    alone: Sequence[int] = ()

    def plans(self, base: NamedPlan, layers: int) -> Iterator[NamedPlan]:
        """Yield the plans of some tensor and expert ranks, of so many repeated layers.

        Parameters
        ----------
        base : NamedPlan
            The plan of these ranks alone.
        layers : int
            Number of repeated layers of the model.
        """
        left = self.devices // base.tensor
        for stages, samples in self._choices(left):
            data = left // stages
            each, rest = divmod(self.samples, data)
            if stages > layers or rest or each % (samples or each):
                continue
            if samples is None and each in self.micro_batches:
                continue
            try:
                plan = replace(base, pipeline=stages, data=data, micro_batch=samples or each)
                plan.mesh(self.cluster, self.devices)
            except ShardwrightError:  # the ranks of experts or the cluster do not allow it
                continue
            for zero in self.zero if data > 1 else self.zero[:1]:
                yield from self._in_forms(replace(plan, zero=zero), layers)

    def _choices(self, ranks: int) -> Iterator[tuple[int, int | None]]:
        """Yield numbers of stages with samples of a micro-batch."""
        for stages in divisors(ranks):
            tried = self.alone if self.alone and stages == 1 else self.micro_batches
            yield from product((stages,), tried)

    def _in_forms(self, plan: NamedPlan, layers: int) -> Iterator[NamedPlan]:
        """Yield the plan with the chunks and schedules that it may have."""
        if plan.pipeline == 1:
            yield plan
            return
        passes = plan.passes(self.samples, self.devices)
        for chunks, schedule in self.forms:
            fits = plan.pipeline * chunks <= layers
            if fits and (chunks == 1 or passes % plan.pipeline == 0):
                yield replace(plan, chunks=chunks, schedule=schedule)


def on_tensor_ranks(tensor: int, expert: int = 1, expert_tensor: int | None = None) -> NamedPlan:
    """Return the plan of some tensor and expert ranks on the fewest, with sequence parallelism.

    Examples
    --------
    >>> on_tensor_ranks(2, 4).data, on_tensor_ranks(2, 4, 1).data, on_tensor_ranks(4, 2, 1).data
    (4, 2, 1)
    """
    within = tensor if expert_tensor is None else expert_tensor
    return NamedPlan(
        tensor=tensor,
        data=max(expert * within // tensor, 1),
        expert=expert,
        expert_tensor=expert_tensor,
        sequence_parallel=tensor > 1,
    )


def seconds_of_schedule(
    plan: NamedPlan, passes: int, durations: Sequence[float], transfer_seconds: float
) -> float:
    """Return how long a plan's schedule takes, simulated.

    Parameters
    ----------
    plan : NamedPlan
        The plan, of several device groups.
    passes : int
        Number of micro-batches.
    durations : sequence of float
        Seconds of a pass of every stage over a micro-batch.
    transfer_seconds : float
        Seconds in which a micro-batch passes from a stage to the next.
    """
    schedule = make_schedule(plan.order, plan.pipeline, plan.chunks, passes)
    first = _FORWARD_SHARE.get(plan.recompute, 1 / 3)
    rest = (1 - first) / (len(schedule.parts) - 1)
    seconds = {
        (stage, part): durations[stage] * (first if part == FORWARD else rest)
        for stage, part in schedule.segments
    }
    transfers = dict.fromkeys(chain_transfers(schedule), transfer_seconds)
    return simulate_schedule(schedule, seconds, transfers).step_seconds
