"""Collectives whose messages were measured by their bytes: prices, bounds, packing, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost_model.cluster import Cluster, Device, Level
from shardwright.cost_model.collectives import (
    KINDS,
    collective_seconds,
    collective_seconds_array,
    least_seconds_per_byte,
)
from shardwright.cost_model.redistribution.seconds import fastest_paths
from shardwright.cost_model.time_profile import TimeProfile
from shardwright.ir.errors import ClusterError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType

FIGURE = {"tag": "assumed", "source": "a test"}
CARD = Device(
    name="card",
    peak_flops={"float32": 1e12},
    memory_bandwidth=1e11,
    memory_bytes=1 << 30,
    launch_seconds=1e-6,
)
STEP = [[1024, 1e-5], [8192, 1.2e-5], [8193, 2e-5], [65536, 8e-5]]
PACKING = [[1024, 1e-6], [65536, 4e-6]]
KINDS_OF_POINTS = sorted(set(KINDS) - {"send"})


def measured(kind, messages=STEP, packing=None, bandwidth=1e9, size=16):
    """Return a cluster with figures of one kind in its inner level."""
    rate = {name: {**FIGURE, "value": v} for name, v in (("latency", 9e-6), ("bandwidth", 1e9))}
    rate["bandwidth"]["value"] = bandwidth
    for name, points in (("messages", messages), ("packing", packing)):
        if points is not None:
            rate[name] = {**FIGURE, "points": points}
    links = {"bandwidth": {**FIGURE, "value": 1.0}, "collectives": {kind: rate}}
    inner = {"name": "box", "size": size, "bandwidth": 1e10, "latency": 2e-6, "efficiency": links}
    outer = Level(name="room", size=2, bandwidth=1e9, latency=1e-5)
    levels = [Level.model_validate(inner), outer]
    return Cluster.model_validate({"name": "lab", "device": CARD, "levels": levels})


@st.composite
def curves(draw):
    """Points with rising bytes, whose seconds do not fall."""
    count = draw(st.integers(1, 6))
    sizes = sorted(draw(st.sets(st.integers(1, 10**7), min_size=count, max_size=count)))
    seconds = sorted(draw(st.lists(st.floats(1e-7, 1e-2), min_size=count, max_size=count)))
    return [list(point) for point in zip(map(float, sizes), seconds, strict=True)]


def test_messages_take_what_was_measured_and_between_two_sizes_the_line():
    on, pair = measured("all_gather"), (MeshAxis("x", 2),)

    def seconds(message):
        return collective_seconds("all_gather", 2 * message, pair, on).seconds

    assert [seconds(size) for size, _ in STEP] == pytest.approx([s for _, s in STEP])
    assert seconds(512) == pytest.approx(1e-5)
    assert seconds((1024 + 8192) / 2) == pytest.approx(1.1e-5)
    assert seconds(10 * 65536) == pytest.approx(8e-4)
    assert seconds(0) == 0.0
    four = collective_seconds("all_gather", 4 * 8192, (MeshAxis("x", 4),), on).seconds
    assert four == pytest.approx(3 * 1.2e-5)


@given(st.sampled_from(KINDS_OF_POINTS), curves(), st.sampled_from([2, 3, 16]))
def test_bounds_are_nowhere_above_the_price(kind, points, ranks):
    on, sizes = measured(kind, points), np.geomspace(1, 1e9, 200)
    corners = [size * ranks * k for size, _ in points for k in (0.5, 1 / ranks, 1, 2)]
    sizes = np.concatenate([sizes, corners])
    for axes in ((MeshAxis("x", ranks),), (MeshAxis("x", ranks), MeshAxis("y", 2, 1))):
        prices = collective_seconds_array(kind, sizes, axes, on)
        slope = least_seconds_per_byte(kind, axes, on)
        assert (prices >= slope * sizes * (1 - 1e-9)).all()
        less = collective_seconds_array(kind, sizes, axes, on.without_latencies())
        assert (prices >= less * (1 - 1e-9)).all()
        alone = [collective_seconds(kind, size, axes, on).seconds for size in sizes]
        assert alone == pytest.approx(prices)
        rising = collective_seconds_array(kind, np.sort(sizes), axes, on)
        assert (np.diff(rising) >= -1e-9 * rising[1:]).all()


def test_the_bound_of_a_pair_is_attained():
    on, pair = measured("all_reduce"), (MeshAxis("x", 2),)
    slope = least_seconds_per_byte("all_reduce", pair, on)
    most = collective_seconds("all_reduce", 2 * 65536, pair, on).seconds / (2 * 65536)
    assert slope == pytest.approx(min(most, 1.2e-5 / 8192))


def test_parts_of_a_later_dimension_are_packed():
    mesh, tensor = Mesh((MeshAxis("x", 2),)), TensorType("float32", (512, 4))
    whole = Layout.replicated(2)
    first, second = Layout((("x",), ())), Layout(((), ("x",)))

    def costs(packing):
        on = measured("all_gather", packing=packing)
        planner = fastest_paths(mesh, on)
        table = planner.costs(tensor, [first, second], [whole])[:, 0]
        paths = [planner.path_cost(tensor, layout, whole) for layout in (first, second)]
        assert table == pytest.approx(paths)
        assert table == pytest.approx(planner.orbit_costs(tensor, [first, second], [whole])[:, 0])
        return table

    assert costs(None)[0] == pytest.approx(costs(None)[1])
    rows, columns = costs(PACKING)
    assert rows == pytest.approx(costs(None)[0])
    assert columns - rows == pytest.approx(1e-6 + 3e-6 * (4096 - 1024) / (65536 - 1024))


def test_a_profile_with_prices_of_its_own_takes_no_seconds_of_packing():
    class Money(TimeProfile):
        name = "money of a test"

        def move_costs(self, operator, axes, local_bytes):
            return 3.0 * local_bytes

    mesh, on = Mesh((MeshAxis("x", 2),)), measured("all_gather", packing=PACKING)
    sizes = np.array([4096.0])
    assert TimeProfile(mesh, on).packing_costs("all_gather", ("x",), sizes)[0] > 0
    assert Money(mesh, on).packing_costs("all_gather", ("x",), sizes)[0] == 0


@pytest.mark.parametrize(
    ("kind", "messages", "packing", "told"),
    [
        ("all_gather", [[8, 1e-6], [4, 2e-6]], None, "bytes of points must rise, and 4 follows 8"),
        ("all_gather", [[8, 1e-6], [8, 2e-6]], None, "bytes of points must rise, and 8 follows 8"),
        ("all_gather", [[4, 2e-6], [8, 1e-6]], None, "the seconds of points must not fall"),
        ("all_gather", [[4, -2e-6]], None, "greater than 0"),
        ("all_gather", [[0, 2e-6]], None, "greater than 0"),
        ("all_gather", [[4, float("inf")]], None, "finite"),
        ("all_gather", [], None, "at least 1 item"),
        ("all_gather", STEP, [[4, 2e-6], [8, 1e-6]], "the seconds of points must not fall"),
        ("send", STEP, None, "`send` has `messages`"),
        ("all_reduce", STEP, PACKING, "`all_reduce` has `packing`"),
    ],
)
def test_wrong_points_are_refused_in_one_sentence(tmp_path, kind, messages, packing, told):
    content = measured("all_gather").model_dump(mode="json", exclude_none=True)
    rate = content["levels"][0]["efficiency"]["collectives"].pop("all_gather")
    rate["messages"]["points"] = messages
    if packing is not None:
        rate["packing"] = {**FIGURE, "points": packing}
    content["levels"][0]["efficiency"]["collectives"][kind] = rate
    with pytest.raises(ClusterError) as error:
        Cluster.parsed(content, str(tmp_path))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
