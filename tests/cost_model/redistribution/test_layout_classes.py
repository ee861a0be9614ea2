"""Ways between classes of layouts are the shortest of those between their layouts."""

import numpy as np
import pytest

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.redistribution.layout_graph import (
    axis_permutations,
    kinds_of,
    layout_graph,
    layouts,
)
from shardwright.cost_model.redistribution.layout_orbits import representative
from shardwright.cost_model.redistribution.seconds import fastest_paths
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.info import operator_info

CUBE = Mesh((MeshAxis("x", 2, 1), MeshAxis("y", 2), MeshAxis("z", 2)))
LEVEL = Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2)))
TWICE = Mesh((MeshAxis("a", 2, 1), MeshAxis("b", 2, 1), MeshAxis("c", 2), MeshAxis("d", 2)))
SHAPES = [(16, 10), (64, 64), (8, 2, 16)]


@pytest.mark.parametrize("mesh", [CUBE, LEVEL], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_nearest_of_a_class_are_those_with_the_shortest_path(
    mesh: Mesh, shape: tuple[int, ...]
) -> None:
    tensor, planner = (
        TensorType("float32", shape),
        fastest_paths(mesh, cluster("a100-pod:figures=datasheet")),
    )
    found = layout_graph(mesh, len(shape)).nodes
    position = {layout: i for i, layout in enumerate(found)}
    each, by_orbit = planner.costs(tensor, [*found], [*found]), planner.orbit_costs
    for i, j in np.random.default_rng(0).integers(0, len(found), (80, 2)):
        images = [position[found[j].renamed(names, mesh)] for names in planner.axis_permutations]
        least = each[i, images].min()
        assert by_orbit(tensor, [found[i]], [found[j]])[0, 0] == pytest.approx(least, rel=1e-12)
        near = {k for k, image in enumerate(images) if each[i, image] <= least * (1 + 1e-9)}
        expected = near if np.isfinite(least) else set()
        assert planner.nearest(tensor, found[i], found[j]) == expected, (found[i], found[j])


@pytest.mark.long
@pytest.mark.parametrize("mesh", [CUBE, LEVEL, TWICE], ids=str)
def test_what_is_planned_costs_what_the_shortest_path_does(mesh: Mesh) -> None:
    tensor, planner = TensorType("float32", (16, 64)), fastest_paths(mesh, cluster("cpu"))
    found = [*layout_graph(mesh, 2).nodes]
    each = planner.costs(tensor, found, found)
    for i, j in np.random.default_rng(1).integers(0, len(found), (80, 2)):
        seconds = planner.path_cost(tensor, found[i], found[j])
        assert seconds == pytest.approx(each[i, j], rel=1e-12)


@pytest.mark.parametrize("mesh", [CUBE, LEVEL, TWICE], ids=str)
def test_one_layout_stands_for_each_class(mesh: Mesh) -> None:
    kinds = kinds_of(mesh)
    every, few = layouts(mesh, 2), layouts(mesh, 2, kinds=kinds)

    def images(layout: Layout) -> set[str]:
        return {
            str(representative(layout.renamed(n, mesh), mesh, kinds))
            for n in axis_permutations(mesh)
        }

    classes = [images(layout) for layout in few]
    assert all(len(names) == 1 for names in classes)
    assert len(set.union(*classes)) == len(few)
    assert set.union(*map(images, every)) == set.union(*classes)


@pytest.mark.parametrize("mesh", [CUBE, LEVEL, TWICE], ids=str)
def test_one_strategy_stands_for_each_class(mesh: Mesh) -> None:
    types = [TensorType("float32", (16, 12)), TensorType("float32", (12, 6))]
    info = operator_info("matmul", types, {})
    few = info.generate_strategies(mesh, kinds_of(mesh))

    def image(axes: dict[str, tuple[str, ...]], names: dict[str, str]) -> frozenset[object]:
        return frozenset((f, mesh.ordered(names[a] for a in held)) for f, held in axes.items())

    seen = [frozenset(image(s.axes, names) for names in axis_permutations(mesh)) for s in few]
    assert len(set(seen)) == len(few)
    identity = {name: name for name in mesh.names}
    every = {image(s.axes, identity) for s in info.generate_strategies(mesh)}
    assert frozenset.union(*seen) == every


def test_a_mesh_of_six_axes_has_few_classes() -> None:
    fine = Mesh(tuple(MeshAxis(name, 2, int(name < "d")) for name in "abcdef"))
    assert len(layouts(fine, 2, partial=False)) == 3**6
    assert len(layouts(fine, 2, False, kinds_of(fine))) == 10**2
    planner = fastest_paths(fine, cluster("h100-pod:figures=datasheet"))
    tensor = TensorType("float32", (64, 64))
    source, target = Layout((("a", "d"), ("e",))), Layout((("b",), ("c", "d", "f")))
    least = planner.orbit_costs(tensor, [source], [target])[0, 0]
    for i in planner.nearest(tensor, source, target):
        image = target.renamed(planner.axis_permutations[i], fine)
        assert planner.path_cost(tensor, source, image) == pytest.approx(least, rel=1e-12)
    assert planner.path_cost(tensor, source, target) >= least
