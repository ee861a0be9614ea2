"""Versions of other packages that the tests passed with: a table that ``try_versions`` writes.

A version outside of the tested range is used with a warning, since nothing is known of it.
"""

import json
import re
import warnings
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from shardwright.ir.errors import ShardwrightWarning

TABLE = Path(__file__).parent / "tested_versions.json"
# Packages whose versions are tested, and named by ``shardwright --version``.
PACKAGES = ("torch", "transformers", "jax", "flax", "numpy", "onnx", "mpi4py", "grpcio")


class Environment(NamedTuple):
    """The result of the tests in one environment.

    Parameters
    ----------
    name : str
        How its versions were chosen: ``lowest``, ``constrained`` or ``newest``.
    python : str
        Version of Python.
    versions : dict of str to str
        Versions of the packages that are installed there.
    passed, failed, skipped : int
        Numbers of tests.
    """

    name: str
    python: str
    versions: dict[str, str]
    passed: int
    failed: int
    skipped: int


class Range(NamedTuple):
    """The least and the greatest version that all tests passed with."""

    lowest: str
    newest: str

    def __contains__(self, one: object) -> bool:
        return release(self.lowest) <= release(str(one)) <= release(self.newest)

    def __str__(self) -> str:
        return f"{self.lowest} to {self.newest}"


def release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows them.

    Examples
    --------
    >>> release("2.13.0+cpu")
    (2, 13, 0)
    """
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def environments() -> tuple[Environment, ...]:
    """Return the environments that the tests ran in."""
    return tuple(Environment(**row) for row in json.loads(TABLE.read_text()))


@cache
def tested() -> dict[str, Range]:
    """Return the tested range of each package, by environments in which no test failed."""
    passed = [environment for environment in environments() if not environment.failed]
    found = {}
    for package in PACKAGES:
        versions = [one.versions[package] for one in passed if package in one.versions]
        if versions:
            found[package] = Range(min(versions, key=release), max(versions, key=release))
    return found


@cache
def installed(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def warn_if_untested(package: str) -> None:
    """Warn, once in a process, of an installed version that is outside of the tested range."""
    found, known = installed(package), tested().get(package)
    if found is not None and known is not None and found not in known:
        warnings.warn(
            f"{package} {found} was not tested with this release, which was tested with {known}",
            ShardwrightWarning,
            stacklevel=3,
        )
