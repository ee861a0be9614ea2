"""The parallel settings as an object, as MindSpore's tests read them."""

from typing import Any

from shardwright.mindspore.context import (
    get_auto_parallel_context,
    has_parallel_setting,
    set_auto_parallel_context,
)
from shardwright.parallel import FUSION_MEGABYTES

_THRESHOLDS = {
    "fusion_threshold_mb": "allreduce",
    "allgather_fusion_threshold_mb": "allgather",
    "reducescatter_fusion_threshold_mb": "reducescatter",
}


class _Settings:
    """Reads and makes settings of `set_auto_parallel_context`: ``get_NAME``, ``set_NAME``."""

    def __getattr__(self, name: str) -> Any:
        verb, _, setting = name.partition("_")
        if verb == "get" and setting.endswith("_is_set"):
            return lambda: has_parallel_setting(setting.removesuffix("_is_set"))
        if setting == "all_reduce_fusion_split_indices":
            entry = get_auto_parallel_context("comm_fusion").get("allreduce", {})
            return lambda: entry["config"] if entry.get("mode") == "index" else []
        if name in _THRESHOLDS:
            entry = get_auto_parallel_context("comm_fusion").get(_THRESHOLDS[name], {})
            return lambda: entry["config"] if entry.get("mode") == "size" else FUSION_MEGABYTES
        if verb == "get":
            return lambda: get_auto_parallel_context(setting)
        if verb == "set":

            def change(*value: Any, **named: Any) -> None:
                set_auto_parallel_context(**dict(zip((setting,), value, strict=False)), **named)

            return change
        raise AttributeError(f"the parallel context has no `{name}`")


_OWN = _Settings()


def auto_parallel_context() -> _Settings:
    """Return the parallel settings of this process."""
    return _OWN
