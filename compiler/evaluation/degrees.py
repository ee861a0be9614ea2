"""The degrees of the plans of Megatron's family."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.orders import SCHEDULES
from shardwright.ir.errors import ShardwrightError
from shardwright.planner.choice.configuration import Form
from shardwright.search.named_plan import NamedPlan, divisors


@dataclass(frozen=True)
class Degrees:
    """The plans of a number of devices that divide them, their levels, the batch and the layers.

    Parameters
    ----------
    cluster : Cluster
        The devices.
    devices, samples : int
        Number of ranks, and samples of a step.
    micro_batches : sequence of int
        Samples of a micro-batch on a data rank.
    zero : sequence of int
        ZeRO stages; the first one where there is one data rank.
    forms : sequence of Form
        Chunks and schedules of pipelines.
    of_experts : sequence of Form
        Further ones where experts are divided.
    """

    cluster: Cluster
    devices: int
    samples: int
    micro_batches: Sequence[int]
    zero: Sequence[int]
    forms: Sequence[Form]
    of_experts: Sequence[Form]

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
        for stages, samples in product(divisors(left), self.micro_batches):
            data = left // stages
            each, rest = divmod(self.samples, data)
            if stages > layers or rest or each % samples:
                continue
            try:
                plan = replace(base, pipeline=stages, data=data, micro_batch=samples)
                plan.mesh(self.cluster, self.devices)
            except ShardwrightError:  # the ranks of experts or the cluster do not allow it
                continue
            for zero in self.zero if data > 1 else self.zero[:1]:
                yield from self._in_forms(replace(plan, zero=zero), layers)

    def _in_forms(self, plan: NamedPlan, layers: int) -> Iterator[NamedPlan]:
        """Yield the plan with the chunks and schedules that it may have."""
        if plan.pipeline == 1:
            yield plan
            return
        passes = plan.passes(self.samples, self.devices)
        for chunks, schedule in (*self.forms, *(self.of_experts if plan.expert > 1 else ())):
            fits = plan.pipeline * chunks <= layers
            if fits and SCHEDULES[schedule].is_tried(plan.pipeline, passes):
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
