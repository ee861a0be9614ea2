"""An auto-parallel graph compiler: from a model and a cluster to verified per-rank programs.

What users import is found when it is asked for, so that ``import shardwright`` is fast and a part
of the compiler can be imported without the rest.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = ("communication", "dataset", "nn", "ops", "parallel", "train", "zoo")
_NAMES = {
    "AutoParallel": "shardwright.parallel",
    "Definition": "shardwright.tracing",
    "InputSpec": "shardwright.tracing",
    "Layout": "shardwright.parallel",
    "Model": "shardwright.train",
    "Parameter": "shardwright.tensor",
    "Tensor": "shardwright.tensor",
    "TensorType": "shardwright.ir.types",
    "check_operator": "shardwright.operators.checks.operator",
    "compile": "shardwright.api",
    "dump": "shardwright.api",
    "initializer": "shardwright.initial",
    "jit": "shardwright.gradients",
    "prove": "shardwright.api",
    "run": "shardwright.api",
    "trace": "shardwright.tracing",
    "value_and_grad": "shardwright.gradients",
    "verify": "shardwright.api",
}
_ELEMENT_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")

__all__ = [*_ELEMENT_TYPES, *_MODULES, *_NAMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shardwright.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _ELEMENT_TYPES:
        return name
    raise AttributeError(f"module `shardwright` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
