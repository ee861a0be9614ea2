"""How fast a plan trains: samples, tokens, and the share of the devices' peak rate."""

from dataclasses import dataclass
from typing import Any

from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.cluster import Device
from shardwright.cost_model.model_flops import ModelFlops, batch_size, model_flops


@dataclass(frozen=True)
class Rates:
    """The rates of a training step.

    Parameters
    ----------
    samples_per_second : float
        Of all devices.
    tokens_per_second_per_device : float or None
        None where the model reads no sequences of tokens.
    flops : ModelFlops
        The model flops of the step.
    utilization : float
        Model flops utilization.
    """

    samples_per_second: float
    tokens_per_second_per_device: float | None
    flops: ModelFlops
    utilization: float

    @property
    def document(self) -> dict[str, Any]:
        """The rates as keys of ``compile --json``."""
        return {
            "samples_per_second": self.samples_per_second,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "model_flops": self.flops.total,
            "model_flops_utilization": self.utilization,
        }


def rates(plan: Plan, compiled: Compiled, device: Device, step_seconds: float) -> Rates:
    """Return the rates of a plan whose step takes so many seconds.

    Parameters
    ----------
    plan, compiled : Plan, Compiled
        The plan, and its compilation.
    device : Device
        The devices.
    step_seconds : float
        Time of a step.
    """
    devices = plan.document.devices
    # A hand-written parallel program is the program of one rank.
    manual = plan.document.mode == "hybrid_parallel"
    whole = plan.model if manual else compiled.source
    batch, flops = batch_size(plan.model), model_flops(whole)
    tokens = None if batch.tokens is None else batch.tokens / step_seconds / devices
    return Rates(
        batch.samples / step_seconds,
        tokens,
        flops,
        flops.utilization(device, devices, step_seconds),
    )
