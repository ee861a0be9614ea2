"""Counts of the source, which a change should not let grow.

``python -m tests.architecture.counts`` prints them; ``chain`` or ``pairs`` behind it prints the
longest chain of imports, or the folders that import each other.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("compiler", "cost_model", "dataflow", "exports", "frontends", "ir", "operators", "passes"),
    *("planner", "proof", "runtime", "search", "shardwright", "solver", "tools"),
)
LONG = 450  # lines, of the 500 that a module may have
SHARED = 6  # lines that stand in two places


class Counts(NamedTuple):
    """Counts of the product, its tests aside.

    Parameters
    ----------
    lines : int
        Lines of all modules.
    nodes : int
        Nodes of their syntax trees.
    modules : int
        Modules.
    constants : int
        Numbers that a module names.
    long_modules : int
        Modules of `LONG` lines and more.
    chain : int
        Modules of the longest chain of imports.
    pairs : int
        Pairs of folders that import each other.
    shared : int
        Places of `SHARED` lines in a row, imports aside, that stand elsewhere, too.
    """

    lines: int
    nodes: int
    modules: int
    constants: int
    long_modules: int
    chain: int
    pairs: int
    shared: int


@cache
def sources() -> dict[str, str]:
    """Return the text of every module of the product, by its name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            inner = path.relative_to(ROOT)
            if not any(parent.is_symlink() for parent in (path, *path.parents)):
                name = ".".join(inner.with_suffix("").parts).removesuffix(".__init__")
                found[name if package == "shardwright" else f"shardwright.{name}"] = (
                    path.read_text()
                )
    return found


class Parsed(NamedTuple):
    """What is asked of a module's syntax tree, which is made once and not kept."""

    nodes: int
    constants: int
    imports: frozenset[str]


@cache
def parsed() -> Mapping[str, Parsed]:
    """Return what the syntax tree of every module says."""
    return {name: _parsed(name, ast.parse(text)) for name, text in sources().items()}


def _parsed(name: str, tree: ast.Module) -> Parsed:
    reached, known = set[str](), sources()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                reached.update(one for one in (node.module, *inner) if one in known)
    nodes, constants = sum(1 for _ in ast.walk(tree)), sum(1 for _ in _constants(tree))
    return Parsed(nodes, constants, frozenset(reached - {name}))


def imports() -> Mapping[str, frozenset[str]]:
    """Return which modules each module imports when it is imported itself."""
    return {name: module.imports for name, module in parsed().items()}


def longest_chain() -> tuple[str, ...]:
    """Return the longest chain of modules, each of which imports the next.

    A package and those of its modules that import from it are one link, with the first one's name.
    """
    graph = networkx.DiGraph(
        (name, other) for name, others in imports().items() for other in others
    )
    links = networkx.condensation(graph)
    longest = networkx.dag_longest_path(links)
    return tuple(min(links.nodes[link]["members"]) for link in longest)


def mutual_folders() -> list[tuple[str, str]]:
    """Return the pairs of folders of which each has a module that imports one of the other."""
    edges = {
        (name.rpartition(".")[0], other.rpartition(".")[0])
        for name, others in imports().items()
        for other in others
    }
    return sorted((a, b) for a, b in edges if a < b and (b, a) in edges)


def _constants(tree: ast.Module) -> Iterator[ast.Constant]:
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.UnaryOp):
            value = value.operand
        if isinstance(value, ast.Constant) and type(value.value) in (int, float):
            yield value


def _shared_places() -> int:
    """Count the places of lines in a row that stand in another place, too."""
    places: dict[tuple[str, ...], int] = {}
    for text in sources().values():
        lines = [line.strip() for line in text.splitlines()]
        said = [line for line in lines if len(line) > 2 and not line.startswith(("#", "from "))]
        for first in range(len(said) - SHARED + 1):
            window = tuple(said[first : first + SHARED])
            places[window] = places.get(window, 0) + 1
    return sum(1 for times in places.values() if times > 1)


def counts() -> Counts:
    """Count the product as it is."""
    modules = parsed().values()
    lines = [text.count("\n") for text in sources().values()]
    return Counts(
        sum(lines),
        sum(module.nodes for module in modules),
        len(lines),
        sum(module.constants for module in modules),
        sum(1 for count in lines if count >= LONG),
        len(longest_chain()),
        len(mutual_folders()),
        _shared_places(),
    )


def main() -> None:
    """Print what the command line asks for."""
    if sys.argv[1:] == ["chain"]:
        print("\n".join(longest_chain()))
    elif sys.argv[1:] == ["pairs"]:
        print("\n".join(f"{a}  {b}" for a, b in mutual_folders()))
    else:
        for name, value in counts()._asdict().items():
            print(f"{name:13}{value:>10,}")


if __name__ == "__main__":
    main()
