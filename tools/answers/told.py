"""What every answer about one plan begins with: its headline, and how long a training takes."""

from dataclasses import dataclass
from typing import Any

from shardwright.compilation import Compilation
from shardwright.compiler.fit.training_time import Failures, Training
from shardwright.compiler.plans.parallelism import Parallelism
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.rates import Rates, rates
from shardwright.cost_model.efficiency.hardware import Device
from shardwright.cost_model.efficiency.intervals import Interval, Step, step_interval
from shardwright.cost_model.efficiency.published import SHORT, beyond_published
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.model_flops import batch_size
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster, mean_device
from shardwright.cost_model.pipelines.step import MemoryLimit
from shardwright.dataflow.segments import block_of
from shardwright.ir.graph import Graph
from shardwright.operators.models.precision import recipe_of
from shardwright.operators.models.recipes import FLOAT4
from shardwright.tools.answers.headline import Headline
from shardwright.tools.answers.kept import Kept
from shardwright.tools.answers.training import (
    Asked,
    checkpoint_bytes,
    training_document,
    training_sentence,
)


def out_of_range(speed: Rates, cluster: AnyCluster) -> str | None:
    """Return the sentence about a step above every published one; None where it is not."""
    name = mean_device(cluster).name
    return beyond_published(name, _most(speed), speed.flops.rate, speed.utilization)


def interval_of(speed: Rates, plan: Plan, seconds: float, cluster: AnyCluster) -> Interval | None:
    """Return what runs like a plan take; None where no published step tells.

    Published steps are of models of tokens, by products in 16 bits, or of some of them in 8.
    """
    told = _most(speed) in SHORT and speed.flops.rate != FLOAT4
    has_tokens = speed.tokens_per_second_per_device is not None
    if isinstance(cluster, MixedCluster) or not (told and has_tokens):
        return None
    recipe = recipe_of(plan.document.precision)
    found = Parallelism.of(plan)
    layers = len({block_of(node.scope) for node in plan.model.nodes} - {""}) or 1
    of_layer = seconds * found.groups / (layers * found.passes)
    return step_interval(
        Step(seconds, of_layer, cluster, is_dense(plan.program), recipe.name if recipe else "")
    )


def is_dense(graph: Graph) -> bool:
    """Return whether a model chooses no experts."""
    return all(node.operator != "dispatch" for node in graph.nodes)


def _most(speed: Rates) -> str:
    """Return the type of most products."""
    kinds = speed.flops.by_dtype
    return max(kinds, key=lambda kind: kinds[kind], default="")


def _without_rate(speed: Rates, device: Device) -> str | None:
    """Return the sentence about products of 16 bits on a device that has no rate of their type."""
    kind = _most(speed)
    if kind not in SHORT or kind in device.peak_flops:
        return None
    rate = f"{device.flops_per_second(kind) / 1e12:g} Tflop/s"
    return f"{device.name} has no rate of {kind}: products are priced as float32, {rate}"


@dataclass(frozen=True)
class Told:
    """A plan with its step, and what is asked about a training by it.

    Parameters
    ----------
    planned : Compilation
        The plan.
    step_seconds : float
        Its step, as it is told.
    rates : Rates
        How fast it trains.
    limit : float or tuple of float
        Memory limit of a device in bytes, or of those of each device group.
    run_by : str
        The training software that runs the step; empty for the program itself.
    asked : Asked
        What is asked about the length of a training.
    training : Training or None
        The training without failures; None where it is not asked.
    failures : Failures or None
        What failures cost; None where they are left out.
    kept : Kept or None
        As of `Headline`.
    out_of_range : str or None
        That the step is above every published one on the device; None where it is not.
    without_rate : str or None
        That the device has no rate of the type of most products; None where it has.
    interval : Interval or None
        What runs like it take; None where no published step tells.
    """

    planned: Compilation
    step_seconds: float
    rates: Rates
    limit: MemoryLimit
    run_by: str
    asked: Asked
    training: Training | None
    failures: Failures | None
    kept: Kept | None = None
    out_of_range: str | None = None
    without_rate: str | None = None
    interval: Interval | None = None

    @staticmethod
    def of(
        planned: Compilation,
        cluster: AnyCluster,
        timeline: Timeline,
        limit: MemoryLimit,
        asked: Asked,
        kept: Kept | None = None,
    ) -> "Told":
        """Return what is told of a plan whose step a timeline has, on a cluster."""
        plan, step = planned.plan, timeline.step_seconds
        device = mean_device(cluster)
        speed = rates(plan, planned.compiled, device, step)
        tokens, devices = batch_size(plan.model).tokens, plan.document.devices
        run_by = "" if cluster.software is None else cluster.software.name
        return Told(
            planned,
            step,
            speed,
            limit,
            run_by,
            asked,
            asked.of_step(step, tokens, devices),
            asked.failures_on(devices, checkpoint_bytes(plan.program)),
            kept,
            out_of_range(speed, cluster),
            _without_rate(speed, device),
            interval_of(speed, plan, step, cluster),
        )

    def sentences(self, chosen: str = "", compared: str = "") -> list[str]:
        """Return the first lines of an answer.

        Parameters
        ----------
        chosen : str
            Why the batch is the one it is; empty where the user gave it.
        compared : str
            How good the plan is among others, in the place of its bound; empty for the bound.
        """
        how = self.run_by, chosen, compared, self.kept, self.interval
        first = Headline(self.planned.plan, self.step_seconds, self.rates, self.limit, *how)
        doubts = (self.without_rate, self.out_of_range)
        found = [*first.sentences, *(each for each in doubts if each is not None)]
        if self.training is not None:
            found.append(training_sentence(self.asked, self.training, self.failures))
        return found

    @property
    def training_document(self) -> dict[str, Any]:
        """The keys about a training: none where it is not asked."""
        return training_document(self.training, self.failures)
