"""An auto-parallel graph compiler: from a model and a cluster to verified per-rank programs.

Compile a model, read its plan, prove it, and train on it::

    import shardwright as sw

    compilation = sw.compile("mlp", devices=8, cluster="cpu")
    print(compilation)           # <Compilation mlp on 8 devices: 428 us, proven optimal, ...>
    print(sw.dump(compilation))  # the program of every rank, as text
    print(sw.verify(compilation))  # a proof, and the numbers against one device
    for record in sw.run(compilation, steps=10):
        print(record.step, record.loss)
    compilation.write("plans/mlp")  # a directory that the command line reads too

Write a model as in MindSpore, with `nn`, `ops`, `Model` and `AutoParallel`; `trace` turns it into a
`Definition`, which `compile` takes. All options of a compilation are fields of `CompileOptions`.

Names are imported at their first use, so ``import shardwright`` is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = ("amp", "communication", "dataset", "nn", "ops", "parallel", "train", "zoo")
_NAMES = {
    "AutoParallel": "shardwright.parallel",
    "Cluster": "shardwright.cost_model.cluster",
    "Compilation": "shardwright.compilation",
    "CompileOptions": "shardwright.planner.options",
    "Definition": "shardwright.tracing",
    "Graph": "shardwright.ir.graph",
    "InputSpec": "shardwright.tracing",
    "Layout": "shardwright.parallel",
    "Mesh": "shardwright.ir.mesh",
    "Model": "shardwright.train",
    "Parameter": "shardwright.parameter",
    "Plan": "shardwright.compiler.plans.plan",
    "ShardwrightError": "shardwright.ir.errors",
    "Tensor": "shardwright.tensor",
    "TensorType": "shardwright.ir.types",
    "check_operator": "shardwright.operators.checks.operator",
    "compile": "shardwright.api",
    "dump": "shardwright.api",
    "initializer": "shardwright.parameter",
    "jit": "shardwright.gradients",
    "load_plugin": "shardwright.plugins",
    "prove": "shardwright.api",
    "read_plan": "shardwright.api",
    "run": "shardwright.api",
    "trace": "shardwright.tracing",
    "value_and_grad": "shardwright.gradients",
    "verify": "shardwright.api",
}
_ELEMENT_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")

__all__ = [*_ELEMENT_TYPES, *_MODULES, *_NAMES]


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
