"""The models that torchtitan names, as sizes of the zoo, and how it cuts them into stages."""

from math import ceil
from typing import Any

_QWEN = {"vocabulary": 151_936, "base": 1e6, "epsilon": 1e-6, "qk_norm": True, "head": 128}
_LLAMA2 = {"vocabulary": 32_000, "base": 10_000.0}
FLAVORS: dict[tuple[str, str], dict[str, Any]] = {
    ("llama3", "8B"): {"layers": 32},
    ("llama3", "70B"): {"layers": 80, "hidden": 8192, "heads": 64, "inner": 28672},
    ("llama3", "405B"): {"layers": 126, "hidden": 16384, "heads": 128, "inner": 53248},
    ("llama3", "debugmodel"): {
        **{"layers": 6, "hidden": 256, "heads": 16, "kv_heads": 16, "inner": 768},
        "vocabulary": 2048,
    },
    ("llama2", "7B"): {**_LLAMA2, "layers": 32, "kv_heads": 32, "inner": 11008},
    ("llama2", "13B"): {
        **_LLAMA2,
        **{"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "inner": 13824},
    },
    ("llama2", "70B"): {**_LLAMA2, "layers": 80, "hidden": 8192, "heads": 64, "inner": 28672},
    ("qwen3", "0.6B"): {
        **_QWEN,
        **{"layers": 28, "hidden": 1024, "heads": 16, "inner": 3072, "tied": True},
    },
    ("qwen3", "1.7B"): {
        **_QWEN,
        **{"layers": 28, "hidden": 2048, "heads": 16, "inner": 6144, "tied": True},
    },
    ("qwen3", "4B"): {**_QWEN, "layers": 36, "hidden": 2560, "inner": 9728, "tied": True},
    ("qwen3", "8B"): {**_QWEN, "layers": 36, "inner": 12288},
    ("qwen3", "14B"): {**_QWEN, "layers": 40, "hidden": 5120, "heads": 40, "inner": 17408},
    ("qwen3", "32B"): {**_QWEN, "layers": 64, "hidden": 5120, "heads": 64, "inner": 25600},
}


def stage_sizes(
    layers: int, groups: int, per_group: int, *, each: int | None, ends: tuple[int, int] | None
) -> tuple[int, ...]:
    """Return the numbers of blocks of the stages that torchtitan makes unless they are listed.

    The embedding and the head count as blocks of the first and of the last stage, and the first
    stages have one more. Until version 0.1 they did not, and those behind the first had one more.

    Parameters
    ----------
    layers : int
        Blocks of the model.
    groups, per_group : int
        Device groups, and stages of each.
    each : int or None
        Blocks of a stage, where given, which decide how many stages there are.
    ends : (int, int) or None
        The blocks that the embedding and the head count as; None until version 0.1.

    Examples
    --------
    >>> stage_sizes(32, 4, 1, each=None, ends=(1, 1)), stage_sizes(32, 4, 1, each=None, ends=(0, 0))
    ((8, 9, 8, 7), (8, 8, 8, 8))
    """
    if ends is None:
        least, more = divmod(layers, groups * per_group)
        return tuple(least + (0 < stage <= more) for stage in range(groups * per_group))
    whole = layers + sum(ends)
    stages = groups * per_group if each is None else ceil(whole / each)
    least, more = divmod(whole, stages)
    sizes = [least + (stage < more) for stage in range(stages)]
    sizes[0] -= ends[0]
    sizes[-1] -= ends[1]
    return tuple(sizes)
