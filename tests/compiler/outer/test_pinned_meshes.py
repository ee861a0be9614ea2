"""Meshes for the slices that a user gives: what axes can make."""

from itertools import product

from shardwright.compiler.outer.pinned_meshes import can_slice, in_order, shapes_of


def assigned(mesh, slices):
    """Return whether some assignment of axes to factors makes the slices, by trying all."""
    for owners in product(range(len(slices) + 1), repeat=len(mesh)):
        sizes = [1] * (len(slices) + 1)
        for owner, size in zip(owners, mesh, strict=True):
            sizes[owner] *= size
        if tuple(sizes[:-1]) == slices:
            return True
    return False


def test_axes_make_slices_where_trying_all_finds_them():
    meshes = [shape for levels in ((4, 8), (3, 8), (2, 6)) for shape in shapes_of(levels)]
    seen = set()
    for mesh in meshes:
        for slices in product((1, 2, 3, 4, 6, 8), repeat=3):
            found = can_slice(mesh, slices)
            assert found == assigned(mesh, slices), (mesh, slices)
            assert found or not in_order(mesh, slices)
            seen.add(found)
    assert seen == {False, True}
