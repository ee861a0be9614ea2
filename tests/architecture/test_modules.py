"""What every module keeps to: imports go down and stand at the top, nothing grows too long."""

import ast
import doctest
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the modules of a layer may import, beside each other; the command line may import all.
BELOW = {
    "ir": set(),
    "operators": {"ir"},
    "dataflow": {"ir", "operators"},
    "cost_model": {"ir", "operators", "dataflow"},
    "solver": {"ir"},  # for its errors
    "search": {"ir", "operators", "dataflow", "cost_model", "solver"},
    "passes": {"ir", "operators", "dataflow", "cost_model"},
    "compiler": {
        *("ir", "operators", "dataflow", "cost_model", "solver", "search", "passes", "proof")
    },
    "runtime": {"ir", "operators"},
    "frontends": {"ir", "operators"},
}
# Packages of extras that are not part of the tests.
OPTIONAL = {"mpi4py", "numba", "onnx"}
LONGEST_MODULE = 600
LONGEST_FUNCTION = 80
FOLDERS = (*BELOW, "tools", "shardwright", "tests", "examples")

IMPORT_ALL = """
import importlib, pkgutil, sys
layer = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(layer.__path__, layer.__name__ + "."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in sys.argv[2:]:
            raise
print(*sorted(name for name in sys.modules if name.startswith("shardwright.")))
"""


def sources():
    """Return every Python file of the repository with its syntax tree."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            # Before Python 3.13, `rglob` follows links.
            if name.parts[0] != "shardwright" or name.parts[1] not in (*BELOW, "tools"):
                yield str(name), path.read_text(encoding="utf-8")


def functions(source):
    """Return every function of a module, methods and nested ones included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


@pytest.mark.parametrize("layer", BELOW)
def test_importing_a_layer_imports_only_layers_below(layer):
    command = [sys.executable, "-c", IMPORT_ALL, f"shardwright.{layer}", *OPTIONAL]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {name.split(".")[1] for name in run.stdout.split()}
    assert imported - {layer} <= BELOW[layer]


def test_imports_stand_at_the_top_of_a_module():
    inside = {
        f"{name}:{node.lineno}"
        for name, source in sources()
        for function in functions(source)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert inside == set()


def test_no_module_is_too_long():
    lines = {name: len(source.splitlines()) for name, source in sources()}
    assert {name: n for name, n in lines.items() if n > LONGEST_MODULE} == {}


def test_no_function_is_too_long():
    lines = {
        f"{name}:{function.lineno} {function.name}": function.end_lineno - function.lineno + 1
        for name, source in sources()
        for function in functions(source)
    }
    assert {name: n for name, n in lines.items() if n > LONGEST_FUNCTION} == {}


MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(ROOT / "shardwright")], "shardwright.")
    if not module.name.endswith(".__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"`{error.name}` is not installed")
    assert doctest.testmod(module).failed == 0
