"""The memory that a rank may take."""

import re
from dataclasses import dataclass, field
from typing import Any

from shardwright.ir.errors import ModelError
from shardwright.ir.units import bytes_text
from shardwright.ir.values import check_choice, check_flag, check_names, wrong_value
from shardwright.mindspore.context import get_context

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?GB")
_PLACES = ("cpu",)
_FLAGS = ("auto_offload", "enable_aio", "enable_pinned_mem")
_SIZES = ("offload_cpu_size", "offload_disk_size", "host_mem_block_size", "hbm_ratio", "cpu_ratio")


@dataclass
class _Limits:
    """What the script says of memory, in bytes."""

    device: float | None = None
    offload: dict[str, Any] = field(default_factory=dict)


_LIMITS = _Limits()


def set_memory(
    init_size: str = "2GB",
    increase_size: str = "2GB",
    max_size: str = "1024GB",
    optimize_level: str = "O0",
    huge_page_reserve_size: str = "0GB",
) -> None:
    """Set the most memory that a program may take on a rank; one that takes more is refused.

    Parameters
    ----------
    init_size, increase_size : str
        Checked; memory is taken as it is needed.
    max_size : str
        The limit: ``28GB``.
    optimize_level : str
        ``O0`` or ``O1``: memory is always reused.
    huge_page_reserve_size : str
        Must be ``0GB``.
    """
    for name, size in (("init_size", init_size), ("increase_size", increase_size)):
        _bytes(name, size)
    check_choice("optimize_level", optimize_level, ("O0", "O1"))
    if _bytes("huge_page_reserve_size", huge_page_reserve_size):
        raise wrong_value("huge_page_reserve_size", huge_page_reserve_size, "`0GB`")
    _LIMITS.device = _bytes("max_size", max_size)


def set_offload_context(offload_config: dict[str, Any]) -> None:
    """Set what memory may be taken besides that of `set_memory`, with ``memory_offload="ON"``.

    Programs run on this machine's processors, where the memory of the device is that of the host:
    parameters stay where they are, and the limits are added up.

    Parameters
    ----------
    offload_config : dict
        ``offload_param`` (``cpu``), ``offload_cpu_size`` (``512GB``), ``auto_offload`` (a flag),
        and for disks, which are not used, ``offload_path``, ``offload_disk_size``,
        ``host_mem_block_size``, ``enable_aio`` and ``enable_pinned_mem``.
    """
    names = (*_FLAGS, *_SIZES, "offload_param", "offload_path", "offload_checkpoint")
    check_names("`offload_config` has no entry", offload_config, names)
    for name, value in offload_config.items():
        if name in _FLAGS:
            check_flag(name, value)
        elif name.endswith("_size"):
            _bytes(name, value)
        elif name in ("offload_param", "offload_checkpoint"):
            check_choice(name, value, _PLACES)
    _LIMITS.offload = dict(offload_config)


def get_offload_context() -> dict[str, Any]:
    """Return what `set_offload_context` set."""
    return dict(_LIMITS.offload)


def reset_memory() -> None:
    """Forget the limits."""
    _LIMITS.device, _LIMITS.offload = None, {}


def check_memory(nbytes: float) -> None:
    """Refuse a program that takes more memory on a rank than the script says.

    Raises
    ------
    ModelError
        If it does.
    """
    limit = _LIMITS.device
    if limit is None:
        return
    if get_context("memory_offload") == "ON":
        limit += _bytes("offload_cpu_size", _LIMITS.offload.get("offload_cpu_size", "512GB"))
    if nbytes > limit:
        raise ModelError(
            f"the program takes {bytes_text(nbytes)} on a rank, the script allows "
            f"{bytes_text(limit)}",
            hint="raise `max_size` of `set_memory`, or use more ranks",
        )


def _bytes(name: str, size: object) -> float:
    """Return a size in bytes: MindSpore's GB has 2^30."""
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise wrong_value(name, size, "a number of gigabytes, such as `28GB`")
    return float(found[1]) * 2**30


__all__ = [
    "check_memory",
    "get_offload_context",
    "reset_memory",
    "set_memory",
    "set_offload_context",
]
