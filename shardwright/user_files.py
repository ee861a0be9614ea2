"""Python files of the user: run as modules, their errors told as the product's."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from shardwright.ir.errors import ModelError, ShardwrightError


@contextmanager
def imported(path: Path, failure: type[ShardwrightError] = ModelError) -> Iterator[ModuleType]:
    """Run a file as a module that may import its neighbours, and forget those afterwards.

    Raises
    ------
    ShardwrightError
        Of the type `failure`, if the file fails, or does not have the name of a Python file.
    """
    name = f"shardwright_model_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise failure("it is no Python file", str(path), "name a file that ends in `.py`")
    module, loader = module_from_spec(spec), spec.loader
    folder, before = str(path.resolve().parent), set(sys.modules)
    sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        guarded(lambda: loader.exec_module(module), path, failure)
        yield module
    finally:
        sys.path.remove(folder)
        for other in set(sys.modules) - before:
            if _is_in(sys.modules[other], folder):
                del sys.modules[other]


def _is_in(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and str(Path(file).resolve().parent) == folder


def guarded(
    action: Callable[[], Any], path: Path, failure: type[ShardwrightError] = ModelError
) -> Any:
    """Run code of the user's file, and raise its errors as `failure`."""
    try:
        return action()
    except ShardwrightError:
        raise
    except SystemExit as error:
        raise failure("it ends the program", str(path), "leave out `sys.exit`") from error
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same(f, path)]
        place = f"{path}, line {lines[-1]}" if lines else str(path)
        raise failure(f"{type(error).__name__}: {error}", place) from error


def _same(frame: traceback.FrameSummary, path: Path) -> bool:
    return Path(frame.filename) == path or Path(frame.filename) == path.resolve()
