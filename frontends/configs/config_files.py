"""Which files of other systems are read, by their endings."""

import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardwright.frontends.configs import (
    deepspeed,
    distributed,
    huggingface,
    megatron,
    torchtitan,
)
from shardwright.frontends.configs.layouts import is_layouts
from shardwright.frontends.configs.reading import Reading
from shardwright.ir.errors import ModelError
from shardwright.ir.files.reading import TooDeepError, check_depth, from_json, read_text
from shardwright.ir.values import given_once

_MODELS = (".json", ".toml", ".sh", ".args")
CONFIG = "config.json"
_PLANS = (".json", ".toml", ".sh", ".args")


def is_model(name: str) -> bool:
    """Return whether a name is a file that may describe a model, or a folder that holds one.

    The name of a folder has a separator, so that it is no name of a model: ``./qwen3``.
    """
    return name.endswith(_MODELS) or ("/" in name and (Path(name) / CONFIG).is_file())


def is_plan(name: str) -> bool:
    """Return whether a name is a file that may describe a plan."""
    return name.endswith(_PLANS)


def read_model(name: str, sizes: Mapping[str, str] = MappingProxyType({})) -> Reading:
    """Return what a file says of a model.

    Parameters
    ----------
    name : str
        The file, or the folder with its ``config.json``.
    sizes : mapping of str to str
        Fields of a decoder that the user sets.

    Raises
    ------
    ModelError
        If it describes none, or says something that is not supported.
    """
    found = _read(name, with_model=True, sizes=sizes)
    if not found.model:
        raise found.error("it describes no model", "name the model, and give the file as the plan")
    return found


def read_plan(name: str, *, with_model: bool) -> Reading:
    """Return what a file says of a plan.

    Parameters
    ----------
    name : str
        The file.
    with_model : bool
        Whether the model is that of the file; else what it says of one is left alone.

    Raises
    ------
    ModelError
        If it says something that is not supported.
    """
    if is_layouts(name):
        raise ModelError(
            "the file holds layouts by name, no degrees",
            name,
            "`shardwright estimate MODEL --plan FILE` tells what they cost",
        )
    found = _read(name, with_model=with_model)
    if not found.plan:
        raise found.error(
            "it describes no plan",
            "give a file of Megatron, torchtitan or DeepSpeed, or a DistributedConfig",
        )
    return found


def _read(
    name: str, *, with_model: bool, sizes: Mapping[str, str] = MappingProxyType({})
) -> Reading:
    path = Path(name)
    if path.is_dir() and (path / CONFIG).is_file():
        path = path / CONFIG
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ModelError(f"cannot read `{name}`: {reason}") from error
    if path.suffix == ".json":
        table = _table(name, text, _from_json, "JSON")
        if deepspeed.is_config(table):
            return deepspeed.read(name, table)
        if distributed.is_config(table):
            return distributed.read(name, table)
        return huggingface.read(name, table, sizes)
    if path.suffix == ".toml":
        return torchtitan.read(name, _table(name, text, _from_toml, "TOML"), with_model=with_model)
    return megatron.read(name, text, with_model=with_model)


# Of a line: tables within tables have a dot each, and the parser's memory is their square. Lists of
# numbers have some ten; half would refuse no known file, twice as many take four times the memory.
_MOST_DOTS = 1000
# Of all lines, each the square of its dots: what the parser does for tables within tables. A file
# of 10,000 lines with ten dots each has a quarter; twice as much takes twice the half second.
_MOST_WORK = 4 * _MOST_DOTS**2


def _from_toml(text: str) -> dict[str, Any]:
    work = 0
    for number, line in enumerate(text.splitlines(), 1):
        dots = line.count(".")
        work += dots**2
        if dots > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS:,} dots")
        if work > _MOST_WORK:
            raise ValueError(f"the lines up to {number} have too many dots: tables within tables")
    found = tomllib.loads(text)
    check_depth(found)
    return found


_from_json = partial(from_json, pairs=given_once)


def _table(name: str, text: str, load: Any, kind: str) -> dict[str, Any]:
    try:
        found = load(text)
    except (TooDeepError, RecursionError) as error:
        raise ModelError(f"the file must be {kind}, it is nested too deeply", name) from error
    except ValueError as error:
        raise ModelError(f"the file must be {kind}: {error}", where=name) from error
    if not isinstance(found, dict):
        raise ModelError(f"the file must hold fields, found {type(found).__name__}", where=name)
    return found
