"""What every module keeps to: imports go down and stand at the top, nothing grows too long."""

import ast
import doctest
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
# The layers that a layer may import, besides its own; the command line may import all.
BELOW = {
    "ir": set(),
    "operators": {"ir"},
    "dataflow": {"ir", "operators"},
    "cost_model": {"ir", "operators", "dataflow"},
    "solver": {"ir"},  # for its errors
    "search": {"ir", "operators", "dataflow", "cost_model", "solver"},
    "passes": {"ir", "operators", "dataflow", "cost_model"},
    "planner": {"ir", "operators", "dataflow", "cost_model", "solver", "search", "passes"},
    "compiler": {
        *("ir", "operators", "dataflow", "cost_model", "solver", "search", "passes", "proof"),
        "planner",
    },
    "runtime": {"ir", "operators", "dataflow"},  # the schedules of pipelines
    "frontends": {"ir", "operators", "dataflow"},  # the stages of pipelines
}
# Packages of extras that are not part of the tests.
OPTIONAL = {"jax", "mpi4py", "numba", "onnx", "torch"}
LONGEST_MODULE = 500
LONGEST_FUNCTION = 50  # lines without docstring and decorators
LONGEST_MEDIAN = 7  # of the same, over the functions of the product
MOST_MODULES = 20  # in a folder
# Folders that are still too large; shrinks, and never grows.
PENDING: set[str] = set()
# Import by name: optional packages, the command line's dispatcher, the lazy public namespace.
IMPORT_BY_NAME = {
    *("ir/optional.py", "tools/main.py", "shardwright/__init__.py"),
    "exports/table.py",
}
FOLDERS = (*BELOW, "exports", "tools", "shardwright", "tests", "examples")

# Prints a line of modules for each layer. What all later layers may import is imported once; the
# other layers are imported by processes that are forked.
IMPORT_ALL = """
import importlib, os, pkgutil, sys
import networkx, numpy, ortools.sat.python.cp_model, pydantic, yaml
for item in sys.argv[1].split(","):
    layer, stays = item.split("=")
    if stays == "False" and os.fork():
        os.wait()
        continue
    package = importlib.import_module(f"shardwright.{layer}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in sys.argv[2:]:
                raise
    modules = sorted(name for name in sys.modules if name.startswith("shardwright."))
    print(layer, *modules, flush=True)
    if stays == "False":
        break
"""


def sources():
    """Return every Python file of the repository with its syntax tree."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT)
            # Before Python 3.13, `rglob` follows links.
            if name.parts[0] != "shardwright" or name.parts[1] not in (*BELOW, "exports", "tools"):
                yield str(name), path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Function:
    """What the tests ask of a function."""

    name: str
    line: int
    length: int


@cache  # several tests ask for all of them, and a syntax tree is large
def functions(source):
    """Return every function of a module, methods and nested ones included."""
    return [Function(node.name, node.lineno, length(node)) for node in function_nodes(source)]


def function_nodes(source):
    """Return the syntax trees of every function; expressions, which are most nodes, have none."""
    found, waiting = [], [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        for part in ("body", "handlers", "cases", "orelse", "finalbody"):
            waiting += getattr(node, part, ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
    return found


def inside_of_functions(source, words):
    """Return the nodes inside of functions; none where the text has none of some words."""
    if not re.search(words, source, re.MULTILINE):
        return []
    return [inner for node in function_nodes(source) for inner in ast.walk(node)]


def product():
    """Return the Python files of the product: without tests and examples."""
    return [each for each in sources() if not each[0].startswith(("tests/", "examples/"))]


def length(function):
    """Return the lines of a function without its docstring and decorators."""
    first = function.body[0]
    is_text = ast.get_docstring(function, clean=False) is not None
    docstring = first.end_lineno - first.lineno + 1 if is_text else 0
    return function.end_lineno - function.lineno + 1 - docstring


@pytest.mark.long
def test_importing_a_layer_imports_only_layers_below():
    above = {layer: sum(layer in below for below in BELOW.values()) for layer in BELOW}
    order = sorted(BELOW, key=lambda layer: (len(BELOW[layer]), above[layer]))
    # Only what every later layer may import stays, or it would hide who imports it.
    stays = [all(one in BELOW[later] for later in order[i + 1 :]) for i, one in enumerate(order)]
    layers = ",".join(f"{layer}={own}" for layer, own in zip(order, stays, strict=True))
    command = [sys.executable, "-c", IMPORT_ALL, layers, *OPTIONAL]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = dict(line.split(maxsplit=1) for line in run.stdout.splitlines())
    assert imported.keys() == BELOW.keys(), run.stderr
    above = {
        layer: {name.split(".")[1] for name in names.split()} - {layer} - BELOW[layer]
        for layer, names in imported.items()
    }
    assert not any(above.values()), above


def test_imports_stand_at_the_top_of_a_module():
    inside = {
        f"{name}:{node.lineno}"
        for name, source in sources()
        for node in inside_of_functions(source, r"^(?!import |from ).*\bimport\b")
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert inside == set()


def test_no_imports_for_type_checkers_only():
    assert {name for name, source in product() if "TYPE_CHECKING" in source} - PENDING == set()


def test_imports_by_name_have_their_places():
    ways = {"importlib", "import_module", "__import__"}
    by_name = {
        name
        for name, source in product()
        for node in inside_of_functions(source, "|".join(ways))
        if isinstance(node, ast.Name) and node.id in ways
    }
    assert by_name - PENDING == IMPORT_BY_NAME


def test_no_module_is_too_long():
    lines = {name: len(source.splitlines()) for name, source in sources()}
    assert {name for name, n in lines.items() if n > LONGEST_MODULE} - PENDING == set()


def test_no_folder_has_too_many_modules():
    modules = Counter(str(Path(name).parent) for name, _ in sources() if "__init__" not in name)
    assert {folder for folder, n in modules.items() if n > MOST_MODULES} - PENDING == set()


def test_functions_are_short():
    lines = {
        f"{name}:{function.line} {function.name}": function.length
        for name, source in sources()
        for function in functions(source)
    }
    assert {name: n for name, n in lines.items() if n > LONGEST_FUNCTION} == {}
    of_the_product = [f.length for _, source in product() for f in functions(source)]
    assert median(of_the_product) <= LONGEST_MEDIAN


def test_importing_the_operators_registers_all_of_them():
    script = (
        "import pkgutil\n"
        "from importlib import import_module\n"
        "import shardwright.operators as operators\n"
        "from shardwright.operators.info import operator_names\n"
        "before = operator_names()\n"
        "for module in pkgutil.walk_packages(operators.__path__, operators.__name__ + '.'):\n"
        "    if not module.name.endswith('depthwise_loops'):\n"
        "        import_module(module.name)\n"
        "print(*set(operator_names()) - set(before))\n"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(ROOT / "shardwright")], "shardwright.")
    if not module.name.endswith(".__main__")
]


def test_every_module_is_imported():
    """Or a package of others is missing, which is optional."""
    missing = set()
    for name in MODULES:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
    assert missing <= OPTIONAL


def has_examples(name):
    path = ROOT.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ">>>" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(filter(has_examples, MODULES)))
def test_examples_in_docstrings(name, request):
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"`{error.name}` is not installed")
    request.getfixturevalue("own_operators")  # after the import, which registers the module's own
    tried = doctest.testmod(module)
    assert (tried.failed, tried.attempted > 0) == (0, True)
