"""The JSON documents that scripts read; their keys are fixed."""

import json
import math
import resource
import sys
from typing import Any

from shardwright.api import Compilation
from shardwright.proof import Proof
from shardwright.verdict import Verdict


def print_document(document: object) -> None:
    """Print one document; numbers that are not finite become null, which JSON can say."""
    print(json.dumps(_finite(document), indent=1))


def _finite(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(value) for value in item]
    return None if isinstance(item, float) and not math.isfinite(item) else item


def compile_document(compilation: Compilation) -> dict[str, Any]:
    """Return what ``compile --json`` prints."""
    document, compiled = compilation.plan.document, compilation.compiled
    return {
        "model": document.model,
        "devices": document.devices,
        "mode": document.mode,
        "search": document.search,
        "cost_model": document.cost_model,
        "status": document.status,
        "objective": document.objective,
        "lower_bound": document.lower_bound,
        "lower_bound_covers": document.bound_covers,
        "gap": document.gap,
        "predicted_step_seconds": document.predicted_step_seconds,
        "memory_bytes_per_device": document.memory.peak_bytes,
        **_meshes(compilation),
        "search_seconds": compiled.result.seconds if compiled.result else 0.0,
        "compile_seconds": compiled.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "strategies": {
            name: [list(counts) for counts in strategy.split_counts]
            for name, strategy in document.strategies.items()
        },
        "parameters": {name: item.layout for name, item in document.parameters.items()},
        "communication": {
            kind: {"count": volume.count, "bytes": volume.bytes}
            for kind, volume in document.communication.items()
        },
    }


def _meshes(compilation: Compilation) -> dict[str, Any]:
    """Return the costs and bounds on each mesh, where a search went over them."""
    if not compilation.objectives:
        return {}
    bounds = dict(compilation.lower_bounds)
    return {"mesh_shapes": dict(compilation.objectives), "mesh_lower_bounds": bounds}


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def prove_document(proof: Proof) -> dict[str, Any]:
    """Return what ``prove --json`` prints."""
    return {
        "proven": proof.proven,
        "trusted": list(proof.trusted),
        "first_failure": proof.first_failure,
        "reason": proof.reason,
    }


def verify_document(verdict: Verdict) -> dict[str, Any]:
    """Return what ``verify --json`` prints."""
    return {
        **prove_document(verdict.proof),
        "compared": verdict.compared,
        "equal": verdict.equal,
        "max_relative_error": verdict.max_relative_error,
        "first_difference": verdict.first_difference,
        "tensors": verdict.tensors,
    }
