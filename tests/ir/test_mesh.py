import os
import pickle
import subprocess
import sys

import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis


def mesh_of(*sizes: int) -> Mesh:
    return Mesh(tuple(MeshAxis(f"a{i}", size) for i, size in enumerate(sizes)))


# From MindSpore's `device_matrix_test.cc`: the groups of a rank along each dimension.
GROUPS = [
    ((2, 3), 0, [(0, 3), (0, 1, 2)]),
    ((2, 2, 3), 5, [(5, 11), (2, 5), (3, 4, 5)]),
    ((2, 1, 4, 2), 5, [(5, 13), (5,), (1, 3, 5, 7), (4, 5)]),
    ((3, 4, 2, 3, 2), 5, [(5, 53, 101), (5, 17, 29, 41), (5, 11), (1, 3, 5), (4, 5)]),
]


@pytest.mark.parametrize(("sizes", "rank", "expected"), GROUPS)
def test_groups_are_those_of_mindspore(
    sizes: tuple[int, ...], rank: int, expected: list[tuple[int, ...]]
) -> None:
    mesh = mesh_of(*sizes)
    assert [mesh.group(rank, [name]) for name in mesh.names] == expected


def test_a_group_over_two_axes_is_ordered_major_to_minor() -> None:
    mesh = mesh_of(2, 3, 2)
    assert mesh.group(4, ["a0", "a2"]) == (4, 5, 10, 11)
    assert mesh.group(4, ["a2", "a0"]) == (4, 10, 5, 11)


def test_groups_divide_the_ranks() -> None:
    mesh = mesh_of(2, 3, 2)
    groups = mesh.groups(["a1"])
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    for group in groups:
        assert [mesh.group(rank, ["a1"]) for rank in group] == [group] * 3
        assert [mesh.index(rank, ["a1"]) for rank in group] == [0, 1, 2]


def test_a_mesh_without_axes_is_one_device() -> None:
    mesh = Mesh(())
    assert (mesh.size, mesh.group(0, []), str(mesh)) == (1, (0,), "one device")


def test_wrong_meshes_are_refused() -> None:
    with pytest.raises(IRError) as error:
        Mesh((MeshAxis("x", 2), MeshAxis("x", 3)))
    assert str(error.value) == "a mesh has the axes ['x', 'x'], every name must be unique"
    with pytest.raises(IRError) as error:
        mesh_of(2, 0)
    assert str(error.value) == "a mesh has the shape (2, 0), every size must be at least 1"
    with pytest.raises(IRError) as error:
        mesh_of(2).axis("y")
    assert str(error.value) == "the mesh has no axis `y`; its axes are ('a0',)"


def test_an_axis_that_is_run_in_time_adds_no_ranks():
    mesh = Mesh((MeshAxis("micro", 4, in_time=True), MeshAxis("x", 2), MeshAxis("y", 3)))
    assert (mesh.size, mesh.passes, mesh.in_time) == (6, 4, ("micro",))
    assert mesh.of_ranks == Mesh((MeshAxis("x", 2), MeshAxis("y", 3)))
    assert mesh.groups(["x"]) == mesh.of_ranks.groups(["x"])
    assert [mesh.coordinate(5 + i * 6, "micro") for i in range(4)] == [0, 1, 2, 3]
    assert mesh.part(24, ["micro", "x"], 3 + 2 * 6) == (15, 3)
    assert str(mesh) == "micro=4 in time x x=2 x y=3"


def test_only_the_first_axis_is_run_in_time():
    with pytest.raises(IRError, match="only the first axis of a mesh can be run in time"):
        Mesh((MeshAxis("x", 2), MeshAxis("micro", 4, in_time=True)))


MADE_ANEW = "import dataclasses, pickle, sys; one = pickle.load(sys.stdin.buffer)"


@pytest.mark.parametrize("one", [mesh_of(2, 4), Layout((("a0",), ()), ("a1",))], ids=str)
def test_what_another_process_is_sent_hashes_as_what_it_makes(one: object) -> None:
    """Names hash otherwise there."""
    hash(one)
    told = f"import shardwright; {MADE_ANEW}; print(hash(one) == hash(dataclasses.replace(one)))"
    where = {**os.environ, "PYTHONHASHSEED": "1"}
    words, sent = [sys.executable, "-c", told], pickle.dumps(one)
    other = subprocess.run(words, input=sent, capture_output=True, check=True, env=where)
    assert other.stdout.strip() == b"True"
