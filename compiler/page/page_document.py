"""The document of a page: all its numbers; the page only draws them."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.compiler.outer.account import outcomes_text, search_document
from shardwright.compiler.page.alternatives import alternatives
from shardwright.compiler.page.page_communication import communication_document
from shardwright.compiler.page.page_memory import memory_document
from shardwright.compiler.page.page_model import model_document
from shardwright.compiler.page.strategies import (
    middle_operators,
    strategies_document,
    with_alternatives,
)
from shardwright.compiler.page.timelines import timeline_document
from shardwright.compiler.plans.compiled import Compiled
from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.rates import rates
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.pipelines.mixed import AnyCluster, mean_device


def page_document(
    plan: Plan,
    compiled: Compiled,
    cluster: AnyCluster,
    timeline: Timeline,
    *,
    lines: Mapping[str, str] | None = None,
    said: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the document of the page of a compilation.

    Parameters
    ----------
    plan : Plan
        The plan.
    compiled : Compiled
        The compilation.
    cluster : Cluster or MixedCluster
        The devices; as a training software runs them, where the timeline is that of one.
    timeline : Timeline
        The timeline of a step, of the memory that the plan states.
    lines : mapping of str to str, optional
        The line of the model's own code that applies each operator, by name.
    said : sequence of str
        Sentences that the page begins with.
    """
    lines = lines or {}
    operators = strategies_document(compiled, cluster)
    others = alternatives(compiled, plan.document, cluster, middle_operators(operators))
    return {
        "said": list(said),
        "plan": _plan(plan, compiled, cluster, timeline),
        "model": model_document(compiled, cluster, lines),
        "timeline": timeline_document(timeline),
        "memory": memory_document(
            compiled.source, plan.program, timeline, plan.document.memory, cluster
        ),
        "communication": communication_document(compiled, cluster, lines),
        "strategies": with_alternatives(operators, others),
        "no_alternatives": others.missing,
        "search": _search(plan, compiled),
    }


def _plan(
    plan: Plan, compiled: Compiled, cluster: AnyCluster, timeline: Timeline
) -> dict[str, Any]:
    document, software = plan.document, cluster.software
    return {
        "model": document.model,
        "devices": document.devices,
        "cluster": document.cluster.name,
        "software": None if software is None else software.name,
        "mesh": {axis.name: axis.size for axis in document.device_mesh.of_ranks.axes},
        "stages": max(plan.program.stages, 1),
        "schedule": plan.program.schedule,
        "micro_batches": document.micro_batches,
        "mode": document.mode,
        "search": document.search,
        "precision": document.precision,
        "optimizer": document.optimizer.kind,
        "serial_step_seconds": document.predicted_step_seconds,
        "overlapped_step_seconds": timeline.step_seconds,
        "device_by_group": list(document.device_by_group),
        **rates(plan, compiled, mean_device(cluster), timeline.step_seconds).document,
    }


def _search(plan: Plan, compiled: Compiled) -> dict[str, Any]:
    document, trace = plan.document, compiled.trace
    return {
        "status": document.status,
        "how": document.how,
        "objective": document.objective,
        "objective_is": document.objective_is,
        "in_seconds": document.cost_model == "time",
        "lower_bound": document.lower_bound,
        "lower_bound_covers": document.bound_covers,
        "gap": document.gap,
        "certificate": document.certificate,
        "pin_prices": dict(document.pin_prices),
        "outcomes": None if trace is None else outcomes_text(trace),
        "trace": search_document(trace),
    }
