"""The code that decides about plans, as one digest: what another process or day must have, too."""

import platform
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from shardwright.cost_model.profiles import PROFILES
from shardwright.ir.optional import is_installed
from shardwright.ir.registry import Registry
from shardwright.operators.info import operator_class, operator_names
from shardwright.passes.base import PASSES
from shardwright.search.driver import SEARCHES
from shardwright.solver.methods import METHODS

_DECIDING = (
    *("ir", "operators", "dataflow", "cost_model", "solver"),
    *("search", "passes", "planner", "compiler"),
)
_PACKAGES = ("numpy", "ortools")
_ROOT = Path(__file__).resolve().parent.parent


def code_digest() -> str:
    """Return the digest of the sources, of what plugins registered, and of packages that decide."""
    digest = sha256(_own_digest().encode())
    for name, item in _registered():
        if not item.__module__.startswith("shardwright."):
            digest.update(f"{name} {item.__qualname__}\n".encode())
            digest.update(_source(item.__module__))
    return digest.hexdigest()


@cache
def _own_digest() -> str:
    digest = sha256(platform.python_version().encode())
    for package in _PACKAGES:
        digest.update(f"{package} {version(package)}\n".encode())
    digest.update(f"numba {is_installed('numba')}\n".encode())  # without it no messages are passed
    for folder in _DECIDING:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _source(module: str) -> bytes:
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    return path.read_bytes() if path.is_file() else b""


def _registered() -> Iterator[tuple[str, Any]]:
    for name in operator_names():
        yield f"operator {name}", operator_class(name)
    registries: tuple[Registry[Any], ...] = (PASSES, SEARCHES, PROFILES, METHODS)
    for registry in registries:
        for name in sorted(registry):
            yield f"{registry.kind} {name}", registry[name]
