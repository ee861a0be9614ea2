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


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(IRError) as error:
        Layout((("y",),)).slice_shape((6,), MESH)
    assert str(error.value) == "a dimension of size 6 cannot be split 4 ways"
    with pytest.raises(IRError) as error:
        Layout((("y",),)).slice_shape((8, 8), MESH)
    assert str(error.value) == "a layout has 1 dimensions, the tensor (8, 8) has 2"


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
