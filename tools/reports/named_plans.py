"""Named plans in commands: compiled whether they fit or not, and beside the searches."""

import argparse
from math import inf
from typing import Any

from shardwright.compilation import Compilation
from shardwright.cost_model.cluster import Cluster
from shardwright.exports.degrees.best import best_named_plan
from shardwright.ir.errors import NoPlanError
from shardwright.models import training_definition
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.console.options import compile_arguments, compile_model, with_options
from shardwright.tools.reports.documents import compile_document

# What the user decides by other means, so that plans have no names.
_DECIDED = ("strategies", "dataset_strategy", "optimizer_parallel")


def compile_named(model: str, arguments: argparse.Namespace, **options: Any) -> Compilation:
    """Compile a named plan; where it does not fit, without a memory limit.

    Then its memory is that of the program in its order: gathers that run ahead would add to it.

    Parameters
    ----------
    model : str
        The model.
    arguments : Namespace
        The command line.
    **options
        Options of `compile` that are not the command line's.
    """
    try:
        return compile_model(model, arguments, **options)
    except NoPlanError:
        free = {**options, "memory_limit": inf, "objective": "serial"}
        return compile_model(model, arguments, **free)


# In `bench strategies`


def named_rows(
    model: str, arguments: argparse.Namespace, cluster: Cluster, limit: float
) -> list[dict[str, Any]]:
    """Return the documents of the named plans of the user, and of the best one that fits.

    Each is on the mesh of its degrees, so the lower bound of the search does not cover it.

    Parameters
    ----------
    model : str
        The model.
    arguments : Namespace
        The command line.
    cluster : Cluster
        The devices.
    limit : float
        Memory limit of a device in bytes.
    """
    plans: list[str | NamedPlan] = [*arguments.plans]
    reasons: dict[NamedPlan, str] = {}
    arguments = with_options(arguments, gap=None, workers=None, executor=None)
    if _is_free(model, arguments):
        options = compile_arguments(model, arguments)
        for name in ("cluster", "mesh", "seed"):
            options.pop(name, None)
        best = best_named_plan(model, cluster, arguments.devices, **options)
        if best.plan is not None:
            plans.append(best.plan)
            reasons[_whole(best.plan, arguments)] = f"the fastest: {best.account}"
    rows: dict[NamedPlan, dict[str, Any]] = {}
    for plan in plans:
        whole = _whole(plan, arguments)
        if whole not in rows:
            compilation = compile_named(model, arguments, plan=plan, mesh=None)
            rows[whole] = compile_document(compilation, limit)
            del rows[whole]["strategies"]
            rows[whole]["reason"] = reasons.get(whole) or rows[whole]["reason"]
    return [*rows.values()]


def _whole(plan: str | NamedPlan, arguments: argparse.Namespace) -> NamedPlan:
    """Return a plan with all degrees: what a user wrote shorter is the same plan."""
    parsed = NamedPlan.parse(plan) if isinstance(plan, str) else plan
    return parsed.on(arguments.devices)


def _is_free(model: str, arguments: argparse.Namespace) -> bool:
    """Return whether strategies are left to a plan."""
    if arguments.cost_model != "time" or any(getattr(arguments, name) for name in _DECIDED):
        return False
    definition, _ = training_definition(model, arguments.batch, 1)
    return not (definition.pins or definition.result_pins)
