import numpy as np
import pytest

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis

MESH = Mesh((MeshAxis("x", 2), MeshAxis("y", 4), MeshAxis("z", 3)))


def test_slices_cover_a_tensor_once_per_copy() -> None:
    layout = Layout((("x",), (), ("y",)))
    seen = np.zeros((2, 5, 8), int)
    for rank in range(MESH.size):
        seen[layout.slices(seen.shape, MESH, rank)] += 1
    assert (seen == 3).all()


def test_the_order_of_axes_is_part_of_a_layout() -> None:
    whole = np.arange(8)
    major_x, major_y = Layout((("x", "y"),)), Layout((("y", "x"),))
    rank = MESH.group(0, ["x", "y"])[5]  # x = 1, y = 1
    assert whole[major_x.slices((8,), MESH, rank)] == [5]
    assert whole[major_y.slices((8,), MESH, rank)] == [3]


def test_tensor_maps_count_axes_from_the_right() -> None:
    layout = Layout((("x",), (), ("z", "y")))
    assert layout.tensor_map(MESH) == (2, -1, (0, 1))
    assert layout.counts(MESH) == (2, 1, 12)


def test_what_leaves_a_slice_empty_is_refused() -> None:
    with pytest.raises(IRError) as error:
        Layout((("y",),)).slice_shape((3,), MESH)
    assert str(error.value) == "a dimension of size 3 cannot be split 4 ways"
    with pytest.raises(IRError) as error:
        Layout((("y",),)).slice_shape((8, 8), MESH)
    assert str(error.value) == "a layout has 1 dimensions, the tensor (8, 8) has 2"


@pytest.mark.parametrize("size", [8, 9, 11, 15, 50257])
def test_uneven_slices_differ_by_one_and_cover_all(size: int) -> None:
    layout = Layout((("x", "y"),))
    ranks = range(MESH.size)
    parts = {(p.start, p.stop) for rank in ranks for p in layout.slices((size,), MESH, rank)}
    lengths = {stop - start for start, stop in parts}
    assert max(lengths) - min(lengths) <= 1
    assert max(lengths) == layout.slice_shape((size,), MESH)[0]
    assert sorted(i for part in parts for i in range(*part)) == list(range(size))
    assert layout.is_even((size,), MESH) == (len(lengths) == 1)


def test_partial_axes() -> None:
    layout = Layout((("x",), ())).with_partial(("y",), "max")
    assert str(layout) == "[x, *] +y:max"
    assert layout.reduced() == Layout((("x",), ()))
    assert layout.with_partial(()) == layout.reduced()
    assert Layout.replicated(2) == Layout(((), ()))


def test_strategies_drop_what_is_not_split() -> None:
    strategy = Strategy.of({"m": ("x",), "k": (), "n": ("y", "z")})
    assert strategy.axes == {"m": ("x",), "n": ("y", "z")}
    assert strategy.of_factors(["n", "k", "m"]) == ("y", "z", "x")
