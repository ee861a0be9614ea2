"""Clusters that are said in a line: ``h100:nodes=8,network=400Gb/s``.

After the name of a cluster, or of its file, a colon and changes to what it describes:

============================== ====================================================================
``nodes=8``, ``racks=4``       how many of the innermost groups there are
``per_node=4``, ``per_rack=36`` devices in each of them, at most those of what is named
``4x4x8``                      members of every level, innermost first
``network=400Gb/s``            what each device can send over the outermost level; also ``50GB/s``
``pcie=4``                     the generation of PCIe, where devices are joined through host memory
``figures=datasheet``          peaks and bandwidths of data sheets, of which programs attain all
============================== ====================================================================
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.ir.errors import ClusterError

SUFFIXES = (".yaml", ".yml", ".json")
DATASHEET, ATTAINED = "datasheet", "attained"
PCIE = "pcie"
_PCIE_LANES = {3: 8.0e9, 4: 16.0e9, 5: 32.0e9, 6: 64.0e9}
"""Bytes per second that pass from one device to another through host memory, by generation.

Half of sixteen lanes in each direction (PCI-SIG): each byte is written to the host and read again.
"""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(G|T)(b|B)/s")
_SCALES = {"G": 1e9, "T": 1e12}


def parted(name: str) -> tuple[str, str]:
    """Return the name or path of a cluster, and the changes after it.

    Examples
    --------
    >>> parted("h100:nodes=8"), parted("mine.yaml")
    (('h100', 'nodes=8'), ('mine.yaml', ''))
    """
    if Path(name).suffix in SUFFIXES:
        return name, ""
    base, _, changes = name.partition(":")
    return base, changes


def with_figures(name: str, figures: str | None) -> str:
    """Return the line of a cluster with the figures that are asked for; none leave it as it is.

    Raises
    ------
    ClusterError
        If the line itself asks for other figures.
    """
    if figures is None:
        return name
    base, changes = parted(name)
    given = [change for change in changes.split(",") if change]
    own = [change for change in given if _is_of_figures(change)]
    if own and own != [f"figures={figures}"]:
        what = f"`{name}` has `{own[0]}`, and figures that are `{figures}` are asked for"
        raise ClusterError(what, hint="say one of them")
    return name if own else f"{base}:{','.join([*given, f'figures={figures}'])}"


def changed(content: dict[str, Any], line: str) -> dict[str, Any]:
    """Return the description of a cluster with the changes of a line.

    Raises
    ------
    ClusterError
        If a change is none that the cluster can have, or is given twice.
    """
    base, changes = parted(line)
    if not changes:
        if line.endswith(":"):
            raise ClusterError(f"`{line}` says nothing after the colon", hint=f"write `{base}`")
        return content
    if "parts" in content and _is_of_figures(changes):
        return {**content, "figures": changes.partition("=")[2]}
    levels = content.get("levels")
    if not isinstance(levels, list) or not levels:
        what = f"`{base}` is no cluster of one kind of device, and `{changes}` changes none"
        raise ClusterError(what, hint="write a file, see docs/clusters.md")
    if not all(isinstance(level, dict) and {"name", "size"} <= set(level) for level in levels):
        return content  # what a level lacks is told when the description is read
    content, kept, seen = {**content, "levels": [*levels]}, [], set[str]()
    for change in changes.split(","):
        key, given, value = change.partition("=")
        if key in seen:
            raise ClusterError(f"`{line}` gives `{key}` twice", hint="give it once")
        seen.add(key)
        if _is_of_figures(change):
            content["figures"] = value
            continue
        _change(content, key, value if given else None, line)
        kept.append(change)
    if kept:
        content["name"] = f"{content.get('name', base)}:{','.join(kept)}"
    return content


def _is_of_figures(change: str) -> bool:
    return change.startswith("figures=")


def _change(content: dict[str, Any], key: str, value: str | None, line: str) -> None:
    levels = content["levels"]
    inner = str(levels[0]["name"])
    unit = "node" if inner == PCIE else inner
    if value is None and re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", key):
        _resize(levels, [int(size) for size in key.split("x")], line)
    elif key == f"{unit}s" and len(levels) > 1:
        levels[1] = {**levels[1], "size": _count(key, value, line)}
    elif key == f"per_{unit}":
        size = _count(key, value, line)
        _check_innermost(levels[0], size, line)
        levels[0] = {**levels[0], "size": size}
    elif key == "network" and len(levels) > 1:
        levels[-1] = {**levels[-1], "bandwidth": _rate(value, line)}
    elif key == PCIE and inner == PCIE:
        levels[0] = {**levels[0], "bandwidth": _lanes(value, line)}
    else:
        known = [f"per_{unit}", *([f"{unit}s", "network"] if len(levels) > 1 else [])]
        known += [PCIE] if inner == PCIE else []
        sizes = "x".join(str(level["size"]) for level in levels)
        what = f"`{key if value is None else f'{key}={value}'}` in `{line}` is no change"
        hint = f"of this cluster can be said {', '.join(known)}, figures, and sizes like `{sizes}`"
        raise ClusterError(what, hint=hint)


def _resize(levels: list[Mapping[str, Any]], sizes: list[int], line: str) -> None:
    if len(sizes) != len(levels):
        names = ", ".join(str(level["name"]) for level in levels)
        what = f"`{line}` gives {len(sizes)} sizes, and the cluster has {len(levels)} levels"
        raise ClusterError(what, hint=f"give the members of {names}, the innermost first")
    _check_innermost(levels[0], sizes[0], line)
    levels[:] = [{**level, "size": n} for level, n in zip(levels, sizes, strict=True)]


def _check_innermost(level: Mapping[str, Any], size: int, line: str) -> None:
    """Refuse more devices on the innermost links than the machine that is named has."""
    most = level.get("size")
    if isinstance(most, int) and size > most:
        name = str(level["name"])
        unit = "node" if name == PCIE else name
        what = f"`{line}` has {size} devices in each {unit}, and it joins {most} at most"
        raise ClusterError(what, hint="describe another machine in a file, see docs/clusters.md")


def _count(key: str, value: str | None, line: str) -> int:
    if value is None or not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise ClusterError(f"`{key}` in `{line}` is `{value}`, expected a positive integer")
    return int(value)


def _rate(value: str | None, line: str) -> float:
    found = _RATE.fullmatch(value or "")
    if found is None or float(found[1]) == 0:
        what = f"`network` in `{line}` is `{value}`, expected what each device can send"
        raise ClusterError(what, hint="write `400Gb/s` or `50GB/s`")
    return float(found[1]) * _SCALES[found[2]] / (8 if found[3] == "b" else 1)


def _lanes(value: str | None, line: str) -> float:
    known = {str(generation): rate for generation, rate in _PCIE_LANES.items()}
    if value not in known:
        what = f"`pcie` in `{line}` is `{value}`, expected a generation: {', '.join(known)}"
        raise ClusterError(what)
    return known[value]
