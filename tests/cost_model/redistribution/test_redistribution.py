"""Planned moves lead where they should, and their prices are those of shortest paths."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.redistribution.layout_graph import layouts
from shardwright.cost_model.redistribution.moves import Move, moves
from shardwright.cost_model.redistribution.seconds import fastest_paths, move_seconds
from shardwright.cost_model.redistribution.shortest_paths import ShortestPaths
from shardwright.ir.errors import StrategyError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.checks.spmd import assemble
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import Array, operator_info
from shardwright.runtime.communicator import LocalCommunicator
from tests.extent import first

CUBE = Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 2), MeshAxis("z", 2)))
SQUARE = Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 2)))
CPU = cluster("cpu")
CLUSTERS = [
    CPU,
    cluster("a100-pod:figures=datasheet"),
    cluster("ascend910-racks:figures=datasheet"),
]
Parts = dict[int, Array]


def every_layout(mesh: Mesh, rank: int) -> list[Layout]:
    """Return all layouts, with the axes of a dimension in every order."""
    found = dict.fromkeys(layouts(mesh, rank))
    waiting = list(found)
    while waiting:
        for move in moves(waiting.pop(), mesh):
            if move.target not in found:
                found[move.target] = None
                waiting.append(move.target)
    return list(found)


def spread(whole: Array, layout: Layout, mesh: Mesh) -> Parts:
    """Return what each rank holds; partial values are random terms of the right sum."""
    random = np.random.default_rng(0)
    terms = random.integers(-9, 9, (mesh.extent(layout.partial), *whole.shape)).astype(float)
    terms[-1] += whole - terms.sum(axis=0)
    return {
        rank: terms[mesh.index(rank, layout.partial)][layout.slices(whole.shape, mesh, rank)]
        for rank in range(mesh.size)
    }


def exchanged(move: Move, tensor: TensorType, parts: Parts, mesh: Mesh) -> Parts:
    info = operator_info(move.operator, [tensor], {"axes": move.axes, **dict(move.attributes)})
    assert isinstance(info, Communication)
    return LocalCommunicator(mesh).exchange(info, move.axes, parts)


def assert_lies(parts: Parts, whole: Array, layout: Layout, mesh: Mesh) -> None:
    held = [parts[rank] for rank in range(mesh.size)]
    np.testing.assert_array_equal(assemble(held, layout, whole.shape, mesh), whole)
    if not layout.partial:
        for rank, part in parts.items():
            np.testing.assert_array_equal(part, whole[layout.slices(whole.shape, mesh, rank)])


def test_there_are_as_many_layouts_as_places_for_the_axes() -> None:
    # Each axis splits one of two dimensions, replicates, or is partial; then the orders: where one
    # dimension has two of the axes there are 2, where it has all three there are 6.
    assert len(layouts(CUBE, 2)) == 4**3
    assert len(layouts(CUBE, 2, partial=False)) == 3**3
    assert len(every_layout(CUBE, 2)) == 64 + 2 * (3 * 3) + 2 * 5
    assert len(every_layout(CUBE, 0)) == 2**3


@pytest.mark.parametrize("shape", [(), (8,), (8, 8)])
def test_every_single_move_leads_to_its_target(shape: tuple[int, ...]) -> None:
    tensor = TensorType("float64", shape)
    whole = np.arange(float(tensor.elements)).reshape(shape)
    for source in every_layout(CUBE, len(shape)):
        parts = spread(whole, source, CUBE)
        for move in moves(source, CUBE):
            assert_lies(exchanged(move, tensor, parts, CUBE), whole, move.target, CUBE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mesh", "shape"), [(CUBE, ()), (CUBE, (8,)), (CUBE, (4, 8)), (SQUARE, (2, 4))]
)
def test_every_plan_leads_from_its_source_to_its_target(mesh: Mesh, shape: tuple[int, ...]) -> None:
    tensor = TensorType("float64", shape)
    whole = np.arange(float(tensor.elements)).reshape(shape)
    planner = fastest_paths(mesh, CPU)
    possible = [layout for layout in every_layout(mesh, len(shape)) if fits(layout, shape, mesh)]
    random = np.random.default_rng(0)
    for source in possible:
        begin = spread(whole, source, mesh)
        for position in first(8, random.permutation(len(possible))[:20]):
            parts, target = begin, possible[position]
            for move in planner.plan(tensor, source, target):
                parts = exchanged(move, tensor, parts, mesh)
            assert_lies(parts, whole, target, mesh)


def fits(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> bool:
    counts = layout.counts(mesh)
    return all(size % count == 0 for size, count in zip(shape, counts, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("on", "step"), [*zip(CLUSTERS, (8, 16, 16), strict=True)])
def test_plans_are_chains_of_moves_that_cost_what_the_table_says(on: Cluster, step: int) -> None:
    tensor = TensorType("float32", (8, 8))
    planner, possible = fastest_paths(CUBE, on), every_layout(CUBE, 2)
    table = planner.costs(tensor, possible, possible)
    for i, source in enumerate(possible):
        for j, target in list(enumerate(possible))[i % step :: step]:
            plan = planner.plan(tensor, source, target)
            assert sum(priced(plan, tensor, source, on)) == pytest.approx(table[i, j])
            assert (plan[-1].target if plan else source) == target


@cache
def possible_moves(layout: Layout) -> frozenset[Move]:
    return frozenset(moves(layout, CUBE))


def priced(plan: list[Move], tensor: TensorType, source: Layout, on: Cluster) -> Iterator[float]:
    """Yield the seconds of each move, after checking that it begins where the last one ended."""
    here = source
    for move in plan:
        assert move in possible_moves(here)
        size = np.array([tensor.nbytes / CUBE.extent(here.split_axes)])
        yield float(move_seconds(move.operator, move.axes, size, CUBE, on)[0])
        here = move.target


@pytest.mark.parametrize("on", CLUSTERS, ids=lambda on: on.name)
@pytest.mark.parametrize("shape", [(8, 8), (1024, 4096)])
def test_a_detour_is_never_cheaper(on: Cluster, shape: tuple[int, ...]) -> None:
    tensor, possible = TensorType("float32", shape), every_layout(CUBE, 2)
    seconds = fastest_paths(CUBE, on).costs(tensor, possible, possible)
    assert np.isfinite(seconds).all()
    alignment_penalty = (seconds[:, :, None] + seconds[None, :, :]).min(axis=1)
    assert (seconds <= alignment_penalty * (1 + 1e-12)).all()


def test_only_staying_is_free() -> None:
    tensor, possible = TensorType("float32", (8, 8)), every_layout(CUBE, 2)
    planner = fastest_paths(CUBE, CPU)
    seconds = planner.costs(tensor, possible, possible)
    np.testing.assert_array_equal(seconds == 0, np.eye(len(possible), dtype=bool))
    assert all(planner.plan(tensor, layout, layout) == [] for layout in possible)


@pytest.mark.parametrize("on", CLUSTERS, ids=lambda on: on.name)
def test_more_bytes_never_take_less_time(on: Cluster) -> None:
    planner, possible = fastest_paths(CUBE, on), every_layout(CUBE, 2)
    growing = [TensorType("float32", (8, 8 * 4**i)) for i in range(8)]
    seconds = np.stack([planner.costs(tensor, possible, possible) for tensor in growing])
    assert (np.diff(seconds, axis=0) >= 0).all()
    half = planner.costs(TensorType("float16", (8, 8)), possible, possible)
    assert (half <= seconds[0]).all()


def laid(*dimensions: str, partial: tuple[str, ...] = ()) -> Layout:
    return Layout(tuple(tuple(axes) for axes in dimensions), partial)


@pytest.mark.parametrize(
    ("source", "target", "operators"),
    [
        pytest.param(laid("", "", partial=("y",)), laid("", ""), ["all_reduce"], id="reduce"),
        pytest.param(
            laid("", "", partial=("y",)), laid("y", ""), ["reduce_scatter"], id="reduce-to-slices"
        ),
        pytest.param(laid("y", ""), laid("", ""), ["all_gather"], id="gather"),
        pytest.param(laid("", ""), laid("", "y"), ["local_slice"], id="cut"),
        pytest.param(laid("y", ""), laid("", "y"), ["all_to_all"], id="exchange"),
        pytest.param(laid("yz", ""), laid("zy", ""), ["collective_permute"], id="reorder"),
        pytest.param(laid("", ""), laid("", "", partial=("y",)), ["to_partial"], id="to-partial"),
        pytest.param(
            laid("yz", ""), laid("z", ""), ["collective_permute", "all_gather"], id="gather-major"
        ),
        pytest.param(
            laid("", "", partial=("y", "z")), laid("yz", ""), ["reduce_scatter"], id="two-at-once"
        ),
    ],
)
def test_plans_of_large_tensors_are_the_known_ones(
    source: Layout, target: Layout, operators: list[str]
) -> None:
    planner = fastest_paths(CUBE, cluster("a100-pod:figures=datasheet"))
    plan = planner.plan(TensorType("float32", (4096, 4096)), source, target)
    assert [move.operator for move in plan] == operators


@pytest.mark.long
def test_no_slice_is_empty_on_the_way_and_uneven_ones_are_not_permuted() -> None:
    planner, tensor = fastest_paths(CUBE, CPU), TensorType("float32", (6, 8))
    possible = [layout for layout in every_layout(CUBE, 2) if holds(layout, (6, 8), CUBE)]
    seconds = planner.costs(tensor, possible, possible)
    assert np.isfinite(seconds).all()
    for i, source in enumerate(possible):
        for target in possible[i % 4 :: 4]:
            for move in planner.plan(tensor, source, target):
                assert holds(move.target, (6, 8), CUBE)
                if move.operator == "collective_permute":
                    assert fits(move.target, (6, 8), CUBE)
    impossible = laid("xyz", "")
    assert np.isinf(planner.costs(tensor, [laid("", "")], [impossible])).all()
    with pytest.raises(StrategyError, match="there is no path from the layout"):
        planner.plan(tensor, laid("", ""), impossible)


def holds(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> bool:
    counts = layout.counts(mesh)
    return all(size >= count for size, count in zip(shape, counts, strict=True))


def test_a_layout_of_another_mesh_is_refused() -> None:
    planner = fastest_paths(SQUARE, CPU)
    with pytest.raises(StrategyError) as caught:
        planner.plan(TensorType("float32", (8, 8)), laid("", ""), laid("z", ""))
    assert str(caught.value) == "the layout [z, *] is not one of mesh x=2 x y=2"


FINE = Mesh(tuple(MeshAxis(name, 2) for name in "abcde"))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Layout((("a", "b"), ("c",))), Layout((("a",), ("c", "d")))),
        (Layout(((), ("c",)), ("a", "b")), Layout((("b", "a"), ("c",)))),
        (Layout((("a", "b", "c", "d", "e"), ())), Layout((("a", "c", "b"), ("d", "e")))),
        (Layout(((), ()), ("e",)), Layout(((), ()), ("e",))),
    ],
    ids=str,
)
def test_on_a_fine_mesh_each_path_is_found_by_itself(source: Layout, target: Layout) -> None:
    tensor = TensorType("float64", (32, 8))
    whole = np.arange(float(tensor.elements)).reshape(tensor.shape)
    parts = spread(whole, source, FINE)
    plan = fastest_paths(FINE, CPU).plan(tensor, source, target)
    for move in plan:
        parts = exchanged(move, tensor, parts, FINE)
    assert_lies(parts, whole, target, FINE)
    assert (source == target) == (plan == [])


def test_one_path_costs_what_all_paths_say() -> None:
    tensor, possible = TensorType("float32", (8, 8)), every_layout(CUBE, 2)
    planner = fastest_paths(CUBE, CPU)
    table = planner.costs(tensor, possible, possible)
    for i, j in np.random.default_rng(0).integers(0, len(possible), (60, 2)):
        plan = planner._plan_alone(tensor, possible[i], possible[j])
        cost = sum(priced(plan, tensor, possible[i], CPU))
        assert cost >= table[i, j] * (1 - 1e-9)
        assert (plan[-1].target if plan else possible[i]) == possible[j]


def test_a_search_over_a_fine_mesh_is_refused() -> None:
    with pytest.raises(StrategyError, match="has more than 4 axes, which is too fine"):
        fastest_paths(FINE, CPU).costs(TensorType("float32", (8,)), [], [])


def test_a_finer_mesh_is_never_dearer() -> None:
    tensor = TensorType("float32", (64, 64))
    coarse = Mesh((MeshAxis("x", 4), MeshAxis("z", 2)))
    fine = Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2)))
    possible = every_layout(coarse, 2)

    def refined(layout: Layout) -> Layout:
        splits = tuple(
            tuple(b for a in axes for b in (("x", "y") if a == "x" else (a,)))
            for axes in layout.splits
        )
        partial = [b for a in layout.partial for b in (("x", "y") if a == "x" else (a,))]
        return Layout(splits, fine.ordered(partial))

    there = fastest_paths(coarse, CPU).costs(tensor, possible, possible)
    images = [refined(layout) for layout in possible]
    here = fastest_paths(fine, CPU).costs(tensor, images, images)
    assert (here <= there * (1 + 1e-9)).all()


def test_axes_of_one_rank_do_not_make_a_mesh_fine() -> None:
    ones = tuple(MeshAxis(name, 1) for name in "pqr")
    planner = fastest_paths(Mesh((*SQUARE.axes, *ones)), CPU)
    tensor, possible = TensorType("float32", (8, 8)), every_layout(SQUARE, 2)
    found = planner.costs(tensor, possible, possible)
    expected = fastest_paths(SQUARE, CPU).costs(tensor, possible, possible)
    np.testing.assert_array_equal(found, expected)


def test_paths_do_not_depend_on_what_memory_held_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(array: Array) -> Array:
        return array.copy()

    edges, weights = np.array([[0, 1], [1, 2], [2, 0]]), np.array([1.0, 2.0, 3.0])
    monkeypatch.setattr(np, "empty_like", same)  # freed memory may hold the very same numbers
    found = ShortestPaths(edges, weights, 3).distances(np.arange(3))
    assert found.tolist() == [[0.0, 1.0, 3.0], [5.0, 0.0, 2.0], [3.0, 4.0, 0.0]]
