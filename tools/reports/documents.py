"""The JSON documents for scripts; their keys are stable."""

import json
import math
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwright.compilation import Compilation
from shardwright.compiler.outer.account import search_document
from shardwright.compiler.plans.document import MemoryDocument, PlanDocument
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.rates import rates
from shardwright.compiler.saved.offloaded import offloaded
from shardwright.compiler.saved.recomputed import recomputed
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import AnyCluster, mean_device
from shardwright.cost_model.pipelines.step import MemoryLimit, least_limit
from shardwright.dataflow.segments import blocks_by_stage
from shardwright.ir.errors import InfeasibleError, NoPlanError
from shardwright.operators.models.precision import MASTER
from shardwright.proof import Proof
from shardwright.runtime import StepRecord
from shardwright.search.heuristics.named_plan import ByName
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.answers.told import interval_of, out_of_range
from shardwright.verification.verdict import Verdict
from shardwright.zoo import assumed_precision

# Keys of `compile` that are null, or empty, where there is no plan.
_UNKNOWN = (
    *("mesh", "stages", "device_by_group", "blocks_by_stage", "micro_batches", "how"),
    *("interrupted", "objective", "objective_is", "lower_bound", "lower_bound_covers", "gap"),
    *("predicted_step_seconds", "overlapped_step_seconds", "step_interval"),
    *("communication_seconds", "exposed_communication_seconds", "bubble_seconds"),
    *("samples_per_second", "tokens_per_second_per_device", "model_flops"),
    *("model_flops_utilization", "out_of_range", "memory_bytes_per_device", "memory_by_kind"),
    *("memory_by_group", "memory_limit_by_group", "window_bytes", "host_memory_bytes_per_device"),
    *("buckets", "search_trace", "search_seconds", "compile_seconds", "plan"),
)
_NO_ENTRIES = (
    "mesh_shapes",
    "mesh_lower_bounds",
    "pin_prices",
    "strategies",
    "parameters",
    "communication",
)


def print_document(document: object) -> None:
    """Print one document; JSON has no infinity, so numbers that are not finite become null."""
    print(json.dumps(_finite(document), indent=1))


def _finite(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(value) for value in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item


def compile_document(
    compilation: Compilation,
    limit: MemoryLimit,
    plan: Path | None = None,
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    """Return the document of ``compile --json``.

    Parameters
    ----------
    compilation : Compilation
        The compilation.
    limit : float or tuple of float
        Memory limit of a device in bytes, or of those of each device group.
    plan : Path, optional
        The folder of the plan.
    timeline : Timeline, optional
        Its timeline; simulated if not given.
    """
    document, compiled = compilation.plan.document, compilation.compiled
    timeline = timeline or timeline_of(compilation, limit)
    return {
        "model": document.model,
        "devices": document.devices,
        "cluster": document.cluster.name,
        "mesh": document.device_mesh.of_ranks.sizes,
        "stages": max(compiled.program.stages, 1),
        "device_by_group": list(document.device_by_group),
        "blocks_by_stage": list(blocks_by_stage(compiled.program)),
        "micro_batches": document.micro_batches,
        "micro_batch_statistics": list(document.micro_batch_statistics),
        "named_plan": document.how if document.search == "named_plan" else None,
        "mode": document.mode,
        "search": document.search,
        "cost_model": document.cost_model,
        "precision": document.precision,
        "reduce_type": document.reduce_type,
        "accumulate_type": document.accumulate_type,
        "status": document.status,
        "how": document.how,
        "interrupted": compilation.is_interrupted,
        "reason": None,
        "objective": document.objective,
        "objective_is": document.objective_is,
        "lower_bound": document.lower_bound,
        "lower_bound_covers": document.bound_covers,
        "gap": document.gap,
        "predicted_step_seconds": document.predicted_step_seconds,
        **_speed(compilation, timeline),
        **_taken(document.memory, limit),
        **_searched(compilation),
        "pin_prices": document.pin_prices,
        **_saved(compilation),
        "search_seconds": compiled.result.seconds if compiled.result else 0.0,
        "compile_seconds": compiled.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "plan": None if plan is None else str(plan),
        **_decided(document),
    }


def _taken(memory: MemoryDocument, limit: MemoryLimit) -> dict[str, Any]:
    """Return the keys about memory."""
    return {
        "fits": memory.fits(limit),
        "memory_limit_bytes": least_limit(limit),
        "memory_limit_by_group": list(limit) if isinstance(limit, tuple) else [],
        "memory_bytes_per_device": memory.peak_bytes,
        "memory_by_kind": memory.by_kind,
        "memory_by_group": list(memory.by_group),
        "window_bytes": memory.window_bytes,
        "host_memory_bytes_per_device": memory.host_bytes,
        "least_memory_bytes": None,
        "least_memory_bound": None,
    }


def _saved(compilation: Compilation) -> dict[str, Any]:
    """Return what is computed again for the gradient, and what is saved in host memory."""
    compiled, cluster = compilation.compiled, compilation.cluster
    again, hosted = recomputed(compiled, cluster), offloaded(compiled, cluster)
    return {"recomputed": list(map(asdict, again)), "offloaded": list(map(asdict, hosted))}


def _searched(compilation: Compilation) -> dict[str, Any]:
    """Return the keys about a search over configurations."""
    return {
        "mesh_shapes": dict(compilation.objectives),
        "mesh_lower_bounds": dict(compilation.lower_bounds),
        "search_trace": search_document(compilation.search_trace),
    }


def _decided(document: PlanDocument) -> dict[str, Any]:
    """Return the keys about strategies, layouts and communication."""
    return {
        "strategies": {
            name: [list(counts) for counts in strategy.split_counts]
            for name, strategy in document.strategies.items()
        },
        "parameters": {name: item.layout for name, item in document.parameters.items()},
        "buckets": document.buckets,
        "communication": {
            kind: {"count": volume.count, "bytes": volume.bytes}
            for kind, volume in document.communication.items()
        },
    }


def timeline_of(compilation: Compilation, limit: MemoryLimit) -> Timeline:
    """Return the timeline whose memory a plan states; of one that does not fit, the fastest."""
    return compilation.timeline_within(limit)


def _speed(compilation: Compilation, timeline: Timeline) -> dict[str, Any]:
    """Return the keys about the overlapped step."""
    device, step = mean_device(compilation.cluster), timeline.step_seconds
    speed = rates(compilation.plan, compilation.compiled, device, step)
    interval = interval_of(speed, compilation.plan, step, compilation.cluster)
    return {
        "overlapped_step_seconds": step,
        "step_interval": interval and interval.document,
        "communication_seconds": timeline.communication_seconds,
        "exposed_communication_seconds": timeline.exposed_communication_seconds,
        "bubble_seconds": timeline.bubble_seconds,
        **speed.document,
        "out_of_range": out_of_range(speed, compilation.cluster),
    }


def no_plan_document(
    error: NoPlanError, model: str, cluster: AnyCluster, devices: int, limit: float, how: Any
) -> dict[str, Any]:
    """Return the document of ``compile --json`` where there is no plan: the same keys.

    Parameters
    ----------
    error : NoPlanError
        The reason.
    model, cluster, devices
        The arguments of the compilation.
    limit : float
        Memory limit of a device in bytes.
    how : object
        Has ``mode``, ``search``, ``plan``, ``cost_model``, ``precision`` and types of gradients.
    """
    proven = isinstance(error, InfeasibleError)
    return {
        **dict.fromkeys(_UNKNOWN),
        "model": model,
        "devices": devices,
        "cluster": cluster.name,
        "mode": how.mode,
        "search": how.search if how.plan is None else ByName.name,
        "named_plan": None if how.plan is None else NamedPlan.parse(how.plan).on(devices).text,
        "cost_model": how.cost_model,
        "precision": how.precision or assumed_precision(model) or MASTER,
        "reduce_type": how.reduce_type,
        "accumulate_type": how.accumulate_type,
        "status": "infeasible" if proven else "unknown",
        "reason": str(error),
        "fits": False if proven else None,
        "memory_limit_bytes": limit,
        "least_memory_bytes": error.least_memory_bytes,
        "least_memory_bound": error.least_memory_bound,
        "peak_memory_bytes": peak_memory_bytes(),
        **{name: {} for name in _NO_ENTRIES},
        "micro_batch_statistics": [],
        "recomputed": [],
        "offloaded": [],
    }


def peak_memory_bytes() -> int:
    """Return the peak memory of this process."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run_document(
    plan: Plan, records: Sequence[StepRecord], data: str, logs: Path, checkpoint: Path | None
) -> dict[str, Any]:
    """Return the document of ``run --json``.

    Parameters
    ----------
    plan : Plan
        The plan.
    records : sequence of StepRecord
        Its steps.
    data : str
        The training data.
    logs, checkpoint : Path
        The written files.
    """
    return {
        "model": plan.document.model,
        "devices": plan.mesh.size,
        "data": data,
        "losses": [record.loss for record in records],
        "seconds": [record.seconds for record in records],
        "seconds_per_step": statistics.median(record.seconds for record in records),
        "peak_bytes_per_rank": max(record.peak_bytes for record in records),
        "host_peak_bytes_per_rank": max(record.host_peak_bytes for record in records),
        "logs": str(logs),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }


def prove_document(proof: Proof) -> dict[str, Any]:
    """Return the document of ``prove --json``."""
    return {
        "proven": proof.proven,
        "trusted": list(proof.trusted),
        "first_failure": proof.first_failure,
        "reason": proof.reason,
        "seconds": proof.seconds,
    }


def verify_document(verdict: Verdict) -> dict[str, Any]:
    """Return the document of ``verify --json``."""
    rounding = verdict.rounding
    return {
        **prove_document(verdict.proof),
        "compared": verdict.compared,
        "equal": verdict.equal,
        "max_relative_error": verdict.max_relative_error,
        "first_difference": verdict.first_difference,
        "tensors": verdict.tensors,
        "rounding": None if rounding is None else rounding.error,
        "rounding_bound": None if rounding is None else rounding.bound,
    }
