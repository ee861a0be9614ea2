"""Settings of MindSpore's search for strategies, under its names."""

import warnings
from typing import Any

from shardwright.ir.errors import ShardwrightWarning
from shardwright.ir.values import Range, check_choice, check_flag, check_names
from shardwright.mindspore.errors import as_mindspore

_DEFAULTS: dict[str, Any] = {
    "fully_use_devices": True,
    "elementwise_op_strategy_follow": False,
    "enable_algo_approxi": False,
    "algo_approxi_epsilon": 0.1,
    "tensor_slice_align_enable": False,
    "tensor_slice_align_size": 16,
}
# What the search here does: it may leave devices idle, if that is faster.
_DONE = {**_DEFAULTS, "fully_use_devices": False}
_SIZE = Range(whole=True, least=1, below=1025)
_SHARE = Range(above=0, below=1)
_SETTINGS: dict[str, Any] = {}


@as_mindspore()
def set_algo_parameters(**settings: Any) -> None:
    """Set how MindSpore would search; what does nothing here gets a warning.

    Searches here are exact or their bounds are told: nothing is left out to be faster, and slices
    are never aligned. ``sharding_propagation`` with ``fully_use_devices=False`` splits operators no
    further than their neighbours.

    Parameters
    ----------
    **settings
        ``fully_use_devices``, ``elementwise_op_strategy_follow``, ``enable_algo_approxi``,
        ``algo_approxi_epsilon``, ``tensor_slice_align_enable``, ``tensor_slice_align_size``.

    Raises
    ------
    OptionError
        If a setting is unknown, or has a value that is not allowed.
    """
    check_names("`set_algo_parameters` has no setting", settings, tuple(_DEFAULTS))
    for name, value in settings.items():
        if name == "tensor_slice_align_size":
            _SIZE.check(name, value)
        elif name == "algo_approxi_epsilon":
            _SHARE.check(name, value)
        else:
            check_flag(name, value)
    other = [name for name, value in settings.items() if value != _DONE[name]]
    if other:
        warnings.warn(
            f"`set_algo_parameters` has no effect on: {', '.join(other)}",
            ShardwrightWarning,
            stacklevel=2,
        )
    _SETTINGS.update(settings)


def get_algo_parameters(attr_key: str) -> Any:
    """Return a setting of `set_algo_parameters`, or its default."""
    check_choice("attr_key", attr_key, tuple(_DEFAULTS))
    return _SETTINGS.get(attr_key, _DEFAULTS[attr_key])


def reset_algo_parameters() -> None:
    """Forget the settings of `set_algo_parameters`."""
    _SETTINGS.clear()
