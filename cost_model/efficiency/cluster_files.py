"""Files that describe clusters: those of the package by name, and any others by path."""

import json
import os
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.composer import ComposerError

from shardwright.cost_model.efficiency.lines import (
    ATTAINED,
    DATASHEET,
    SUFFIXES,
    changed,
    parted,
    with_figures,
)
from shardwright.cost_model.rank_table import described_by, is_rank_table
from shardwright.ir.errors import ClusterError
from shardwright.ir.files.reading import MOST_DIGITS, TooDeepError, from_json, read_text
from shardwright.ir.values import GivenTwiceError, given_once

DEFAULT_VARIABLE = "SHARDWRIGHT_CLUSTER"
"""The variable of the environment that names the cluster where no option does."""
_PRESETS = files("shardwright.cost_model") / "clusters"
_MIXED = files("shardwright.cost_model") / "mixed_clusters"
_DEVICES = files("shardwright.cost_model") / "devices"
_ATTAINED = ("efficiency", "kernels")
_OF_RANK_TABLES = "ascend910-racks.yaml"  # the devices and links of HCCL's rank tables


def preset_names() -> tuple[str, ...]:
    """Return the names of the clusters of one kind of device that come with the package, sorted."""
    return _names(_PRESETS)


def mixed_names() -> tuple[str, ...]:
    """Return the names of the clusters of several kinds that come with the package, sorted."""
    return _names(_MIXED)


def device_names() -> tuple[str, ...]:
    """Return the names of the devices that come with the package, sorted."""
    return _names(_DEVICES)


def device_text(name: str) -> str:
    """Return the text of the file of a device of the package."""
    return (_DEVICES / f"{name}.yaml").read_text(encoding="utf-8")


def _names(folder: Traversable) -> tuple[str, ...]:
    found = (Path(entry.name) for entry in folder.iterdir())
    return tuple(sorted(path.stem for path in found if path.suffix == ".yaml"))


def cluster_in(name: str, folder: Path = Path()) -> tuple[str, str]:
    """Return the text of the file of a cluster, by name or path, and where it is.

    Parameters
    ----------
    name : str
        Name of a cluster of the package, or a path.
    folder : Path
        The folder that a relative path starts from.

    Raises
    ------
    ClusterError
        If there is no such cluster.
    """
    if Path(name).suffix in SUFFIXES:
        return file_text(folder / name)
    resource = next((f / f"{name}.yaml" for f in (_PRESETS, _MIXED) if name in _names(f)), None)
    if resource is None:
        names = tuple(sorted((*preset_names(), *mixed_names())))
        close = get_close_matches(name, names, n=1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        hint = f"{meant}there are {', '.join(names)}, or a .yaml or .json file"
        what = f"no cluster is called `{name}`"
        if name == parted(os.environ.get(DEFAULT_VARIABLE, ""))[0]:
            what += f", which the variable `{DEFAULT_VARIABLE}` names"
        raise ClusterError(what, hint=hint)
    return resource.read_text(encoding="utf-8"), str(resource)


def content_of(name: str, folder: Path = Path()) -> tuple[dict[str, Any], str]:
    """Return what describes a cluster that is said by name, path or line, and where that is.

    Parameters
    ----------
    name : str
        Name of a cluster of the package, or a path; after a colon what differs.
    folder : Path
        The folder that a relative path starts from.

    Raises
    ------
    ClusterError
        If there is no such cluster, or it has no such changes.
    """
    text, where = cluster_in(parted(name)[0], folder)
    content = changed(_resolved(text, where), name)
    return with_figures_asked(content, where), where


def file_text(path: Path) -> tuple[str, str]:
    """Return the text of a file, and where it is.

    Raises
    ------
    ClusterError
        If it cannot be read.
    """
    try:
        return read_text(path, _MOST_BYTES), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ClusterError(f"cannot read cluster file `{path}`: {reason}") from error


def cluster_content(text: str, where: str) -> dict[str, Any]:
    """Return the cluster that a file describes, with the figures that it asks for.

    Raises
    ------
    ClusterError
        If it is neither YAML nor JSON, or no description of a cluster.
    """
    return with_figures_asked(_resolved(text, where), where)


def _resolved(text: str, where: str) -> dict[str, Any]:
    """Return the cluster that a file describes, with the device that it names.

    Raises
    ------
    ClusterError
        If it is neither YAML nor JSON, or no description of a cluster.
    """
    content = deepcopy(_read(text, where))
    if not isinstance(content, dict):
        what = "a cluster file must hold `name`, `device` and `levels`"
        raise ClusterError(f"{what}, but holds no keys at all", where=where)
    if is_rank_table(content):
        like = yaml.safe_load((_PRESETS / _OF_RANK_TABLES).read_text(encoding="utf-8"))
        content = described_by(content, like, Path(where).stem, where)
    if "software" in content:
        what = "`software` is not a key of a cluster"
        raise ClusterError(what, where=where, hint="pass the software as an option")
    if "parts" not in content and "cluster" in content:
        content = _alias(content, where)
    return with_device(content, where)


def with_device(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the description of a cluster with that of the device that it names.

    Raises
    ------
    ClusterError
        If there is no such device.
    """
    given = content.get("device")
    if isinstance(given, str) or (isinstance(given, dict) and "like" in given):
        return {**content, "device": _device(given, where)}
    return content


def stands_for(name: str) -> str | None:
    """Return the line that a preset is another name of; None for a description of its own.

    Examples
    --------
    >>> stands_for("h100-pod"), stands_for("h100")
    ('h100:nodes=256', None)
    """
    content = _read(*cluster_in(name))
    return str(content["cluster"]) if "parts" not in content and "cluster" in content else None


def _alias(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the cluster that a file gives another name."""
    if further := sorted(set(content) - {"name", "cluster"}):
        what = f"`{further[0]}` is not a key of another name of a cluster"
        raise ClusterError(what, where=where, hint="its keys are `name` and `cluster`")
    line = str(content["cluster"])
    text, origin = cluster_in(parted(line)[0], Path(where).parent)
    if "cluster" in _read(text, origin):
        what = f"`{line}` is itself another name of a cluster"
        raise ClusterError(what, where=where, hint="name the cluster that it stands for")
    named = changed(_resolved(text, origin), line)
    return {**named, "name": content.get("name", named["name"])}


def _device(given: Any, where: str) -> dict[str, Any]:
    """Return the description of a device by its name, or by another one and what differs."""
    own = {"like": given} if isinstance(given, str) else dict(given)
    name = own.pop("like")
    if name not in device_names():
        close = get_close_matches(str(name), device_names(), n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        hint += f"there are {', '.join(device_names())}, or the keys of a device"
        raise ClusterError(f"no device is called `{name}`", where=where, hint=hint)
    return {**base_device(name), **own}


@lru_cache(maxsize=64)
def _packaged(name: str) -> dict[str, Any]:
    """Return the description of a device of the package, with kernels scaled where it says so."""
    found: dict[str, Any] = _read(device_text(name), f"{name}.yaml")
    kernels = found.get("kernels")
    return {**found, "kernels": _scaled(kernels)} if kernels and "like" in kernels else found


def base_device(name: str) -> dict[str, Any]:
    """Return the description of a device of the package."""
    return deepcopy(_packaged(name))


def _scaled(given: dict[str, Any]) -> Any:
    """Return the kernels of another device times a ratio, which a file gives with its reason."""
    ratio, name = float(given["times"]), str(given["like"])
    source = f"that of {name} times {ratio:g}: {given['reason']}"

    def scaled(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        if "tag" not in part:
            return {key: scaled(value) for key, value in part.items()}
        value = "share" if "share" in part else "value"
        own = {"tag": "scaled", "source": source}
        return {**part, value: min(part[value] * ratio, 1.0), **own}

    base = _packaged(name)["kernels"]
    alike = {"tag": "scaled", "source": f"that of {name}"}
    of_bandwidth = {key: {**base[key], **alike} for key in ("copies", "updates", "sustained")}
    return {**scaled(base), **of_bandwidth}


def with_figures_asked(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a description with attained figures, or without them where it says so.

    Raises
    ------
    ClusterError
        If it asks for other figures, or has no others.
    """
    figures = content.pop("figures", ATTAINED)
    if figures not in (ATTAINED, DATASHEET):
        what = f"`figures` is `{figures}`, expected `{ATTAINED}` or `{DATASHEET}`"
        raise ClusterError(what, where=where)
    if figures == ATTAINED:
        return content
    if isinstance(content.get("parts"), list):
        content["parts"] = [_part_of_sheets(part) for part in content["parts"]]
        return content
    if isinstance(content.get("device"), dict):
        content["device"] = {k: v for k, v in content["device"].items() if k not in _ATTAINED}
    levels = content.get("levels")
    if isinstance(levels, list) and all(isinstance(level, dict) for level in levels):
        for level in levels:
            if "latency" not in level:
                what = f"`{level.get('name')}` has no latency but that of its protocols"
                raise ClusterError(what, where=where, hint="leave `figures=datasheet` out")
        content["levels"] = [
            {k: v for k, v in level.items() if k != "efficiency"} for level in levels
        ]
    return content


def _part_of_sheets(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if "cluster" in part:
        return {**part, "cluster": with_figures(str(part["cluster"]), DATASHEET)}
    return {**part, "figures": DATASHEET}


# Bytes and values of a cluster file. The largest that is known, the rank table of ten thousand
# devices, has two million bytes of JSON; one of YAML has some hundred values. Half refuses no known
# file; a file of twice as many values is read for two seconds longer.
_MOST_BYTES = 2**24
_MOST_VALUES = 20_000


@lru_cache(maxsize=64)  # a text of YAML takes longer to read than some searches
def _read(text: str, where: str) -> Any:
    """Return what is in a text of YAML, or of JSON where its file is called so."""
    is_json = where.endswith(".json")
    must = f"a cluster file must be {'JSON' if is_json else 'YAML'}"
    try:
        content = from_json(text, given_once) if is_json else yaml.load(text, _Loader)
        if not (isinstance(content, dict) and is_rank_table(content)):
            _check_numbers(content, "", where)
    except json.JSONDecodeError as error:
        what = f"{must}, but line {error.lineno} is not"
        raise ClusterError(what, where=where, hint=error.msg.lower()) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = f"{must}, but line {mark.line + 1 if mark else 1} is not"
        raise ClusterError(what, where=where, hint=getattr(error, "problem", None)) from error
    except GivenTwiceError as error:
        raise ClusterError(str(error), where=where, hint="give it once") from error
    except (RecursionError, TooDeepError) as error:
        raise ClusterError(f"{must}, but it is nested too deeply", where=where) from error
    except ValueError as error:  # a date that is none, an integer of thousands of digits
        hint = str(error).partition(";")[0].lower()
        raise ClusterError(f"{must}, but a value is not", where=where, hint=hint) from error
    return content


class _Loader(yaml.SafeLoader):
    """Reads YAML that is safe to walk through.

    No mapping gives a key twice: the last would hide the others. An alias counts as all that it
    stands for, since every reader walks through it again.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0
        self._sizes: dict[int, int] = {}  # of complete nodes, by identity: all are alive

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node, counted with all that is in it."""
        before, is_alias = self._values, self.check_event(yaml.AliasEvent)
        mark = self.get_mark()
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._sizes:
            raise ComposerError(None, None, "a value is within itself", mark)
        self._values += self._sizes[id(node)] if is_alias else 1
        if self._values > _MOST_VALUES:
            hint = f"it has more than {_MOST_VALUES:,} values, aliases written out"
            raise ComposerError(None, None, hint, mark)
        self._sizes.setdefault(id(node), self._values - before)
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number of so many characters at most: the work is their square."""
        if len(node.value) > MOST_DIGITS:
            raise ValueError(f"a number has more than {MOST_DIGITS} characters")
        is_whole = node.tag.endswith(":int")
        return (self.construct_yaml_int if is_whole else self.construct_yaml_float)(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the next mapping as it is written, before others are merged into it."""
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        given_once((key, None) for key in keys)
        return node


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_number)


def _check_numbers(content: Any, place: str, where: str) -> None:
    """Refuse switches, which no key of a cluster is: read as numbers they would be 0 and 1."""
    if isinstance(content, bool):
        raise ClusterError(f"`{place}` is `{str(content).lower()}`, expected a number", where)
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            _check_numbers(value, f"{place}.{key}" if place else str(key), where)


def in_one_sentence(error: ValidationError) -> str:
    """Return the errors of pydantic in one sentence, without types and links."""
    entries = error.errors(include_url=False)
    # Pydantic also reports a list with wrong items as too short.
    inner = {entry["loc"][:1] for entry in entries if len(entry["loc"]) > 1}
    entries = [e for e in entries if e["type"] != "too_short" or e["loc"] not in inner]
    findings = [_finding(entry) for entry in entries]
    more = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
    return "; ".join(findings[:3]) + more


def _finding(entry: Any) -> str:
    place = ".".join(str(part) for part in entry["loc"])
    match entry["type"]:
        case "missing":
            return f"`{place}` is missing"
        case "extra_forbidden":
            return f"`{place}` is not a key of a cluster"
        case "value_error":
            said = str(entry["ctx"]["error"])
            return f"`{place}`: {said}" if place else said
        case "literal_error":
            return f"`{place}` is `{entry['input']}`, but should be {entry['ctx']['expected']}"
        case "tuple_type" | "dict_type" | "model_type":
            kind = "a list" if entry["type"] == "tuple_type" else "a mapping of keys"
            return f"`{place}` is `{entry['input']}`, but should be {kind}"
    said = entry["msg"].removeprefix("Input ").removeprefix("String ").split(",")[0]
    return f"`{place}` is `{entry['input']}`, but {said}"
