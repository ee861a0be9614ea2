"""The constants of MindSpore's cost model, under its names and module path."""

from typing import Any

from shardwright.cost_model.mindspore.allreduce_fusion import FusionSettings
from shardwright.cost_model.mindspore.costs import MindSporeCosts
from shardwright.ir.values import check_choice, check_flag, check_names, wrong_value
from shardwright.mindspore.errors import as_mindspore
from shardwright.planner.options import UNPARTITIONED

_WEIGHTS = {
    "costmodel_alpha": "alpha",
    "costmodel_beta": "beta",
    "costmodel_gamma": "gamma",
    "costmodel_communi_threshold": "threshold",
    "costmodel_communi_const": "constant",
    "costmodel_communi_bias": "bias",
}
_FUSION = {
    "costmodel_allreduce_fusion_algorithm": "algorithm",
    "costmodel_allreduce_fusion_times": "times",
    "costmodel_allreduce_fusion_tail_percent": "tail_percent",
    "costmodel_allreduce_fusion_tail_time": "tail_time",
    "costmodel_allreduce_fusion_allreduce_inherent_time": "inherent_time",
    "costmodel_allreduce_fusion_allreduce_bandwidth": "bandwidth",
    "costmodel_allreduce_fusion_computation_time_parameter": "computation_parameter",
}
_CAPACITY = "device_memory_capacity"
_PHASE = "run_phase"
_NAMES = (_CAPACITY, _PHASE, *_WEIGHTS, *_FUSION)
_SETTINGS: dict[str, Any] = {}
_BYTES = 16.0 * 2**30  # of a device by MindSpore's documentation; a program may take the cluster's


@as_mindspore()
def set_cost_model_context(**settings: Any) -> None:
    """Set constants of the cost model of networks that are compiled from now on.

    Networks that the compiler partitions are then searched with MindSpore's cost model, where a
    weight is set, and their all-reduces fused by its algorithms, where one of those is.

    Parameters
    ----------
    **settings
        ``device_memory_capacity`` (bytes that a program may take), ``costmodel_alpha``,
        ``costmodel_beta``, ``costmodel_gamma``,
        ``costmodel_communi_threshold``, ``costmodel_communi_const``, ``costmodel_communi_bias``,
        and those of the fusion, which begin with ``costmodel_allreduce_fusion_``. ``run_phase``, 0
        or 1, has no meaning here: a program without gradients is priced without them.

    Raises
    ------
    OptionError
        If a setting is unknown or out of range.
    """
    check_names("`set_cost_model_context` has no setting", settings, _NAMES)
    if type(settings.get(_PHASE, 0)) is not int or settings.get(_PHASE, 0) not in (0, 1):
        raise wrong_value(_PHASE, settings[_PHASE], "0 or 1")
    _options({**_SETTINGS, **settings})
    _SETTINGS.update(settings)


def get_cost_model_context(attr_key: str) -> Any:
    """Return a setting of `set_cost_model_context`, or its default."""
    check_choice("attr_key", attr_key, _NAMES)
    if attr_key in _SETTINGS:
        return _SETTINGS[attr_key]
    if attr_key in (_CAPACITY, _PHASE):
        return _BYTES if attr_key == _CAPACITY else 0
    if attr_key in _WEIGHTS:
        return getattr(MindSporeCosts(), _WEIGHTS[attr_key])
    return getattr(FusionSettings(), _FUSION[attr_key])


def reset_cost_model_context() -> None:
    """Forget the settings of `set_cost_model_context`, and that of `_set_algo_single_loop`."""
    _SETTINGS.clear()
    _SINGLE[0] = False


def cost_options(mode: str) -> dict[str, Any]:
    """Return the options of a compilation that the settings ask for, in a mode."""
    return {} if mode in UNPARTITIONED else _options(_SETTINGS)


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    weights = {_WEIGHTS[name]: value for name, value in settings.items() if name in _WEIGHTS}
    fusion = {_FUSION[name]: value for name, value in settings.items() if name in _FUSION}
    options: dict[str, Any] = {}
    if _CAPACITY in settings:
        options["memory_limit"] = settings[_CAPACITY]
    if weights:
        options |= {"cost_model": "mindspore", "cost_weights": MindSporeCosts(**weights)}
    if fusion:
        options["fusion"] = FusionSettings(**fusion)
    return options


def _set_multi_subgraphs(several: bool = True) -> None:
    """Check a setting of MindSpore's search, which has no meaning here: a program is one graph."""
    check_flag("several", several)


def _set_algo_single_loop(single: bool) -> None:
    """Keep a setting of the search: equal layers are searched once here, and count so with it."""
    check_flag("single", single)
    _SINGLE[0] = single


def _get_algo_single_loop() -> bool:
    """Return the setting of `_set_algo_single_loop`."""
    return _SINGLE[0]


_SINGLE = [False]
