"""The settings of a process that MindSpore's scripts make: mode, device, parallel mode, seed.

They are read when a model is compiled. An argument that has no meaning here is refused.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright import eager
from shardwright.communication import get_group_size, get_rank
from shardwright.ir.values import (
    NOT_NEGATIVE,
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    Range,
    check_choice,
    check_flag,
    check_names,
    check_type,
    wrong_value,
)
from shardwright.mindspore.errors import as_mindspore
from shardwright.server import get_ps_context as get_ps_context
from shardwright.server import reset_ps_context as reset_ps_context
from shardwright.server import set_ps_context as set_ps_context
from shardwright.server.context import MOST_RANKS

GRAPH_MODE, PYNATIVE_MODE = range(2)  # MindSpore's numbers
_SEARCHES = ("recursive_programming", "dynamic_programming", "sharding_propagation")
_TARGETS = ("CPU", "GPU", "Ascend")
_LAYOUTS = ("data_parallel", "full_batch")


class ParallelMode:
    """The parallel modes."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST = (
        "stand_alone",
        "data_parallel",
        "hybrid_parallel",
        "semi_auto_parallel",
        "auto_parallel",
    )


_GENERAL: dict[str, Any] = {
    "mode": GRAPH_MODE,
    "device_target": "CPU",
    "device_id": 0,
    "save_graphs": False,
    "save_graphs_path": ".",
    "deterministic": "OFF",
    "memory_offload": "OFF",
}
_PARALLEL: dict[str, Any] = {
    "parallel_mode": ParallelMode.STAND_ALONE,
    "device_num": None,
    "global_rank": None,
    "gradients_mean": False,
    "search_mode": "recursive_programming",
    "full_batch": False,
    "dataset_strategy": "data_parallel",
    "enable_parallel_optimizer": False,
    "parallel_optimizer_config": {},
    "comm_fusion": {},
    "pipeline_stages": 1,
    "pipeline_config": {},
    "pipeline_result_broadcast": False,
    "strategy_ckpt_load_file": "",
    "strategy_ckpt_save_file": "",
    "group_ckpt_save_file": "",
    "parameter_broadcast": False,
    "gradient_fp32_sync": True,
    "loss_repeated_mean": True,
    "enable_alltoall": True,
    "communi_parallel_mode": "all_group_parallel",
    "enable_all_reduce_fusion": True,
    "optimizer_weight_shard_aggregated_save": False,
}
_FUSED = ("allreduce", "allgather", "reducescatter")


@dataclass
class _Settings:
    """The settings of this process; of the parallel ones only those that were made."""

    general: dict[str, Any] = field(default_factory=lambda: dict(_GENERAL))
    parallel: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None


_SETTINGS = _Settings()


@as_mindspore()
def set_context(**settings: Any) -> None:
    """Set the mode and the device of this process.

    Parameters
    ----------
    **settings
        ``mode`` (`GRAPH_MODE` or `PYNATIVE_MODE`, which are the same: what is called is traced once
        for each signature, and its program runs), ``device_target`` (``CPU``, ``GPU`` or
        ``Ascend``; programs run on this machine's processors), ``device_id``, ``save_graphs``
        (True, or 0 to 3), ``save_graphs_path``, ``deterministic`` (``ON``: reductions in the order
        of the ranks), ``memory_offload`` (``ON``: the memory of the host is taken, too; see
        `runtime`).

    Raises
    ------
    OptionError
        If a setting is unknown or has a value that is not allowed.
    """
    check_names("`set_context` has no setting", settings, tuple(_GENERAL))
    for name, value in settings.items():
        _CHECKS[name](name, value)
    _SETTINGS.general.update(settings)
    if "save_graphs" in settings:
        os.environ["MS_DEV_SAVE_GRAPHS"] = str(int(settings["save_graphs"]))
    if "save_graphs_path" in settings:
        os.environ["MS_DEV_SAVE_GRAPHS_PATH"] = settings["save_graphs_path"]


def set_device(device_target: str, device_id: int | None = None) -> None:
    """Set the device of this process; see `set_context`."""
    set_context(device_target=device_target)
    if device_id is not None:
        set_context(device_id=device_id)


def get_context(attr_key: str) -> Any:
    """Return a setting of `set_context`."""
    check_choice("attr_key", attr_key, tuple(_GENERAL))
    return _SETTINGS.general[attr_key]


def set_deterministic(deterministic: bool) -> None:
    """Set whether reductions over processes add in the order of the ranks."""
    check_flag("deterministic", deterministic)
    _SETTINGS.general["deterministic"] = "ON" if deterministic else "OFF"


@as_mindspore()
def set_auto_parallel_context(**settings: Any) -> None:
    """Set how a model is run in parallel that is given to `Model` without `AutoParallel`.

    Parameters
    ----------
    **settings
        ``parallel_mode`` (of `ParallelMode`), ``device_num``, ``global_rank``, ``gradients_mean``,
        ``search_mode``, ``full_batch``, ``dataset_strategy``, ``enable_parallel_optimizer``,
        ``parallel_optimizer_config``, ``comm_fusion``, ``pipeline_stages``, ``pipeline_config``,
        ``pipeline_result_broadcast`` (outputs are on all ranks either way),
        ``strategy_ckpt_load_file``, ``strategy_ckpt_save_file``, ``group_ckpt_save_file`` (the
        same as the environment's ``GROUP_INFO_FILE``), ``parameter_broadcast``,
        ``gradient_fp32_sync`` (gradients are reduced in the element type of their parameters:
        True is refused where one that is trained is float16), ``loss_repeated_mean`` and
        ``enable_alltoall`` (True), ``communi_parallel_mode`` (where ranks are more than one host
        has, only ``all_group_parallel`` compiles), ``optimizer_weight_shard_size`` (as in
        ``parallel_optimizer_config``, to which each call adds), ``all_reduce_fusion_config`` (the
        numbers of ``comm_fusion`` by ``index``), ``enable_all_reduce_fusion``,
        ``optimizer_weight_shard_aggregated_save`` (checkpoints are whole either way).

    Raises
    ------
    OptionError
        If a setting is unknown or has a value that is not allowed; it is MindSpore's `ValueError`,
        `TypeError` or `KeyError`, too.
    """
    renamed = {"auto_parallel_search_mode": "search_mode", "mirror_mean": "gradients_mean"}
    settings = {renamed.get(name, name): value for name, value in settings.items()}
    if begins := settings.pop("all_reduce_fusion_config", None):
        settings["comm_fusion"] = {"allreduce": {"mode": "index", "config": begins}}
    size = settings.pop("optimizer_weight_shard_size", None)
    config = settings.get("parallel_optimizer_config", {})
    if size is not None or (config and isinstance(config, Mapping)):
        kept = _SETTINGS.parallel.get("parallel_optimizer_config", {})
        own = {} if size is None else {"optimizer_weight_shard_size": size}
        settings["parallel_optimizer_config"] = {**kept, **config, **own}
    check_names("`set_auto_parallel_context` has no setting", settings, tuple(_PARALLEL))
    for name, value in settings.items():
        _CHECKS[name](name, value)
    _SETTINGS.parallel.update(settings)


def reset_auto_parallel_context() -> None:
    """Forget the settings of `set_auto_parallel_context`."""
    _SETTINGS.parallel.clear()


def get_auto_parallel_context(attr_key: str) -> Any:
    """Return a setting of `set_auto_parallel_context`, or its default."""
    check_choice("attr_key", attr_key, tuple(_PARALLEL))
    own = {"device_num": get_group_size, "global_rank": lambda: int(get_rank())}
    if attr_key in own and _SETTINGS.parallel.get(attr_key) is None:
        return own[attr_key]()
    return _SETTINGS.parallel.get(attr_key, _PARALLEL[attr_key])


def splits_operators() -> bool:
    """Return whether the parallel mode of the context is one in which operators are split."""
    modes = (ParallelMode.SEMI_AUTO_PARALLEL, ParallelMode.AUTO_PARALLEL)
    return get_auto_parallel_context("parallel_mode") in modes


def arrives_whole() -> bool:
    """Return whether every rank has all of the inputs of a program whose operators are split."""
    get = get_auto_parallel_context
    said = get("full_batch") or get("dataset_strategy") == "full_batch"
    return splits_operators() and bool(said)


def check_ranks() -> None:
    """Refuse the settings of another number of ranks, or another rank, where something is run.

    Raises
    ------
    OptionError
        If the context names them.
    """
    own = {
        "device_num": (get_group_size(), "the number of ranks"),
        "global_rank": (get_rank(), "the rank of this process"),
    }
    for name, (value, what) in own.items():
        if _SETTINGS.parallel.get(name, value) != value:
            raise wrong_value(name, _SETTINGS.parallel[name], f"{what}, {value}")


def has_parallel_setting(name: str) -> bool:
    """Return whether a setting of `set_auto_parallel_context` was made."""
    return name in _SETTINGS.parallel


def set_seed(seed: int) -> None:
    """Set the seed of initial values, dropout, the order of shuffled datasets, and numpy."""
    eager.set_seed(seed)
    np.random.seed(seed % 2**32)
    _SETTINGS.seed = seed


def get_seed() -> int | None:
    """Return the seed that was set; None if none was."""
    return _SETTINGS.seed


# Checks


def _mode(name: str, value: object) -> None:
    if value not in (GRAPH_MODE, PYNATIVE_MODE) or isinstance(value, bool):
        raise wrong_value(name, value, "GRAPH_MODE or PYNATIVE_MODE")


def _choice(*choices: str) -> Callable[[str, object], None]:
    return lambda name, value: check_choice(name, value, choices)


def _only(allowed: object) -> Callable[[str, object], None]:
    """Return a check of a setting that has one value here."""

    def check(name: str, value: object) -> None:
        if value is not allowed:
            raise wrong_value(name, value, str(allowed), "leave it out: there is no other way")

    return check


def _graphs(name: str, value: object) -> None:
    if not isinstance(value, bool) and value not in (0, 1, 2, 3):
        raise wrong_value(name, value, "True, False, or a number from 0 to 3")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise wrong_value(name, value, "the path of a file")


def _mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise wrong_value(name, value, "a mapping")


def _divided(name: str, value: Any) -> None:
    """Check how the states of optimizers are divided: the size from which on they are."""
    _mapping(name, value)
    threshold = "parallel_optimizer_threshold"
    if threshold in value:
        NOT_NEGATIVE.check(threshold, value[threshold])


def _fusion(name: str, value: Any) -> None:
    """Check what is fused: the modes of collectives, and what a mode takes."""
    check_type(name, value, Mapping)
    _check_keys(name, value, ("openstate", *_FUSED))
    for collective in value.keys() & _FUSED:
        entry = value[collective]
        check_type(collective, entry, Mapping)
        _check_keys(collective, {**dict.fromkeys(("mode", "config")), **entry}, ("mode", "config"))
        _check_keys("mode", (entry.get("mode"),), ("auto", "size", "index"))
        if entry["mode"] == "size":
            _check_keys(collective, ("config",), entry)
            check_type("config", entry["config"], int | float)


def _check_keys(name: str, given: Iterable[object], known: Collection[str]) -> None:
    """Refuse what is not among the words of a setting, as Python refuses a key."""
    for key in given:
        if key not in known:
            error = wrong_value(name, key, f"one of {', '.join(known)}")
            error.as_python = KeyError
            raise error


def _strategy(name: str, value: object) -> None:
    if isinstance(value, str):
        check_choice(name, value, _LAYOUTS)
    elif not isinstance(value, Sequence):
        raise wrong_value(name, value, "`data_parallel`, `full_batch`, or a sequence")


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "mode": _mode,
    "device_target": _choice(*_TARGETS),
    "device_id": NOT_NEGATIVE_INTEGER.check,
    "save_graphs": _graphs,
    "save_graphs_path": _text,
    "deterministic": _choice("ON", "OFF"),
    "memory_offload": _choice("ON", "OFF"),
    "parallel_mode": _choice(*ParallelMode.MODE_LIST),
    "device_num": Range(whole=True, least=1, below=MOST_RANKS + 1).check,
    "global_rank": Range(whole=True, least=0, below=MOST_RANKS).check,
    "gradients_mean": check_flag,
    "search_mode": _choice(*_SEARCHES),
    "full_batch": check_flag,
    "dataset_strategy": _strategy,
    "enable_parallel_optimizer": check_flag,
    "parallel_optimizer_config": _divided,
    "comm_fusion": _fusion,
    "pipeline_stages": POSITIVE_INTEGER.check,
    "pipeline_config": _mapping,
    "pipeline_result_broadcast": check_flag,
    "strategy_ckpt_load_file": _text,
    "strategy_ckpt_save_file": _text,
    "group_ckpt_save_file": _text,
    "parameter_broadcast": check_flag,
    "gradient_fp32_sync": check_flag,
    "loss_repeated_mean": _only(True),
    "enable_alltoall": _only(True),
    "communi_parallel_mode": _choice("all_group_parallel", "same_server_group_parallel"),
    "enable_all_reduce_fusion": check_flag,
    "optimizer_weight_shard_aggregated_save": check_flag,
}
