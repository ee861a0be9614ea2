"""Files of layouts by name: placements of DTensor, and partition specs of JAX.

Both are JSON objects. Placements have the keys of `shardwright export --to placements`, and specs
are lists as `jax.sharding.PartitionSpec` has them:

    {"mesh_shape": [2, 4], "mesh_dim_names": ["dp", "tp"],
     "inputs": {"tokens": ["Shard(0)", "Replicate()"]},
     "parameters": {"head.weight": ["Replicate()", "Shard(0)"]}}

    {"mesh": {"data": 2, "model": 4},
     "inputs": {"tokens": ["data"]}, "parameters": {"head/kernel": [null, "model"]}}
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from shardwright.frontends.configs.strategy_map import (
    StrategyMap,
    layout_of,
    read_strategy_map,
)
from shardwright.ir.errors import ModelError
from shardwright.ir.files.reading import from_json, read_bytes
from shardwright.ir.values import GivenTwiceError, given_once

_PLACEMENTS = ("mesh_shape", "mesh_dim_names")
_STRATEGIES = ("parallel_strategy_item", "parallel_layout_item")
_SHARD = re.compile(r"S(?:hard)?\((?:dim=)?(\d+)\)")
_STRIDED = re.compile(r"_StridedShard\((?:dim=)?(\d+), (?:sf=|split_factor=)?(\d+)\)")
_WHOLE = re.compile(r"R(?:eplicate\(\))?")
_SAVED = ".ckpt"  # how MindSpore names its protobuf files
Axes = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class NamedLayouts:
    """Layouts by the names of tensors.

    Parameters
    ----------
    where : str
        The file.
    mesh : mapping of str to int
        Axes and their sizes, the outermost first.
    inputs, parameters : mapping of str to tuple of tuple of str
        The axes that split each dimension, major to minor; further dimensions are whole.
    """

    where: str
    mesh: Mapping[str, int]
    inputs: Mapping[str, Axes]
    parameters: Mapping[str, Axes]

    @property
    def devices(self) -> int:
        """Number of devices."""
        return prod(self.mesh.values())


def is_layouts(name: str) -> bool:
    """Return whether a file holds layouts or strategies by name."""
    if name.endswith(_SAVED):
        return True
    if not name.endswith(".json"):
        return False
    try:
        table = from_json(read_bytes(Path(name)))
    except (OSError, ValueError):
        return False
    known = (*_PLACEMENTS, *_STRATEGIES, "mesh")
    return isinstance(table, dict) and any(key in table for key in known)


def read_layouts(name: str) -> NamedLayouts | StrategyMap:
    """Return what a file says: layouts by name, or MindSpore's strategies.

    Raises
    ------
    ModelError
        If it cannot be read.
    """
    try:
        content = read_bytes(Path(name))
    except OSError as error:
        raise ModelError(f"cannot read `{name}`: {error.strerror}") from error
    if name.endswith(_SAVED):
        return read_strategy_map(name, content)
    try:
        table = from_json(content, given_once)  # as `is_layouts` has found it
    except GivenTwiceError as error:
        raise ModelError(str(error), name, "give it once") from error
    if any(key in table for key in _STRATEGIES):
        return _strategies(name, table)
    is_placed = any(key in table for key in _PLACEMENTS)
    mesh = _mesh(name, table, is_placed)
    own = {key: _section(name, table, key) for key in ("inputs", "parameters")}
    read = _of_placements if is_placed else _of_spec
    found = {
        key: {one: read(f"{name}: `{one}`", value, mesh) for one, value in section.items()}
        for key, section in own.items()
    }
    return NamedLayouts(name, mesh, **found)


def _mesh(where: str, table: Mapping[str, Any], is_placed: bool) -> dict[str, int]:
    if is_placed:
        sizes, names = (table.get(key) for key in _PLACEMENTS)
        mesh = None
        if isinstance(sizes, list) and isinstance(names, list) and len(sizes) == len(names):
            mesh = dict(zip(map(str, names), sizes, strict=True))
    else:
        mesh = table["mesh"]
    known = isinstance(mesh, dict) and mesh and all(isinstance(one, str) and one for one in mesh)
    if not known or any(type(size) is not int or size < 1 for size in (mesh or {}).values()):
        raise ModelError(
            "the mesh must have a name and a size of at least 1 for each axis",
            where,
            'write `"mesh": {"data": 2, "model": 4}`',
        )
    return dict(mesh or {})


def _section(where: str, table: Mapping[str, Any], key: str) -> dict[str, Any]:
    section = table.get(key, {})
    if not isinstance(section, dict):
        raise ModelError(f"`{key}` must be an object from names to layouts", where)
    return section


def _of_placements(where: str, value: Any, mesh: Mapping[str, int]) -> Axes:
    """Return the axes of placements: one for each axis of the mesh, in its order."""
    placed = value.get("placements") if isinstance(value, dict) else value
    if not isinstance(placed, list) or len(placed) != len(mesh):
        raise ModelError(
            f"expected {len(mesh)} placements, one for each axis, found {value}", where
        )
    dims: dict[int, list[str]] = {}
    for axis, placement in reversed([*zip(mesh, map(str, placed), strict=True)]):
        if _WHOLE.fullmatch(placement):
            continue
        plain, strided = _SHARD.fullmatch(placement), _STRIDED.fullmatch(placement)
        match = plain or strided
        if match is None:
            raise ModelError(
                f"`{placement}` is no placement of a parameter or input",
                where,
                "write `Shard(0)` or `Replicate()`",
            )
        axes = dims.setdefault(int(match[1]), [])
        major = 1 if strided is None else int(strided[2])
        places = [i for i in range(len(axes) + 1) if prod(mesh[a] for a in axes[:i]) == major]
        if not places:
            raise ModelError(f"the split factor of `{placement}` fits no later axes", where)
        axes.insert(places[0], axis)
    rank = max(dims, default=-1) + 1
    return tuple(tuple(dims.get(i, ())) for i in range(rank))


def _of_spec(where: str, value: Any, mesh: Mapping[str, int]) -> Axes:
    """Return the axes of a partition spec: null, an axis, or several, for each dimension."""
    if not isinstance(value, list):
        raise ModelError(
            f"expected a list, of axes or null for each dimension, found {value}", where
        )
    found = tuple(
        () if one is None else tuple(one) if isinstance(one, list) else (one,) for one in value
    )
    used = [axis for axes in found for axis in axes]
    unknown = [axis for axis in used if axis not in mesh]
    if unknown or len(set(used)) < len(used):
        raise ModelError(
            f"expected axes of the mesh, {', '.join(mesh)}, each once; found {value}", where
        )
    return found


def _strategies(where: str, table: Mapping[str, Any]) -> StrategyMap:
    """Return the strategies of MindSpore's JSON."""
    try:
        strategies = {
            str(name): tuple(tuple(map(int, one)) for one in item["parallel_strategy"])
            for name, item in table.get(_STRATEGIES[0], {}).items()
        }
        layouts = {
            str(name): layout_of(
                where,
                name,
                [*map(int, item["dev_matrix"])],
                [*map(int, item["tensor_map"])],
                int(item.get("opt_weight_shard_size", 0)),
            )
            for name, item in table.get(_STRATEGIES[1], {}).items()
        }
        return StrategyMap(int(table.get("current_stage", 0)), strategies, layouts)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"the file has not the form of MindSpore's strategies: {error}", where
        ) from None


def split_by(dims: Sequence[Sequence[str]]) -> list[str]:
    """Return the axes that split some dimension."""
    return [axis for axes in dims for axis in axes]
