"""The table of exports: a name, what it writes, and the module that makes it.

A module of the table has a function ``export(plan: Plan) -> Exported``. It is imported only where
it is asked for, and needs no other package than shardwright does; ``onnx`` needs that of its name.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import checked_files
from shardwright.ir.files.writing import check_new_folder, write_folder
from shardwright.ir.types import TF32
from shardwright.ir.values import check_choice
from shardwright.operators.models.precision import recipe_of

EXPORTS: Final[Mapping[str, tuple[str, str]]] = {
    "placements": (
        "shardwright.exports.torch.placements",
        "DTensor placements of parameters, states and inputs, as JSON",
    ),
    "torch": (
        "shardwright.exports.torch",
        "a package that runs the plan in PyTorch, on the parameters of the module",
    ),
    "parallelize": (
        "shardwright.exports.parallelize",
        "a function that calls `parallelize_module` and `fully_shard` of PyTorch for the module, "
        "the nearest plan that has this form",
    ),
    "pipelining": (
        "shardwright.exports.pipelining",
        "stages and schedule of PyTorch's `torch.distributed.pipelining` for the module",
    ),
    "jax": (
        "shardwright.exports.jax",
        "a package that runs the plan in JAX, and the layouts as text of Shardy",
    ),
    "megatron": (
        "shardwright.exports.degrees.megatron",
        "flags of Megatron-LM and fields of NeMo, the nearest plan that they can say",
    ),
    "torchtitan": (
        "shardwright.exports.degrees.torchtitan",
        "TOML of torchtitan, the nearest plan that it can say",
    ),
    "deepspeed": (
        "shardwright.exports.degrees.deepspeed",
        "JSON of DeepSpeed, the nearest plan that it can say",
    ),
    "hf": (
        "shardwright.exports.degrees.transformers",
        "transformers' `DistributedConfig` with its `tp_plan`, the nearest plan that it can say",
    ),
    "mindspore": (
        "shardwright.exports.mindspore",
        "MindSpore's strategy files, as protobuf and as JSON",
    ),
    "onnx": (
        "shardwright.exports.onnx",
        "the ONNX file of the model, with sharding specs of IR 11",
    ),
}
_OF_LAYOUTS = ("placements", "mindspore", "onnx")
_WHAT = "the export"


def export(plan: Plan, to: str) -> Exported:
    """Return a plan in the form of another system.

    Parameters
    ----------
    plan : Plan
        A compiled training step.
    to : str
        A name of `EXPORTS`.

    Raises
    ------
    ShardwrightError
        If there is no such export, or the plan has no such form.
    """
    check_choice("--to", to, EXPORTS)
    made: Exported = import_module(EXPORTS[to][0]).export(plan)
    precision = plan.document.precision
    of_products = recipe_of(precision) is not None or precision == TF32
    if to in _OF_LAYOUTS and of_products:
        note = f"the files say how tensors are divided, not that products are by `{precision}`"
        made = replace(made, notes=(*made.notes, note))
    return made


def write_export(directory: Path, exported: Exported) -> None:
    """Write an export as a folder, which appears when it is complete.

    Raises
    ------
    OutputError
        If the folder has files, or cannot be written to.
    """
    write_folder(directory, checked_files(exported.files), _WHAT)


def check_new(directory: Path) -> None:
    """Check that an export can be written to a folder: it is new, or empty.

    Raises
    ------
    OutputError
        If not.
    """
    check_new_folder(directory, _WHAT)
