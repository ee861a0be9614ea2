"""Optional packages and slow modules: imported on first use, by this module alone.

Each optional package comes with an extra of the distribution: `numba` with ``shardwright[fast]``.
Everything else is imported at the top of a module.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from shardwright.ir.errors import PackageError

_OURS = "shardwright"


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
