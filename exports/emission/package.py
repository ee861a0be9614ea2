"""The files of a package that runs a plan: its program, and what that needs."""

import io
from collections.abc import Mapping

import numpy as np

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.program_writer import ProgramWriter
from shardwright.exports.emission.writing import Code, code, fixed, identifier, own_module, prose
from shardwright.ir.types import TF32
from shardwright.operators.info import Array

_INIT = '''"""A training step on {devices} {ranks}: {model}.

{modules} the step, an operator a line; `{trainer}.py` holds the parameters and runs it.
"""
{imports}
from . import program, {trainer}
{switch}
__all__ = ["Trainer", "program"]


class Trainer({trainer}.Trainer):
    """A training step of the plan, with its parameters."""

    program = program
'''


def package_files(plan: Plan, program: ProgramWriter) -> dict[str, Code | bytes]:
    """Return the files of a package.

    Parameters
    ----------
    plan : Plan
        A compiled training step.
    program : ProgramWriter
        Its program; the modules with the functions of its vocabulary are copied.
    """
    modules, vocabulary = program.modules(), program.vocabulary
    in_tf32 = has_tf32(plan)
    own = sorted(set(modules) - {"program.py"}) or ["program.py"]
    files: dict[str, Code | bytes] = {
        "__init__.py": code(
            _INIT,
            devices=plan.mesh.size,
            imports=code("\nimport {}\n", identifier(vocabulary.target)) if in_tf32 else fixed(""),
            switch=code("\n{}", vocabulary.tf32) if in_tf32 else fixed(""),
            ranks=prose(vocabulary.ranks),
            model=prose(plan.document.model),
            trainer=identifier(program.trainer),
            modules=prose(f"`{own[0]}` is" if len(own) == 1 else f"`{own[0]}` to `{own[-1]}` are"),
        ),
        **modules,
    }
    support = vocabulary.support
    left_out = {"__init__.py", *({"stages.py"} - {f"{program.trainer}.py"})}
    sources = {path.relative_to(support).as_posix(): path for path in support.rglob("*.py")}
    files |= {name: own_module(sources[name]) for name in sorted({*sources} - left_out)}
    constants = {
        parameter.name: plan.initial[parameter.name]
        for parameter in plan.program.parameters
        if parameter.role == "buffer" and parameter.name in plan.initial
    }
    if constants:
        files["constants.npz"] = _archive(constants)
    return files


def has_tf32(plan: Plan) -> bool:
    """Return whether a program has products in TF32."""
    return any(node.attributes.get("products") == TF32 for node in plan.program.nodes)


def tf32_notes(plan: Plan, system: str) -> list[str]:
    """Return what the switch of a package is for."""
    if not has_tf32(plan):
        return []
    return [
        f"importing the package switches {system} to TF32, for all products of float32 in the "
        "process"
    ]


def _archive(constants: Mapping[str, Array]) -> bytes:
    """Return arrays as a file, the same for the same arrays."""
    buffer = io.BytesIO()
    names = {f"parameter:{name}": array for name, array in constants.items()}
    np.savez(buffer, **names)  # type: ignore[arg-type]
    return buffer.getvalue()
