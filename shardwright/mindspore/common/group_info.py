"""Ranks whose checkpoints are equal, in MindSpore's file of them.

Where ``GROUP_INFO_FILE`` or `group_ckpt_save_file` of the context names a file, a compilation
writes it: MindSpore's `ParallelGroupMap`, protobuf, of which the list of ranks is field 2.
"""

import os
from pathlib import Path

from shardwright.compiler.plans.compiled import Compiled
from shardwright.frontends.configs.strategy_map import ranks_message, read_ranks
from shardwright.ir.errors import ModelError
from shardwright.ir.files.reading import read_bytes
from shardwright.ir.files.writing import write_file
from shardwright.ir.graph import Graph
from shardwright.ir.values import check_type
from shardwright.mindspore.context import get_auto_parallel_context

_VARIABLE = "GROUP_INFO_FILE"


def save_group_info(found: Compiled, devices: int, rank: int) -> None:
    """Write the ranks with the checkpoint of a rank to the files that are named, if any are."""
    named = (os.environ.get(_VARIABLE), get_auto_parallel_context("group_ckpt_save_file"))
    for path in filter(None, named):
        content = ranks_message(equal_ranks(found.program, devices, rank))
        write_file(Path(path), content, "the file of groups", _is_of_groups)


def _is_of_groups(path: Path) -> bool:
    return bool(read_ranks(read_bytes(path)))


def equal_ranks(program: Graph, devices: int, rank: int) -> list[int]:
    """Return the ranks that hold the slices which a rank holds, of parameters and their moments."""
    mesh = program.mesh
    if mesh is None:
        return [*range(devices)]
    return [
        other
        for other in range(mesh.size)
        if mesh.device_group(other) == mesh.device_group(rank)
        and all(
            layout.slices(p.value.type.shape, mesh, other)
            == layout.slices(p.value.type.shape, mesh, rank)
            for p in program.parameters
            if (layout := p.value.layout) is not None
            and mesh.is_in(layout.stage, mesh.device_group(rank))
        )
    ]


def restore_group_info_list(group_info_file_name: str) -> list[int]:
    """Return the ranks that a file of groups says have the checkpoint of the rank that wrote it.

    Parameters
    ----------
    group_info_file_name : str
        The file.

    Raises
    ------
    OptionError
        If the name is no text.
    ModelError
        If there is no such file, or it is another.
    """
    check_type("group_info_file_name", group_info_file_name, str)
    path = Path(group_info_file_name)
    if not path.is_file():
        raise ModelError(
            "there is no such file of groups",
            group_info_file_name,
            hint=f"set the environment variable `{_VARIABLE}` to it, and compile a network",
        )
    ranks = read_ranks(read_bytes(path))
    if not ranks:
        raise ModelError("the file is no file of groups (protobuf `ParallelGroupMap`)", str(path))
    return ranks
