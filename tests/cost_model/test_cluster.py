import json
from itertools import pairwise, product
from math import prod

import pytest
import yaml
from pydantic import ValidationError

from shardwright.cost_model.cluster import (
    Cluster,
    Level,
    cluster,
    mesh_for,
    mesh_shapes,
    preset_names,
)
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import MeshAxis
from shardwright.planner.options import CompileOptions

DESCRIPTION = {
    "name": "lab",
    "device": {
        "name": "card",
        "peak_flops": {"float32": 1e12},
        "memory_bandwidth": 1e11,
        "memory_bytes": 1 << 30,
        "launch_seconds": 1e-6,
    },
    "levels": [
        {"name": "node", "size": 4, "bandwidth": 1e10, "latency": 1e-6},
        {"name": "row", "size": 3, "bandwidth": 1e9, "latency": 1e-5},
        {"name": "hall", "size": 2, "bandwidth": 1e8, "latency": 1e-4},
    ],
}
LAB = Cluster.model_validate(DESCRIPTION)


def message(action, *arguments, **options):
    with pytest.raises(ClusterError) as caught:
        action(*arguments, **options)
    return str(caught.value)


def test_presets_are_listed_sorted_and_named_as_their_files():
    assert preset_names() == (
        "a100",
        "a100-1600g",
        "a100-40gb",
        "a100-40gb-1600g",
        "a100-800g",
        "a100-pod",
        "a100-selene",
        "a800",
        "ascend910-racks",
        "ascend910b-pod",
        "b200",
        "b200-node",
        "b200-pod",
        "b300",
        "cpu",
        "gb200-nvl72",
        "gb300-nvl72",
        "h100",
        "h100-3200g",
        "h100-96gb-3200g",
        "h100-pod",
        "h100-pods",
        "h20",
        "h200",
        "h200-3200g",
        "h800",
        "l40s-pcie",
        "mi300x",
        "mi300x-pod",
        "mi325x",
        "mi355x",
        "rtx4090",
        "rtx4090-box",
        "rtx5090",
        "tpu-v5e",
        "tpu-v5p",
        "tpu-v6e",
        "tpu-v7",
        "v100-nvlink-pair",
        "v100-pod",
    )
    assert [cluster(name).name for name in preset_names()] == list(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_presets_get_slower_outwards(name):
    levels = cluster(name).levels
    for inner, outer in pairwise(levels):
        torus = name.startswith("tpu")  # its rings are alike
        assert inner.bandwidth > outer.bandwidth or torus
        assert inner.latency < outer.latency or torus or inner.bandwidth > outer.bandwidth


def test_pods_hold_a_thousand_devices():
    names = ("a100-pod", "h100-pod", "ascend910-racks", "v100-pod", "h100-pods")
    assert [cluster(name).size for name in names] == [1120, 2048, 2048, 1024, 16384]
    assert str(mesh_for(cluster("h100-pod"), 1024)) == "x=128 x y=8"


def test_unknown_name_suggests_the_nearest():
    listed = ", ".join(sorted((*preset_names(), "h100-a100")))
    assert message(cluster, "h100pod") == (
        f"no cluster is called `h100pod`; did you mean `h100-pod`? there are {listed}, or a .yaml "
        "or .json file"
    )


@pytest.mark.parametrize(("suffix", "write"), [(".json", json.dumps), (".yaml", yaml.safe_dump)])
def test_a_file_gives_the_cluster_it_describes(tmp_path, suffix, write):
    path = tmp_path / f"lab{suffix}"
    path.write_text(write(DESCRIPTION))
    assert Cluster.load(path) == LAB
    assert cluster(str(path)) == LAB
    assert hash(cluster(str(path))) == hash(LAB)


def test_exponents_need_no_point_in_yaml(tmp_path):
    # YAML 1.1 reads 1e12 as text.
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(DESCRIPTION).replace("1000000000000.0", "1e12"))
    assert "float32: 1e12" in path.read_text()
    assert Cluster.load(path) == LAB


def test_missing_file(tmp_path):
    path = tmp_path / "none.yaml"
    assert message(cluster, str(path)) == (
        f"cannot read cluster file `{path}`: No such file or directory"
    )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        (
            "lab.yaml",
            "name: lab\nlevels: [",
            "a cluster file must be YAML, but line 2 is not (in {path}); "
            "expected the node content, but found '<stream end>'",
        ),
        (
            "lab.json",
            '{"name":\n',
            "a cluster file must be JSON, but line 2 is not (in {path}); expecting value",
        ),
        (
            "lab.yaml",
            "- 8\n",
            "a cluster file must hold `name`, `device` and `levels`, but holds no keys at all "
            "(in {path})",
        ),
    ],
)
def test_a_file_that_is_no_description(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text)
    assert message(Cluster.load, path) == expected.format(path=path)


def changed(**changes):
    """Return the description with some keys, in dotted form, set or (where None) deleted."""
    description = json.loads(json.dumps(DESCRIPTION))
    for key, value in changes.items():
        *way, last = [int(part) if part.isdigit() else part for part in key.split("__")]
        place = description
        for part in way:
            place = place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return description


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"levels__1__bandwidth": None}, "`levels.1.bandwidth` is missing"),
        (
            {"levels__1__bandwidth": -3},
            "`levels.1.bandwidth` is `-3`, but should be greater than 0",
        ),
        ({"device__cores": 2}, "`device.cores` is not a key of a cluster"),
        (
            {"device__peak_flops__float31": 2},
            "`device.peak_flops`: no element type is called `float31`",
        ),
        ({"device__peak_flops": {"float16": 1}}, "`device.peak_flops`: `float32` is missing"),
        (
            {"levels__1__name": "node"},
            "`levels`: the level names node, node, hall are not all different",
        ),
        (
            {"name": None, "device": None, "levels__0__size": 0, "levels__1__size": 0},
            "`name` is missing; `device` is missing; "
            "`levels.0.size` is `0`, but should be greater than or equal to 1; and 1 more",
        ),
    ],
)
def test_a_wrong_description_gets_one_sentence(tmp_path, changes, expected):
    path = tmp_path / "lab.json"
    path.write_text(json.dumps(changed(**changes)))
    assert message(Cluster.load, path) == f"{expected} (in {path})"


def test_an_element_type_without_a_rate_runs_at_that_of_float32():
    device = cluster("v100-nvlink-pair").device
    assert device.flops_per_second("float16") == 125e12
    assert device.flops_per_second("bfloat16") == device.flops_per_second("float32") == 15.7e12


def test_a_device_keeps_six_percent_of_its_memory_in_reserve_unless_its_file_says_otherwise():
    device = LAB.device
    assert (device.memory_reserve, device.usable_bytes) == (0.06, 0.94 * 2**30 // 1)
    assert device.model_copy(update={"memory_reserve": 0.0}).usable_bytes == 2**30


def test_the_limit_is_the_device_less_its_reserve_but_the_users_own_figure_as_it_is():
    assert CompileOptions().memory_on(LAB) == LAB.device.usable_bytes
    assert CompileOptions(memory_limit=2**30).memory_on(LAB) == 2**30


def test_devices_fill_the_inner_levels_first():
    assert LAB.size == 24
    assert LAB.for_devices(1) == (1, 1, 1)
    assert LAB.for_devices(3) == (3, 1, 1)
    assert LAB.for_devices(8) == (4, 2, 1)
    assert LAB.for_devices(24) == (4, 3, 2)


def test_devices_that_do_not_fill_a_level_lie_evenly_in_it():
    assert LAB.for_devices(6) == (3, 2, 1)
    assert LAB.for_devices(16) == (4, 2, 2)
    assert LAB.part_text(6) == " (3 of 4 in each node)"
    assert LAB.part_text(16) == " (2 of 3 in each row)"
    assert (LAB.part_text(3), LAB.part_text(8), LAB.part_text(24)) == ("", "", "")


def test_devices_that_cannot_lie_evenly_are_refused():
    assert message(LAB.for_devices, 7) == (
        "7 devices do not lie evenly in the levels of `lab`; "
        "the nearest numbers that do are 6 and 8"
    )


def test_even_places_are_those_of_all_ways_that_use_most_inner_devices():
    ways = list(product(range(1, 5), range(1, 4), range(1, 3)))
    for devices in range(1, 25):
        even = [way for way in ways if prod(way) == devices]
        if even:
            assert LAB.for_devices(devices) == max(even)
        else:
            assert "do not lie evenly" in message(LAB.for_devices, devices)


def test_groups_of_devices_lie_alike_or_are_refused():
    for groups in (1, 2, 6, 12, 24):
        LAB.check_groups(24, groups)
    assert message(LAB.check_groups, 24, 8) == (
        "8 groups of 3 devices do not lie alike in 4 of a `node` x 3 of a `row` x 2 of a `hall`; "
        "numbers of groups that do are 1, 2, 6, 12, 24"
    )


def _shared(size, shared_by):
    """Return nodes of 8 whose devices share network cards."""
    levels = [
        {"name": "node", "size": 8, "bandwidth": 1e10, "latency": 1e-6},
        {"name": "row", "size": size, "bandwidth": 1e9, "latency": 1e-5, "shared_by": shared_by},
    ]
    return Cluster.model_validate(DESCRIPTION | {"levels": levels})


@pytest.mark.parametrize(("devices", "sharing"), [(88, 8), (33, 3), (22, 2), (11, 1), (8, 8)])
def test_fewer_devices_of_a_node_have_more_of_its_network_card(devices, sharing):
    whole = _shared(11, 8)
    used = whole.used_by(devices)
    assert used.levels[1].shared_by == sharing
    assert used.levels[1].bandwidth == pytest.approx(8e9 / sharing)
    assert used.used_by(devices) == used
    assert Cluster.model_validate(used.model_dump(exclude={"software"})) == used
    assert (used is whole) == (sharing == 8)


def test_cards_that_are_not_shared_evenly_are_refused():
    with pytest.raises(ValidationError, match="cannot share cards so evenly"):
        _shared(2, 5)
    with pytest.raises(ValidationError, match="`node` is shared by 2, but 1 devices"):
        Cluster.model_validate(
            DESCRIPTION | {"levels": [DESCRIPTION["levels"][0] | {"shared_by": 2}]}
        )


def test_a_collective_of_one_device_a_node_takes_the_whole_card():
    spread, whole = cluster("v100-pod").used_by(11), cluster("v100-pod").used_by(16)
    assert spread.levels[1].bandwidth == 2 * whole.levels[1].bandwidth == 12.5e9


@pytest.mark.parametrize("devices", [0, -1, 25])
def test_too_few_devices(devices):
    assert message(LAB.for_devices, devices) == (
        f"cluster `lab` has 24 devices, but {devices} were asked for; "
        "use 1 to 24 devices, or a larger cluster"
    )


@pytest.mark.parametrize(
    ("devices", "text", "levels"),
    [
        (1, "one device", []),
        (2, "x=2", [0]),
        (3, "x=3", [0]),
        (4, "x=2 x y=2", [0, 0]),
        (8, "x=2 x y=4", [1, 0]),
        (24, "x=2 x y=3 x z=4", [2, 1, 0]),
    ],
)
def test_default_mesh_has_an_axis_for_each_level_in_use(devices, text, levels):
    mesh = mesh_for(LAB, devices)
    assert (str(mesh), [axis.level for axis in mesh.axes]) == (text, levels)


def test_one_node_of_eight_gets_the_finest_mesh():
    assert str(mesh_for(cluster("h100-pod"), 8)) == "x=2 x y=2 x z=2"
    assert str(mesh_for(cluster("h100-pod"), 16)) == "x=2 x y=8"


def test_a_shape_cuts_levels():
    assert mesh_for(LAB, 24, "2x3x2x2").axes == (
        MeshAxis("x", 2, 2),
        MeshAxis("y", 3, 1),
        MeshAxis("z", 2, 0),
        MeshAxis("w", 2, 0),
    )
    assert mesh_for(LAB, 24, (2, 3, 2, 2)) == mesh_for(LAB, 24, "2x3x2x2")


def test_axes_take_the_names_given_with_or_beside_the_shape():
    named = mesh_for(LAB, 8, "data=2, model=4")
    assert named.axes == (MeshAxis("data", 2, 1), MeshAxis("model", 4, 0))
    assert mesh_for(LAB, 8, (2, 4), names=("data", "model")) == named


def test_an_axis_of_one_keeps_its_name():
    mesh = mesh_for(LAB, 4, "data=1,model=4")
    assert str(mesh) == "data=1 x model=4"
    assert mesh.axis("model").level == 0


def test_many_axes_get_distinct_names():
    levels = (Level(name="node", size=1 << 14, bandwidth=1e9, latency=0),)
    wide = Cluster(name="wide", device=LAB.device, levels=levels)
    names = mesh_for(wide, 1 << 14, (2,) * 14).names
    assert names == (*"xyzwuvtsrqp", "axis11", "axis12", "axis13")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (24, "4x6"),
            "an axis of 4 in mesh shape `4x6` does not fit into level `hall`, where 2 of 2 are "
            "left; an axis spans one level: `2x3x4` fits",
        ),
        (
            (8, "2x2"),
            "mesh shape `2x2` has 4 ranks, but there are 8 devices; "
            "the sizes of the axes multiply to the number of devices",
        ),
        ((8, (-2, -4)), "mesh shape `-2x-4` has an axis of -4; every size is at least 1"),
        ((8, "2*4"), "`2*4` is not a mesh shape; write `2x4` or `data=2,model=4`"),
        ((8, "a=2,a=4"), "2 mesh axes are called a, a; give 2 different names"),
        ((8, "2x4", ("a",)), "2 mesh axes are called a; give 2 different names"),
    ],
)
def test_a_shape_that_does_not_fit(arguments, expected):
    assert message(mesh_for, LAB, *arguments) == expected


@pytest.mark.parametrize(
    ("devices", "axes", "shapes"),
    [
        (8, 3, {(2, 2, 2)}),
        (8, 2, {(2, 4)}),
        (64, 3, {(8, 2, 4), (2, 4, 8)}),
        (64, 4, {(8, 2, 2, 2), (2, 2, 2, 8), (2, 4, 2, 4)}),
        (512, 3, {(64, 2, 4), (2, 32, 8), (4, 16, 8), (8, 8, 8)}),
        (512, 1, {(64, 8)}),
        (1, 3, {()}),
    ],
)
def test_the_finest_shapes_of_a_mesh(devices: int, axes: int, shapes: set[tuple[int, ...]]) -> None:
    found = mesh_shapes(cluster("h100-pod"), devices, axes)
    assert set(found) == shapes
    assert all(mesh_for(cluster("h100-pod"), devices, shape).shape == shape for shape in found)


def test_a_share_of_several_devices_is_of_a_level_above_the_devices():
    content = cluster("a100-800g").model_dump()
    share = content["levels"][1]["efficiency"]["several"]
    content["levels"][0]["efficiency"]["several"] = share
    with pytest.raises(ValidationError, match="`node` has `several`, but it connects devices"):
        Cluster.model_validate(content)
