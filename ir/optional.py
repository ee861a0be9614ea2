"""Optional packages and slow modules: imported on first use, by this module alone.

Each optional package comes with an extra of the distribution: `numba` with ``shardwright[fast]``.
Everything else is imported at the top of a module.
"""

from collections.abc import Callable, Set
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from shardwright.ir.errors import PackageError
from shardwright.ir.versions import warn_if_untested

Loop = TypeVar("Loop", bound=Callable[..., None])

_OURS = "shardwright"
# The package of an extra whose versions are tested, where it has another name.
_TESTED = {"mpi": "mpi4py", "server": "grpcio"}


def optional(module: str, *, extra: str, need: str) -> Any:
    """Import a module of an optional package, or a module of ours that imports one.

    Parameters
    ----------
    module : str
        The module: ``mpi4py.MPI``.
    extra : str
        The extra of the distribution that installs the package: ``mpi``.
    need : str
        The feature that needs the package, as the subject of a sentence: ``training over MPI``.

    Warns
    -----
    ShardwrightWarning
        If the version that is installed is outside of the tested range.

    Raises
    ------
    PackageError
        If the package is not installed or cannot be loaded.

    Examples
    --------
    >>> optional("json", extra="fast", need="a test").loads("1")
    1
    >>> optional("nowhere.inside", extra="fast", need="the example")
    Traceback (most recent call last):
    ...
    shardwright.ir.errors.PackageError: the example needs `nowhere`, which is not installed; \
run `pip install 'shardwright[fast]'`
    """
    hint = f"run `pip install 'shardwright[{extra}]'`"
    warn_if_untested(_TESTED.get(extra, extra))
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        if package == _OURS:
            raise
        what = f"{need} needs `{package}`, which is not installed"
        raise PackageError(what, hint=hint) from None
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        package = module.partition(".")[0]
        what = f"{need} needs `{package}`, which cannot be loaded: {error}"
        raise PackageError(what, hint=hint) from error


def is_installed(package: str) -> bool:
    """Return whether an optional package is installed."""
    return find_spec(package) is not None


def file_of_package(package: str, path: str) -> Path | None:
    """Return a file that comes with an optional package, which is not imported for it.

    Parameters
    ----------
    package : str
        The package.
    path : str
        The path in it.

    Returns
    -------
    Path or None
        None where the package is not installed, or has no such file.
    """
    found = find_spec(package)
    folders = (found.submodule_search_locations or ()) if found is not None else ()
    files = (Path(folder, path) for folder in folders)
    return next((file for file in files if file.is_file()), None)


def compiled_at_first_call(
    *, need: str, fastmath: Set[str] = frozenset(), called: tuple[Callable[..., object], ...] = ()
) -> Callable[[Loop], Loop]:
    """Return a decorator of functions that are compiled when they are first called.

    numba is imported then, too. The machine code is cached for later processes.

    Parameters
    ----------
    need : str
        What needs numba, as the subject of a sentence.
    fastmath : set of str
        LLVM's flags, such as ``reassoc``: sums in any order. Without them every operation rounds as
        numpy's does.
    called : tuple of callable
        Functions that the compiled ones call.
    """

    @cache
    def numba() -> Any:
        found = optional("numba", extra="fast", need=need)
        for function in called:
            found.extending.register_jitable(function)
        return found

    def decorate(function: Loop) -> Loop:
        @cache
        def fast() -> Any:
            options = {"cache": True, "nogil": True, "error_model": "numpy"}
            return numba().njit(**options, fastmath=set(fastmath))(function)

        def call(*arguments: object) -> None:
            fast()(*arguments)

        return call  # type: ignore[return-value]

    return decorate


class LazyModule:
    """A module that is imported when an attribute of it is first used.

    Parameters
    ----------
    name : str
        Full name of the module.

    Examples
    --------
    >>> fractions = LazyModule("fractions")
    >>> fractions.Fraction(1, 2) + fractions.Fraction(1, 4)
    Fraction(3, 4)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"LazyModule({self._name!r})"
