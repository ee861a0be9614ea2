"""The functions that run operators in another system, and what they take, read from their source.

A function is called like the operator. It takes the operands in their order, and by name the
attributes that it declares; besides those, of the part that a rank computes:

- ``shape``, ``shapes``: the shapes of its first result, or of all;
- ``start_F``, ``size_F``, ``whole_F``: the beginning, the size, and the size over all ranks of the
  factor ``F`` of the rule;
- ``starts``, ``whole_shape``: where the part of the first operand begins, and its whole shape;
- ``whole``: over how many elements a mean is taken;
- ``keys``: the length of all keys of attention.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from shardwright.exports.emission.writing import Code

MODULES: Final = (
    "pointwise",
    "functions",
    "tensors",
    "scans",
    "layers",
    "attention",
    "losses",
    "recurrent",
    "matrices",
    "windows",
    "routing",
    "updates",
)
"""The modules with functions that run operators."""
RINGS: Final = "rings"
"""Another, which a system may have: of operators in which ranks send to each other, by the mesh."""
ROWS: Final = "rows"
"""Another: of operators on the rows of experts, where only the filled ones are there."""


@dataclass(frozen=True)
class Signature:
    """A function that runs an operator.

    Parameters
    ----------
    module : str
        The module of the exported package.
    keywords : frozenset of str
        Names that it takes.
    required : frozenset of str
        Those of them without a default.
    """

    module: str
    keywords: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Vocabulary:
    """What another system has to run a program with.

    Parameters
    ----------
    system : str
        Its name.
    target : str
        The name of its export.
    ranks : str
        What it calls the ranks.
    tensor : str
        Its type of tensors.
    support : Path
        The folder of the modules that are copied into a package.
    reductions : mapping of str to collection of str
        What each collective can reduce by.
    has_uneven_parts : bool
        Whether ranks can have parts of different sizes.
    has_stages : bool
        Whether groups of ranks can have programs of their own.
    has_rows : bool
        Whether it has a module ``rows``, in which only the filled rows of experts are computed.
    tf32 : Code
        The lines that let all products of float32 be in TF32, of the module `target`.
    repeat : str
        A function that keeps the system's compiler from taking a node for an earlier equal one:
        of an operand, and of a value that it comes after. Empty where nothing looks for equals.
    """

    system: str
    target: str
    ranks: str
    tensor: str
    support: Path
    reductions: Mapping[str, tuple[str, ...]]
    tf32: Code
    has_uneven_parts: bool = True
    has_stages: bool = False
    has_rows: bool = False
    repeat: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that a program calls."""
        rows = (ROWS,) if self.has_rows else ()
        return tuple(sorted((*MODULES, *_rings(self.support), *rows)))

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The functions by the names of their operators."""
        return _signatures(self.support)


@cache
def _signatures(support: Path) -> dict[str, Signature]:
    found: dict[str, Signature] = {}
    for module in (*MODULES, *_rings(support)):
        found |= _of_module(support, module, module)
    return {name: signature for name, signature in found.items() if not name.startswith("_")}


def _rings(support: Path) -> tuple[str, ...]:
    return (RINGS,) if (support / f"{RINGS}.py").exists() else ()


def _of_module(support: Path, file: str, module: str) -> dict[str, Signature]:
    """Return the functions of a file as those of a module, which may import all of another."""
    found: dict[str, Signature] = {}
    path = support.joinpath(*file.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = _signature(module, node.args)
        elif isinstance(node, ast.ImportFrom) and node.module and node.names[0].name == "*":
            found |= _of_module(support, node.module, module)
        elif isinstance(node, ast.Assign):
            value = node.value
            same = found.get(value.id) if isinstance(value, ast.Name) else None
            names = (name for target in node.targets for name in _names(target))
            found.update((name, same or Signature(module)) for name in names)
    return found


def _signature(module: str, arguments: ast.arguments) -> Signature:
    pairs = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    keywords = frozenset(argument.arg for argument, _ in pairs)
    required = frozenset(argument.arg for argument, default in pairs if default is None)
    return Signature(module, keywords, required)


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [target.id]
    return [name for part in getattr(target, "elts", ()) for name in _names(part)]
