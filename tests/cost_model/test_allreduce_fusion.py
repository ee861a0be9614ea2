"""The fusion algorithms give the ids that MindSpore's own tests assert."""

import json
from collections import deque
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import operators
from shardwright.cost_model.mindspore.allreduce_fusion import (
    LOSS,
    FusionGraph,
    FusionSettings,
    fusion_graph,
    fusion_ids,
    fusion_ids_by_size,
)
from shardwright.ir.errors import PassError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder

assert operators.__all__, "importing the package registers the operators"

DATA = Path(__file__).parents[1] / "data" / "mindspore_fusion.json"
PUBLISHED = Path(__file__).parents[3] / "shared" / "vectors" / "mindspore_fusion.json"
VECTORS = json.loads(DATA.read_text())["vectors"]
MESH = Mesh((MeshAxis("data", 4),))
X = 32 * 128 * 4  # bytes of the slice of an activation
W = 128 * 128 * 4
BY_COMPUTATION = FusionSettings(algorithm=1, times=2, tail_percent=0.5)


def value(name: str, dtype: str, shape: tuple[int, ...], *splits: tuple[str, ...]) -> Value:
    rest = ((),) * (len(shape) - len(splits))
    return Value(name, TensorType(dtype, shape), Layout(splits + rest))


def two_branches(depths: dict[str, int], mirrors: bool = False) -> Graph:
    """Build branches of dense layers on one input, summed, with a loss."""
    build = Builder(MESH)
    x = build.input(value("x", "float32", (128, 128), ("data",)))
    labels = build.input(value("labels", "int32", (128,), ("data",)))
    ends = []
    for branch, depth in depths.items():
        h = x
        for layer in range(1, depth + 1):
            w = build.parameter(value(f"{branch}.fc{layer}", "float32", (128, 128)))
            if mirrors:
                w = build.emit("mirror", w, axes=("data",))
            h = build.emit("matmul", h, w, name=f"{branch}.dense{layer}")
        ends.append(h)
    total = build.emit("add", *ends)
    loss = build.emit("sparse_softmax_cross_entropy", total, labels)
    return build.graph("branches", (loss.name,))


def depths_of(vector: dict) -> dict[str, int]:
    return {name: int(text.split()[0]) for name, text in vector["branches"].items()}


def settings_of(vector: dict) -> FusionSettings:
    names = ("algorithm", "times", "tail_percent")
    return FusionSettings(**{name: vector[name] for name in names if name in vector})


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_published_fusion_ids(vector, mirrors):
    graph = fusion_graph(two_branches(depths_of(vector), mirrors))
    assert fusion_ids(graph, settings_of(vector)) == vector["expected"]


def test_our_copy_is_what_was_published():
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is absent")
    assert json.loads(PUBLISHED.read_text()) == json.loads(DATA.read_text())


# From a program


def test_distances_are_what_is_computed_between():
    graph = fusion_graph(two_branches({"a": 2, "b": 1}))
    head = (X + 128) + 2 * X  # loss and sum
    assert graph.depend == {
        LOSS: 0,
        "b.dense1": head + X + W,
        "a.dense2": head + X + W,
        "a.dense1": head + 2 * (X + W),
    }
    assert graph.latest == head + 2 * (X + W)
    assert graph.parameters["a.dense2"] == {"a.fc2": 128 * 128}


def test_parameters_are_followed_through_casts_and_moves():
    build = Builder(MESH)
    x = build.input(value("x", "float16", (8, 16), ("data",)))
    w = build.parameter(value("w", "float32", (16, 4), ("data",)))
    half = build.emit("cast", w, dtype="float16")
    whole = build.emit("all_gather", half, axes=("data",), dimension=0)
    y = build.emit("matmul", x, whole, name="y")
    graph = fusion_graph(build.graph("g", (y.name,)))
    assert graph.parameters == {"y": {"w": 16 * 4 // 4}}
    assert list(graph.edges) == [(LOSS, "y", 2 * (2 * 16 + 16 * 4))]


def test_a_contracted_product_counts_its_result():
    build = Builder(MESH)
    x = build.input(value("x", "float32", (8, 16), (), ("data",)))
    w = build.parameter(value("w", "float32", (16, 4), ("data",)))
    y = build.emit("matmul", x, w, name="y")
    z = build.emit("all_reduce", y, axes=("data",))
    graph = fusion_graph(build.graph("g", (z.name,)))
    assert list(graph.edges) == [(LOSS, "y", 4 * (8 * 4 + 4 * 4 + 8 * 4))]


def test_what_the_loss_does_not_need_is_ignored():
    build = Builder()
    x = build.input(Value("x", TensorType("float32", (4,))))
    w = build.parameter(Value("w", TensorType("float32", (4,))))
    frozen = build.parameter(Value("frozen", TensorType("float32", (4,))), {"trainable": False})
    y = build.emit("mul", x, w, name="y")
    z = build.emit("mul", y, frozen)
    build.emit("mul", z, w, name="after")
    graph = fusion_graph(build.graph("g", (z.name,)))
    assert list(graph.edges) == [(LOSS, "y", 2 * 32)]
    assert graph.parameters == {"y": {"w": 4}}


# Depend


def propagated(graph: FusionGraph) -> dict[str, float]:
    """Restate how MindSpore adds up distances: edge by edge, to all that follow."""
    depend = dict.fromkeys([LOSS, *graph.parameters], 0.0)
    linked: dict[str, list[str]] = {name: [] for name in depend}
    queue, seen = deque([LOSS]), {LOSS}
    while queue:
        near = queue.popleft()
        for start, far, distance in graph.edges:
            if start != near:
                continue
            if far not in seen:
                seen.add(far)
                queue.append(far)
            linked[near].append(far)
            more = depend[near] + distance
            depend[far] += more
            following = deque(linked[far])
            while following:
                name = following.popleft()
                depend[name] += more
                following.extend(linked[name])
    return depend


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=16), st.randoms())
def test_depend_is_what_propagation_leads_to(pairs, random):
    names = [LOSS, *"abcdef"]
    edges = [(names[a], names[b], float(random.randint(1, 9))) for a, b in pairs if a < b]
    reachable = {LOSS}
    for name in names:
        reachable |= {far for near, far, _ in edges if near == name and near in reachable}
    edges = [edge for edge in edges if edge[0] in reachable]
    graph = FusionGraph({name: {} for name in names[1:]}, edges)
    assert graph.depend == propagated(graph)


# Algorithms


def chain(*distances: float, elements: int = 10) -> FusionGraph:
    """Return operators in a row, the first next to the loss."""
    names = [LOSS, *(f"n{i}" for i in range(len(distances)))]
    edges = [(a, b, d) for (a, b), d in zip(pairwise(names), distances, strict=True)]
    return FusionGraph({name: {f"w{name[1:]}": elements} for name in names[1:]}, edges)


def test_times_is_the_number_of_groups():
    settings = FusionSettings(algorithm=1, times=3, tail_percent=1 / 3)
    assert fusion_ids(chain(*[1] * 6), settings) == {
        "w5": 1,
        "w4": 1,
        "w3": 2,
        "w2": 2,
        "w1": 3,
        "w0": 3,
    }


def test_a_parameter_of_two_operators_is_reduced_with_the_later_one():
    graph = FusionGraph(
        {"near": {"shared": 1}, "far": {"shared": 1}}, [(LOSS, "near", 1), ("near", "far", 9)]
    )
    assert fusion_ids(graph, BY_COMPUTATION) == {"shared": 1}
    by_time = FusionSettings(2, tail_time=2, inherent_time=1, bandwidth=1, computation_parameter=1)
    assert fusion_ids(graph, by_time) == {"shared": 1}


@pytest.mark.parametrize(
    ("computation_parameter", "ids"),
    [
        # The tail holds 20 elements, two operators; its last takes 1 s to compute. In that time
        # nothing can be reduced beyond what every all-reduce takes, so no second bound is set.
        (1, [2, 2, 2, 2, 1, 1]),
        # In 2 s, 10 elements can; but the latest operator, counted anew, has them already.
        (2, [3, 3, 3, 3, 1, 1]),
        # In 4 s, 30 can: the latest again, and two more.
        (4, [3, 3, 2, 2, 1, 1]),
    ],
)
def test_groups_hide_behind_the_computation_after_them(computation_parameter, ids):
    settings = FusionSettings(
        algorithm=2,
        tail_time=3,
        inherent_time=1,
        bandwidth=0.1,
        computation_parameter=computation_parameter,
    )
    found = fusion_ids(chain(*[1] * 6), settings)
    assert [found[f"w{i}"] for i in range(6)] == ids


def test_nothing_is_fused_without_parameters():
    assert fusion_ids(FusionGraph({}, []), BY_COMPUTATION) == {}
    by_time = FusionSettings(2, tail_time=2, inherent_time=1)
    assert fusion_ids(FusionGraph({}, []), by_time) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": 3}, "all-reduce fusion has no algorithm 3, only 0, 1 and 2"),
        (
            {"algorithm": 1, "times": 1},
            "`times` of all-reduce fusion is 1, it must be at least 2",
        ),
        (
            {"algorithm": 1, "times": 2, "tail_percent": 1.0},
            "`tail_percent` of all-reduce fusion is 1.0, it must be at least 0 and less than 1",
        ),
        (
            {"algorithm": 2},
            "`tail_time` of all-reduce fusion is 0.1, it must be greater than `inherent_time`, 0.1",
        ),
        (
            {"algorithm": 2, "tail_time": 1, "bandwidth": 0},
            "`bandwidth` of all-reduce fusion is 0, it must be greater than 0",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(PassError) as error:
        FusionSettings(**settings)
    assert str(error.value) == message


# By size

MEGABYTE = 1 << 18


def test_groups_fill_up_to_the_size():
    sizes = {"a": MEGABYTE, "b": MEGABYTE // 2, "c": MEGABYTE // 2, "d": MEGABYTE}
    assert fusion_ids_by_size(sizes, megabytes=2) == {"a": 1, "b": 1, "c": 2, "d": 2}


def test_the_opener_of_a_later_group_is_not_counted():
    sizes = dict.fromkeys("abcdef", MEGABYTE)
    assert fusion_ids_by_size(sizes, megabytes=2) == {
        "a": 1,
        "b": 2,
        "c": 2,
        "d": 3,
        "e": 3,
        "f": 4,
    }


def test_the_default_size_is_64_megabytes():
    assert fusion_ids_by_size({"a": 63 * MEGABYTE, "b": MEGABYTE - 1}) == {"a": 1, "b": 1}
    assert fusion_ids_by_size({"a": 63 * MEGABYTE, "b": MEGABYTE}) == {"a": 1, "b": 2}
