"""How the context says that a network is spread over devices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from shardwright.communication import get_group_size, processes
from shardwright.compiler.outer.pinned_meshes import can_slice, in_order, shapes_of, slices_of
from shardwright.cost_model.cluster import prime_factors
from shardwright.cost_model.redistribution.planner import MOST_AXES
from shardwright.ir.errors import ModelError
from shardwright.ir.values import check_choice, check_flag, wrong_value
from shardwright.mindspore.context import (
    PYNATIVE_MODE,
    ParallelMode,
    get_auto_parallel_context,
    get_context,
    get_seed,
    has_parallel_setting,
    splits_operators,
)
from shardwright.mindspore.parallel.auto_parallel import AutoParallel
from shardwright.mindspore.running import Running, WithoutRanks
from shardwright.mindspore.servers import HOST
from shardwright.nn.cell import BY_HAND, Cell
from shardwright.operators.info import Array
from shardwright.planner.options import CompileOptions, Mode
from shardwright.session import ParallelOptions
from shardwright.tracing import Definition, Network

_SIZES = {"optimizer_weight_shard_size": "shard_size", "parallel_optimizer_threshold": "threshold"}
_CONFIGURED = (*_SIZES, "optimizer_level", "gradient_accumulation_shard")


def from_context(network: Network, mode: str) -> AutoParallel:
    """Return a network with the parallel options of the context."""
    get = get_auto_parallel_context
    chosen = get("search_mode") if mode == ParallelMode.AUTO_PARALLEL else mode
    spread = AutoParallel(network, chosen)
    _check_reduction(network)
    _check_made_in(network)
    groups = get("communi_parallel_mode")
    if get("device_num") > HOST:
        check_choice("communi_parallel_mode", groups, ("all_group_parallel",))
    if mode == ParallelMode.DATA_PARALLEL:  # in which MindSpore reads no strategy
        if get("full_batch"):
            hint = "use `semi_auto_parallel` or `auto_parallel` for a whole batch on every rank"
            raise wrong_value("full_batch", True, f"False in `{mode}`", hint)
        spread.options = replace(spread.options, obeys_strategies=False)
    else:
        if get("full_batch"):
            spread.dataset_strategy("full_batch")
        elif has_parallel_setting("dataset_strategy"):
            spread.dataset_strategy(get("dataset_strategy"))
    if get("enable_parallel_optimizer"):
        config = get("parallel_optimizer_config")
        for name in config:
            check_choice("parallel_optimizer_config", name, _CONFIGURED)
        check_flag("gradient_accumulation_shard", config.get("gradient_accumulation_shard", False))
        given = {own: config[name] for name, own in _SIZES.items() if name in config}
        spread.hsdp(**given, optimizer_level=_level(config))
    fused = dict(get("comm_fusion"))
    if not get("enable_all_reduce_fusion"):
        fused.pop("allreduce", None)
    if fused:
        spread.comm_fusion(fused)
    _set_pipeline(spread)
    if get("strategy_ckpt_load_file"):
        spread.load_operator_strategy_file(get("strategy_ckpt_load_file"))
    if get("strategy_ckpt_save_file"):
        spread.save_operator_strategy_file(get("strategy_ckpt_save_file"))
    return spread


def _check_reduction(network: Network) -> None:
    """Refuse reductions in float32 that were asked for, where gradients are float16.

    Raises
    ------
    OptionError
        If a parameter that is trained is.
    """
    asked = has_parallel_setting("gradient_fp32_sync")
    if asked and get_auto_parallel_context("gradient_fp32_sync") and isinstance(network, Cell):
        for parameter in network.trainable_params():
            if parameter.dtype in ("float16", "bfloat16"):
                raise wrong_value(
                    "gradient_fp32_sync",
                    True,
                    f"False: the gradient of `{parameter.name}` is {parameter.dtype}, and reduced "
                    f"in it",
                )


def _check_made_in(network: Network) -> None:
    """Refuse parameters that begin by an initializer, made before the mode that splits operators.

    MindSpore draws whole values when they are made in another mode, and slices in this one.

    Raises
    ------
    ModelError
        If there is one.
    """
    splitting = ParallelMode.MODE_LIST[-2:]
    mode = get_auto_parallel_context("parallel_mode")
    parameters = network.get_parameters() if isinstance(network, Cell) else ()
    for parameter in parameters if mode in splitting else ():
        if not parameter.has_value and parameter.made_in not in splitting:
            raise ModelError(
                f"the parameter `{parameter.name}` begins by an initializer and was made in "
                f"`{parameter.made_in}`, the mode is `{mode}`: Must set or change parallel mode "
                f"before any Tensor created.",
                hint="call `set_auto_parallel_context` before the network is made",
            )


def _level(config: Mapping[str, Any]) -> str:
    """Return the level of optimizer parallelism; divided accumulation is the second."""
    level = config.get("optimizer_level", "level1")
    if config.get("gradient_accumulation_shard") and level == "level1":
        return "level2"
    return str(level)


def _set_pipeline(spread: AutoParallel) -> None:
    stages = get_auto_parallel_context("pipeline_stages")
    config = get_auto_parallel_context("pipeline_config")
    for name in config:
        check_choice("pipeline_config", name, ("pipeline_interleave", "pipeline_scheduler"))
    if stages > 1 or config:
        interleave = config.get("pipeline_interleave", False)
        check_flag("pipeline_interleave", interleave)
        spread.pipeline(stages, False, interleave, config.get("pipeline_scheduler", "1f1b"))


def _mode_of(network: Network) -> str:
    """Return the mode of the context; `hybrid_parallel` for a cell that no search splits."""
    if isinstance(network, Cell) and network.get_flags().get(BY_HAND):
        return ParallelMode.HYBRID_PARALLEL
    return str(get_auto_parallel_context("parallel_mode"))


def options_of_context(network: Network) -> ParallelOptions:
    """Return the options of the context, for the ranks of this script."""
    mode = _mode_of(network)
    if mode in (ParallelMode.STAND_ALONE, ParallelMode.HYBRID_PARALLEL):
        return ParallelOptions.of_this_world(deterministic=get_context("deterministic") == "ON")
    return from_context(network, mode).options


def running_on_ranks(function: Network, arrays: Sequence[Array]) -> Running | None:
    """Return a function compiled for several processes; None where each runs it alone.

    Where the context does not split it, a process has its own inputs and its own copy of the
    parameters, and runs alone what does not communicate.

    Raises
    ------
    ModelError
        If all ranks are in this process, and each has its own inputs.
    """
    mode = get_auto_parallel_context("parallel_mode")
    if mode in (ParallelMode.SEMI_AUTO_PARALLEL, ParallelMode.AUTO_PARALLEL):
        return Running(function, arrays, from_context(function, mode).options, get_seed() or 0)
    if processes() is None:
        raise ModelError(
            f"gradients are computed outside of a training step, on {get_group_size()} ranks in "
            f"one process",
            hint="start a process for each rank with `shardwright launch`, or write `@jit` before "
            "the function that calls it and the optimizer",
        )
    try:
        options = ParallelOptions.of_this_world()
        return Running(function, arrays, options, get_seed() or 0, communicates=True)
    except WithoutRanks:
        return None


def arrives_split() -> bool:
    """Return whether nothing is said of inputs, of which ranks have parts of the batch then."""
    get = get_auto_parallel_context
    said = get("full_batch") or has_parallel_setting("dataset_strategy")
    return not said and get_context("mode") != PYNATIVE_MODE


def options_alone(network: Network) -> ParallelOptions:
    """Return the options of the context, for as many devices as it names."""
    mode, devices = _mode_of(network), get_auto_parallel_context("device_num")
    if mode in (ParallelMode.STAND_ALONE, ParallelMode.HYBRID_PARALLEL):
        by_hand: Mode = "hybrid_parallel" if devices > 1 else "stand_alone"
        return ParallelOptions(CompileOptions(mode=by_hand, gradients_mean=devices > 1), devices)
    spread = from_context(network, mode)
    if splits_operators() and arrives_split():
        spread.dataset_strategy("data_parallel")
    return replace(spread.options, devices=devices)


def finest_mesh(definition: Definition, devices: int) -> str | None:
    """Return the mesh that is split in most ways, of those on which the strategies can be said.

    Of several it is the one whose ranks are numbered as MindSpore numbers them for most strategies.
    """
    inner = gcd(devices, HOST)
    levels = [[*reversed(prime_factors(size))] for size in (devices // inner, inner)]
    while sum(map(len, levels)) > MOST_AXES:
        level = max(levels, key=len)
        level[-2:] = [level[-2] * level[-1]]
        level.sort(reverse=True)
    first = tuple(size for level in levels for size in level)
    wanted = slices_of(definition.graph, definition.pins, definition.result_pins)

    def rank(shape: tuple[int, ...]) -> tuple[Any, ...]:
        said, ordered = (
            sum(fits(shape, slices) for slices in wanted) for fits in (can_slice, in_order)
        )
        return said, ordered, len(shape), shape == first, shape[::-1]

    best = max(shapes_of((devices // inner, inner)), key=rank)
    return "x".join(map(str, best)) or None
