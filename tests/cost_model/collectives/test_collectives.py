from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_model.cluster import Cluster, Device, Level, cluster, preset_names
from shardwright.cost_model.collectives import (
    KINDS,
    collective_model,
    collective_seconds,
    collective_seconds_array,
)
from shardwright.cost_model.efficiency.attained import LinkEfficiency
from shardwright.cost_model.efficiency.figures import Rate
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import MeshAxis

CARD = Device(
    name="card",
    peak_flops={"float32": 1e12},
    memory_bandwidth=1e11,
    memory_bytes=1 << 30,
    launch_seconds=1e-6,
)
LAB = Cluster(
    name="lab",
    device=CARD,
    levels=(
        Level(name="node", size=8, bandwidth=1e11, latency=1e-6),
        Level(name="row", size=64, bandwidth=1e10, latency=5e-6),
        Level(name="hall", size=64, bandwidth=1e9, latency=2e-5),
    ),
)
INNER = MeshAxis("inner", 8, 0)
OUTER = MeshAxis("outer", 4, 1)
LARGE = 1e9

FIGURE = {"tag": "assumed", "source": "a test"}

kinds = st.sampled_from(sorted(KINDS))
several = [found for found in map(cluster, preset_names()) if len(found.levels) > 1]
clusters = st.sampled_from([LAB, *several])
sizes = st.integers(0, 10**10)
axis_sizes = st.integers(1, 128)
levels = st.integers(0, 1)


def seconds(kind, nbytes, axes, on=LAB):
    return collective_seconds(kind, nbytes, axes, on).seconds


def not_dearer(left, right):
    """Whether `left <= right`, but for the rounding of sums taken in another order."""
    return left <= right * (1 + 1e-12)


@pytest.mark.parametrize(
    ("kind", "algorithm", "latency", "sent"),
    [
        # Of 8 ranks, each sends so many times the counted bytes.
        ("all_reduce", "ring", 14, 2 * 7 / 8),
        ("reduce_scatter", "ring", 7, 7 / 8),
        ("all_gather", "ring", 7, 7 / 8),
        ("broadcast", "tree", 3, 1),
        ("all_to_all", "pairwise", 7, 7 / 8),
        ("permute", "direct", 1, 1),
        ("send", "direct", 1, 1),
    ],
)
def test_large_buffers_in_one_level(kind, algorithm, latency, sent):
    cost = collective_seconds(kind, LARGE, [INNER], LAB)
    assert cost.algorithm == algorithm
    assert cost.seconds == pytest.approx(latency * 1e-6 + sent * LARGE / 1e11)


def test_small_buffers_go_by_tree():
    cost = collective_seconds("all_reduce", 8, [INNER], LAB)
    assert cost.algorithm == "tree"
    assert cost.seconds == pytest.approx(2 * log2(8) * 1e-6 + 2 * 8 / 1e11)


def test_hierarchical_all_reduce_by_hand():
    cost = collective_seconds("all_reduce", LARGE, [OUTER, INNER], LAB)
    inside = 14e-6 + 2 * 7 / 8 * LARGE / 1e11
    across = 2 * 3 * 5e-6 + 2 * 3 / 4 * (LARGE / 8) / 1e10
    assert cost.algorithm == "hierarchical"
    assert cost.seconds == pytest.approx(inside + across)


def test_hierarchical_beats_a_flat_ring_for_large_buffers():
    ranks = 8 * 4
    flat_ring = 2 * (ranks - 1) * 5e-6 + 2 * (ranks - 1) / ranks * LARGE / 1e10
    assert seconds("all_reduce", LARGE, [OUTER, INNER]) < flat_ring / 4


def test_three_levels():
    axes = [MeshAxis("hall", 2, 2), OUTER, INNER]
    across = 2 * 1 * 2e-5 + 2 * 1 / 2 * (LARGE / 32) / 1e9
    expected = seconds("all_reduce", LARGE, [OUTER, INNER]) + across
    assert seconds("all_reduce", LARGE, axes) == pytest.approx(expected)


def test_all_to_all_counts_the_bytes_that_cross():
    cost = collective_seconds("all_to_all", LARGE, [OUTER, INNER], LAB)
    latency = 7 * 1e-6 + 24 * 5e-6
    assert cost.algorithm == "pairwise"
    assert cost.seconds == pytest.approx(latency + 7 / 32 * LARGE / 1e11 + 24 / 32 * LARGE / 1e10)


def test_a_point_to_point_message_takes_the_slowest_link():
    expected = 5e-6 + LARGE / 1e10
    assert seconds("permute", LARGE, [INNER, OUTER]) == pytest.approx(expected)


def test_axes_of_one_level_act_as_one():
    halves = [MeshAxis("a", 2, 0), MeshAxis("b", 4, 0)]
    for kind in KINDS:
        assert collective_model(kind, halves, LAB) == collective_model(kind, [INNER], LAB)


@given(kinds, sizes, levels)
def test_a_group_of_one_is_free(kind, nbytes, level):
    for axes in ([], [MeshAxis("one", 1, level)]):
        assert collective_seconds(kind, nbytes, axes, LAB) == (0.0, "none")


@given(kinds, axis_sizes, axis_sizes)
def test_no_bytes_are_free(kind, inner, outer):
    assert seconds(kind, 0, [MeshAxis("i", inner, 0), MeshAxis("o", outer, 1)]) == 0


@given(kinds, clusters, axis_sizes, axis_sizes, sizes, sizes)
def test_monotone_in_bytes(kind, on, inner, outer, fewer, more):
    axes = [MeshAxis("i", inner, 0), MeshAxis("o", outer, len(on.levels) - 1)]
    fewer, more = sorted((fewer, more))
    assert not_dearer(seconds(kind, fewer, axes, on), seconds(kind, more, axes, on))


# Growing an inner axis may make a group cheaper where links outside are slow: the same bytes are
# then shared out over more devices before they leave the node.
@given(kinds, clusters, axis_sizes, axis_sizes, axis_sizes, sizes)
def test_monotone_in_the_outermost_size(kind, on, inner, fewer, more, nbytes):
    fewer, more = sorted((fewer, more))
    inside = [MeshAxis("i", inner, 0)] if len(on.levels) > 1 else []
    small, large = ([*inside, MeshAxis("o", n, len(on.levels) - 1)] for n in (fewer, more))
    assert not_dearer(seconds(kind, nbytes, small, on), seconds(kind, nbytes, large, on))


@given(clusters, axis_sizes, axis_sizes, sizes)
def test_reduce_scatter_is_not_dearer_than_all_reduce(on, inner, outer, nbytes):
    axes = [MeshAxis("i", inner, 0), MeshAxis("o", outer, 1)]
    scatter = seconds("reduce_scatter", nbytes, axes, on)
    assert not_dearer(scatter, seconds("all_reduce", nbytes, axes, on))
    assert scatter == seconds("all_gather", nbytes, axes, on)


@given(clusters, axis_sizes, axis_sizes, st.integers(10**11, 10**13))
def test_large_all_reduce_is_reduce_scatter_and_all_gather(on, inner, outer, nbytes):
    axes = [MeshAxis("i", inner, 0), MeshAxis("o", outer, 1)]
    halves = seconds("reduce_scatter", nbytes, axes, on) + seconds("all_gather", nbytes, axes, on)
    assert halves == pytest.approx(seconds("all_reduce", nbytes, axes, on), rel=0.03)


@given(clusters, axis_sizes, axis_sizes, levels, levels, sizes)
def test_one_all_reduce_over_two_axes_is_not_dearer_than_two(on, a, b, level_a, level_b, nbytes):
    first, second = MeshAxis("a", a, level_a), MeshAxis("b", b, level_b)
    joint = seconds("all_reduce", nbytes, [first, second], on)
    apart = seconds("all_reduce", nbytes, [first], on) + seconds("all_reduce", nbytes, [second], on)
    assert not_dearer(joint, apart)


@given(kinds, clusters, axis_sizes, axis_sizes, st.lists(sizes, max_size=20))
def test_arrays_cost_what_their_elements_cost(kind, on, inner, outer, many):
    axes = [MeshAxis("i", inner, 0), MeshAxis("o", outer, 1)]
    at_once = collective_seconds_array(kind, np.array(many, dtype=np.int64), axes, on)
    assert at_once.tolist() == [seconds(kind, nbytes, axes, on) for nbytes in many]


@given(kinds, clusters, axis_sizes, axis_sizes)
def test_every_algorithm_offered_is_a_trade(kind, on, inner, outer):
    model = collective_model(kind, [MeshAxis("i", inner, 0), MeshAxis("o", outer, 1)], on)
    latencies = [algorithm.latency_seconds for algorithm in model]
    slopes = [algorithm.seconds_per_byte for algorithm in model]
    assert latencies == sorted(set(latencies))
    assert slopes == sorted(set(slopes), reverse=True)


def test_unknown_collective():
    with pytest.raises(ClusterError) as caught:
        collective_seconds("allreduce", 1, [INNER], LAB)
    assert str(caught.value) == (
        "no collective is called `allreduce`; use all_reduce, reduce_scatter, all_gather, "
        "broadcast, all_to_all, permute, send"
    )


def test_axis_outside_the_cluster():
    with pytest.raises(ClusterError) as caught:
        collective_seconds("send", 1, [MeshAxis("far", 2, 3)], LAB)
    assert str(caught.value) == "mesh axis `far` is of level 3, but the cluster has levels 0 to 2"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rings_of_several_but_not_all_devices_of_a_node_attain_less_between_nodes(kind):
    row = LAB.levels[1]
    found = LinkEfficiency(bandwidth=Rate(value=1, **FIGURE), several=Rate(value=0.5, **FIGURE))
    row = row.model_copy(update={"efficiency": found})
    half = row.model_copy(update={"bandwidth": row.bandwidth / 2, "efficiency": None})
    levels = (LAB.levels[0], row), (LAB.levels[0], half)
    shared, slow = (LAB.model_copy(update={"levels": both}) for both in levels)
    is_slowed = kind in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    for inside in (1, 2, 4, 8):
        group = [MeshAxis("inner", inside, 0), OUTER]
        slowed = is_slowed and inside in (2, 4)
        assert seconds(kind, LARGE, group, shared) == seconds(
            kind, LARGE, group, slow if slowed else LAB
        )
