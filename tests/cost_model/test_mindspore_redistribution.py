import math
from itertools import product

import pytest

from shardwright.cost_model.mindspore.costs import MindSporeCosts, mesh_of_binary_axes
from shardwright.cost_model.mindspore.redistribution import (
    Piece,
    RedistributionVolume,
    common_pieces,
    infer_operators,
    redistribution_volume,
)
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType

MESH = mesh_of_binary_axes(16)
SMALL = mesh_of_binary_axes(8)


def layout(text: str) -> Layout:
    """Read ``01,,2``: axes 0 and 1 split the first dimension, 2 the third."""
    return Layout(tuple(tuple(f"d{digit}" for digit in dim) for dim in text.split(",")))


def kinds(shape: tuple[int, ...], source: str, target: str, mesh: Mesh = MESH):
    pieces = common_pieces(shape, layout(source), layout(target), mesh)
    return [(o.kind, o.piece, o.devices) for o in infer_operators(pieces, mesh)]


# Published: what MindSpore's own tests assert. On 32 devices, a device matrix of 8, 4 is the binary
# axes 012, 34.


@pytest.mark.parametrize(
    ("shape", "source", "target", "expected"),
    [
        ((512, 1024), "012,34", "0,1234", "2 0 0, 256 12 -, 4 34 12, 256 - 34"),
        ((512, 1024), "012,34", "1234,0", "2 0 1, 2 1 2, 128 2 34, 1024 34 0"),
        ((512, 1024), "012,", "0,1", "2 0 0, 2 1 -, 128 2 -, 1024 - 1"),
    ],
)
def test_published_common_terms(shape, source, target, expected):
    pieces = common_pieces(shape, layout(source), layout(target), mesh_of_binary_axes(32))
    found = [
        f"{p.size} {''.join(p.source) or '-'} {''.join(p.target) or '-'}".replace("d", "")
        for p in pieces
    ]
    assert ", ".join(found) == expected


def test_published_split_gather_split():
    assert kinds((512, 1024), "0,3", "01,2") == [
        ("split", 1, 2),
        ("all_gather", 2, 2),
        ("split", 2, 2),
    ]


def test_published_exchange():
    assert kinds((512, 1024), "0123,", ",0123") == [("all_to_all", 0, 16)]


# Inference


def test_equal_layouts_need_nothing():
    assert kinds((16, 16), "01,2", "01,2") == []


def test_neighbouring_axes_move_as_one():
    assert kinds((16, 16), "0123,", ",") == [("all_gather", 0, 16)]
    assert kinds((16, 16), ",", ",0123") == [("split", 1, 16)]


def test_a_run_is_cut_where_the_other_layout_cuts():
    assert kinds((16, 16), "0123,", "01,") == [("all_gather", 1, 4)]
    assert kinds((16, 16), "0123,", "01,23") == [("all_to_all", 1, 4)]


def test_swapped_axes_are_gathered_by_force():
    assert kinds((16, 16), "01,23", "23,01") == [
        ("all_gather", 0, 4),
        ("all_to_all", 1, 4),
        ("split", 1, 4),
    ]


def test_pieces_are_runs_of_either_layout():
    assert common_pieces((8, 1, 6), layout("01,,"), layout("0,,1"), MESH) == (
        Piece(2, ("d0",), ("d0",)),
        Piece(4, ("d1",), ()),
        Piece(6, (), ("d1",)),
    )


def apply(pieces, operators, mesh):
    """Follow which axes split each piece."""
    held = [piece.source for piece in pieces]
    for operator in operators:
        if operator.kind == "split":
            assert held[operator.piece] == ()
            held[operator.piece] = pieces[operator.piece].target
        elif operator.kind == "all_gather":
            held[operator.piece] = ()
        else:
            axes, held[operator.piece] = held[operator.piece], ()
            (to,) = (i for i, piece in enumerate(pieces) if piece.target == axes)
            assert held[to] == ()
            held[to] = axes
        used = [axis for axes in held for axis in axes]
        assert len(set(used)) == len(used)
        assert operator.devices > 1
    return held


def layouts_of(rank: int, mesh: Mesh):
    """Give every layout, the axes of a dimension in mesh order."""
    for places in product(range(rank + 1), repeat=len(mesh.axes)):
        yield Layout(
            tuple(
                tuple(name for name, at in zip(mesh.names, places, strict=True) if at == d)
                for d in range(rank)
            )
        )


def test_operators_lead_from_every_layout_to_every_other():
    every = list(layouts_of(3, SMALL))
    assert len(every) == 64
    for source, target in product(every, every):
        pieces = common_pieces((8, 16, 24), source, target, SMALL)
        operators = infer_operators(pieces, SMALL)
        assert apply(pieces, operators, SMALL) == [piece.target for piece in pieces]
        assert (not operators) == (source == target)


# Costs

TENSOR = TensorType("float32", (16, 32))
WHOLE = 16 * 32 * 4


def volume(source: str, target: str, mesh: Mesh = SMALL, tensor: TensorType = TENSOR):
    return redistribution_volume(tensor, layout(source), layout(target), mesh)


def test_volumes_of_single_operators():
    part = WHOLE / 8
    assert volume(",", "012,") == RedistributionVolume(WHOLE, 0, 0)
    assert volume("012,", ",") == RedistributionVolume(2 * part, 4 * part, part / 2)
    assert volume(",012", ",") == RedistributionVolume((2 + 16) * part, 4 * part, part / 2)
    assert volume("012,", ",012") == RedistributionVolume(2 * part, 2 * part, 2 * part)
    assert volume("012,", "012,") == RedistributionVolume()


def test_slices_that_take_another_shape_cost_more():
    # Two pieces of the first dimension: the slice is reshaped before and after.
    part = WHOLE / 4
    assert volume("01,", "0,") == RedistributionVolume((2 + 4 + 2) * part, part, part / 2)


def test_booleans_do_not_travel():
    mask = TensorType("bool", (16, 32))
    assert volume("012,", ",", tensor=mask).forward == math.inf
    assert volume(",", "012,", tensor=mask) == RedistributionVolume(16 * 32, 0, 0)


def test_what_has_no_common_terms_is_gathered_whole():
    mesh = Mesh((MeshAxis("d0", 2), MeshAxis("d1", 3)))
    tensor = TensorType("float32", (12,))
    assert common_pieces((12,), layout("01"), layout("10"), mesh) is None
    gather, split = volume("01", "", mesh, tensor), volume("", "10", mesh, tensor)
    found = volume("01", "10", mesh, tensor)
    assert found.computation == gather.computation + split.computation
    assert (found.forward, found.backward) == (gather.forward, gather.backward)


def test_the_cost_of_an_edge():
    costs = MindSporeCosts(alpha=2, beta=10, threshold=200, constant=1000, bias=5)
    part = WHOLE // 8
    source, target = layout("012,"), layout(",")
    cost = costs.redistribution_cost(TENSOR, source, target, SMALL)
    # 1,024 bytes forward are above the threshold, 128 backward below it.
    assert cost == 2 * 2 * part + 10 * (4 * part + 5 + 1000)


@pytest.mark.parametrize("axes", [("d2",), ("d1", "d2")])
def test_partial_axes_do_not_matter(axes):
    costs = MindSporeCosts()
    source = layout("0,").with_partial(axes)
    assert costs.redistribution_cost(TENSOR, source, layout("0,"), SMALL) == 0
