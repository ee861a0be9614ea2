"""MindSpore's names: which operator of ours, or composition of them, each stands for.

``mindspore.json`` next to this module lists the operator infos of two of its releases, and what is
called otherwise here or is no single operator.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shardwright.operators.info import operator_names

# Of several operators of MindSpore that one of ours is, or is part of, the one for images.
_FIRST = {
    "average_pool": "AvgPool",
    "convolution": "Conv2D",
    "max_pool": "MaxPool",
    "strided_slice": "StridedSlice",
    "transposed_convolution": "Conv2DTranspose",
}


@dataclass(frozen=True)
class Cover:
    """The counterpart of one of MindSpore's operator infos.

    Parameters
    ----------
    kind : str
        ``operator``, ``composition``, ``compiler``, or ``none``.
    what : str
        The operator, the name in `ops` or `nn`, or how the compiler does it.
    """

    kind: str
    what: str = ""


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return json.loads((files(__package__) / "mindspore.json").read_text("utf-8"))


def releases() -> dict[str, tuple[str, ...]]:
    """Return the operator infos of each release that is compared."""
    return {release: tuple(names) for release, names in _data()["lists"].items()}


def operator_called(name: str) -> str | None:
    """Return the operator that MindSpore or we call `name`: ``ReLU``, ``relu``, ``ReduceSum``."""
    return _operators(operator_names()).get(name.lower().replace("_", ""))


def name_of(operator: str) -> str:
    """Return what MindSpore calls an operator: ``MatMul`` for ``matmul``; our name if nothing."""
    if operator in _FIRST:
        return _FIRST[operator]
    called = [name for name in releases()["2.7"] if operator_called(name) == operator]
    same = [name for name in called if name.lower() == operator.replace("_", "")]
    return next(iter((*same, *called)), operator)


@lru_cache(maxsize=1)
def _operators(names: tuple[str, ...]) -> dict[str, str]:
    """Return the operators by what they are called, in small letters."""
    own = {name.replace("_", ""): name for name in names}
    return own | {alias.lower(): name for alias, name in _data()["operators"].items()}


def cover(name: str) -> Cover:
    """Return the counterpart of an operator info of MindSpore."""
    data = _data()
    for kind, part in (("composition", "compositions"), ("compiler", "compiler")):
        if name in data[part]:
            return Cover(kind, data[part][name])
    operator = operator_called(name)
    return Cover("none") if operator is None else Cover("operator", operator)
