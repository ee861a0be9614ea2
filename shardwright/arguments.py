"""The arguments of `compile`: checked, and turned into `CompileOptions`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from shardwright.compiler.plans.strategies_file import read_strategies
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.pipelines.mixed import MixedCluster
from shardwright.ir.values import (
    POSITIVE_INTEGER,
    SEED,
    check_choice,
    check_names,
    wrong_value,
)
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.optimizer import Optimizer
from shardwright.operators.models.optimizer_text import optimizer_of
from shardwright.planner.option_checks import (
    check_exact_only,
    check_recompute_of_plan,
    decided_by_plan,
    no_effect,
    warn_of_idle_devices,
)
from shardwright.planner.options import (
    OPTION_NAMES,
    UNPARTITIONED,
    CompileOptions,
)
from shardwright.tracing import Definition

DatasetStrategy = Literal["data_parallel", "full_batch"]


def check_arguments(
    model: object,
    devices: object,
    cluster: object,
    batch: object,
    dataset_strategy: object,
    seed: object,
    progress: object,
) -> None:
    """Refuse wrong arguments of `compile`."""
    if not isinstance(model, str | Definition):
        raise wrong_value("model", model, "the name of a model, or what `trace` returns")
    POSITIVE_INTEGER.check("devices", devices)
    if not isinstance(cluster, str | Cluster | MixedCluster):
        raise wrong_value("cluster", cluster, "the name of a cluster, a file, or a `Cluster`")
    if batch is not None:
        POSITIVE_INTEGER.check("batch", batch)
    if dataset_strategy is not None:
        check_choice("dataset_strategy", dataset_strategy, get_args(DatasetStrategy))
    SEED.check("seed", seed)
    if progress is not None and not callable(progress):
        raise wrong_value("progress", progress, "a function of seconds, cost and bound")


def asked_options(
    options: Mapping[str, Any],
    strategies: str | Path | Mapping[str, SplitCounts] | None,
    arguments: Sequence[str],
) -> CompileOptions:
    """Return the options of the user; an optimizer may be given by its name."""
    check_names("`compile` has no option", options, [*arguments, *OPTION_NAMES])
    optimizer = options.get("optimizer")
    if isinstance(optimizer, str):
        options = {**options, "optimizer": optimizer_of(optimizer)}
    check_recompute_of_plan(options)
    asked = CompileOptions(**options)
    check_exact_only(asked.changed, asked.mode, asked.search, asked.plan, asked.cost_model)
    return replace(asked, pins={**asked.pins, **_pins(strategies)})


def check_mode(asked: CompileOptions, devices: int, mesh: object, dataset_strategy: object) -> None:
    """Refuse arguments that have no effect in the mode."""
    warn_of_idle_devices(asked.mode, devices)
    if asked.mode in UNPARTITIONED:
        for name, value in {"mesh": mesh, "dataset_strategy": dataset_strategy}.items():
            if value is not None:
                raise no_effect(name, asked.mode)
    if asked.plan is not None and dataset_strategy is not None:
        raise decided_by_plan("dataset_strategy")


def with_own_options(
    asked: CompileOptions, definition: Definition, options: Mapping[str, Any]
) -> CompileOptions:
    """Add the options of the model that the user does not override."""
    if "loss_scale" not in options:
        asked = replace(asked, loss_scale=definition.loss_scale)
    if "optimizer" not in options:
        asked = replace(asked, optimizer=definition.optimizer or Optimizer())
    if "precision" not in options and definition.precision is not None:
        asked = replace(asked, precision=definition.precision)
    if "micro_batches" not in options and definition.micro_batches != 1:
        asked = replace(asked, micro_batches=definition.micro_batches)
    if asked.mode == "hybrid_parallel" and definition.gradients_mean:
        asked = replace(asked, gradients_mean=True)
    if asked.mode in UNPARTITIONED:
        return asked
    return replace(
        asked,
        pins={**definition.pins, **asked.pins},
        result_pins={**definition.result_pins, **asked.result_pins},
    )


def _pins(strategies: str | Path | Mapping[str, SplitCounts] | None) -> dict[str, SplitCounts]:
    if isinstance(strategies, str | Path):
        return read_strategies(Path(strategies))
    if strategies is not None and not isinstance(strategies, Mapping):
        raise wrong_value("strategies", strategies, "a file, or a mapping from operators")
    return dict(strategies or {})
