"""What searches of blocks found, kept for later runs: files by the digest of all that decides.

A folder for each version of the code that decides, in `SHARDWRIGHT_CACHE` or else in the user's
folder of caches (`XDG_CACHE_HOME`, by default `~/.cache`). The files are JSON, and what is read is
checked: its key, its digest, and the type of all that it says. What is something else is ignored
with a warning, and nothing that is read is ever run.
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from shardwright.ir.errors import ShardwrightWarning
from shardwright.ir.files.aside import aside, new_file
from shardwright.planner.code import code_digest

Value = TypeVar("Value")
VARIABLE = "SHARDWRIGHT_CACHE"
"""The environment variable that names the folder; empty, nothing is kept."""

_VERSIONS = 4  # versions of the code whose folders are kept, the latest
_MOST_FILES = 2_000  # files of one version, about 100 kB each; then the folder begins anew


@cache
def _warn(text: str) -> None:
    warnings.warn(text, ShardwrightWarning, stacklevel=3)


def folder() -> Path | None:
    """Return the folder of this version; None where nothing is kept."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    if named is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        named = str(Path(home) / "shardwright")
    return Path(named) / code_digest()[:16]


@dataclass(frozen=True)
class Kept(Generic[Value]):
    """Values of one type, by what they depend on.

    Parameters
    ----------
    kind : str
        What they are, in a word.
    type : TypeAdapter
        Their type.
    """

    kind: str
    type: TypeAdapter[Value]

    def read(self, key: str) -> Value | None:
        """Return the value of a key; None where none is kept, or something else."""
        place = self._place(key)
        if place is None:
            return None
        try:
            whole = json.loads(place.read_bytes())
            content = whole["content"]
            if whole["key"] != self._key(key) or whole["digest"] != _digest(content):
                raise ValueError
            return self.type.validate_json(content)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            _warn(f"the file {place} is no {self.kind} that was kept; it is ignored")
            return None

    def write(self, key: str, value: Value) -> None:
        """Keep a value, where that can be done."""
        place = self._place(key)
        if place is None:
            return
        content = self.type.dump_json(value).decode()
        whole = {"key": self._key(key), "digest": _digest(content), "content": content}
        try:
            if not place.parent.is_dir():
                place.parent.mkdir(parents=True)
                _forget(place.parent.parent, _VERSIONS)
            elif len(os.listdir(place.parent)) >= _MOST_FILES:
                shutil.rmtree(place.parent, ignore_errors=True)
                place.parent.mkdir(parents=True, exist_ok=True)
            # Not synced: a file that a loss of power cut off has another digest, and is ignored.
            with aside(place, new_file) as temporary:
                temporary.write_bytes(json.dumps(whole).encode())
                temporary.replace(place)
        except OSError as error:
            _warn(f"nothing is kept in {place.parent}: {error.strerror or error}")

    def _key(self, key: str) -> str:
        return f"{self.kind} {key}"

    def _place(self, key: str) -> Path | None:
        found = folder()
        return None if found is None else found / f"{_digest(self._key(key))}.json"


def _forget(whole: Path, most: int) -> None:
    """Remove the folders of all versions but the last ones."""
    known = [one for one in whole.iterdir() if len(one.name) == 16 and one.is_dir()]
    for one in sorted(known, key=lambda one: one.stat().st_mtime)[:-most]:
        shutil.rmtree(one, ignore_errors=True)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def text_of(value: Any) -> str:
    """Return all that a value says, the same in each process.

    Raises
    ------
    TypeError
        If something in it is not told by its fields, such as a function.
    """
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if isinstance(value, BaseModel):
        return f"{type(value).__name__} {value.model_dump_json()}"
    if is_dataclass(value) and not isinstance(value, type):
        told = (
            f"{one.name}={text_of(getattr(value, one.name))}" for one in fields(value) if one.repr
        )
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, Mapping):
        return str(sorted(f"{text_of(k)}: {text_of(v)}" for k, v in value.items()))
    if isinstance(value, frozenset | set):
        return str(sorted(map(text_of, value)))
    if isinstance(value, tuple | list):
        return f"({', '.join(map(text_of, value))})"
    raise TypeError(f"a {type(value).__name__} is not told by its fields")
