"""Clusters of several parts: their files, the devices of pipeline stages, and the links."""

import json
from pathlib import Path

import pytest
import yaml

from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.efficiency.cluster_files import mixed_names
from shardwright.cost_model.pipelines.mixed import (
    MixedCluster,
    any_cluster,
    mean_device,
    of_one_kind,
)
from shardwright.ir.errors import ClusterError

PRESET = any_cluster("h100-a100:figures=datasheet")
assert isinstance(PRESET, MixedCluster)


def described() -> dict:
    """Return the content of a file of two parts."""
    box = {"name": "box", "size": 4, "bandwidth": 2e10, "latency": 1e-6}
    device = {
        "name": "GPU",
        "peak_flops": {"float32": 1e13},
        "memory_bandwidth": 1e12,
        "memory_bytes": 2**33,
        "launch_seconds": 1e-6,
    }
    parts = [{"name": name, "device": device, "levels": [box]} for name in ("one", "two")]
    return {"name": "boxes", "parts": parts, "link": {"bandwidth": 1e9, "latency": 1e-5}}


def read(content: object, folder: Path) -> MixedCluster:
    """Return the cluster of a file."""
    path = folder / "mixed.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = any_cluster(str(path))
    assert isinstance(found, MixedCluster)
    return found


def test_the_preset_has_the_devices_of_two_others():
    assert mixed_names() == ("h100-a100",)
    assert [part.device for part in PRESET.parts] == [
        cluster("h100-pod:figures=datasheet").device,
        cluster("a100-pod:figures=datasheet").device,
    ]
    assert PRESET.parts[1].levels[0] == cluster("a100-pod:figures=datasheet").levels[0]
    assert (PRESET.size, PRESET.link.name, PRESET.link.size) == (256, "between parts", 2)
    assert MixedCluster.model_validate_json(PRESET.model_dump_json()) == PRESET


def test_a_part_in_another_file_is_read_from_the_folder_of_the_cluster(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "clusters", tmp_path / "work"
    folder.mkdir()
    elsewhere.mkdir()
    one, two = described()["parts"]
    (folder / "one.yaml").write_text(yaml.safe_dump(one), encoding="utf-8")
    (elsewhere / "one.yaml").write_text(yaml.safe_dump({**one, "name": "other"}), encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    content = {**described(), "parts": [{"cluster": "one.yaml"}, {**two, "name": "two"}]}
    assert [part.name for part in read(content, folder).parts] == ["one", "two"]
    content["parts"][0] = {"cluster": str(elsewhere / "one.yaml")}
    assert [part.name for part in read(content, folder).parts] == ["other", "two"]
    content["parts"][0] = {"cluster": "three.yaml"}
    missing = folder / "three.yaml"
    with pytest.raises(ClusterError, match=f"cannot read cluster file `{missing}`: No such file"):
        read(content, folder)


def test_devices_are_shared_in_proportion(tmp_path):
    content = described()
    content["parts"][1]["levels"] = [{**content["parts"][1]["levels"][0], "size": 2}]
    found = read(content, tmp_path)
    assert [found.shares(devices) for devices in (3, 6)] == [(2, 1), (4, 2)]
    assert [part.size for part in found.used_by(3).parts] == [2, 1]
    assert found.used_by(3).shares(3) == (2, 1)


def test_stages_lie_wholly_in_a_part():
    groups = PRESET.in_groups(32, 4)
    assert [c.name for c in groups.clusters] == ["h100", "h100", "a100", "a100"]
    assert groups.of(5).name == "h100"  # interleaved: stage 5 is on device group 1
    inside, across = groups.sending(0, 1), groups.sending(1, 2)
    assert inside.levels[groups.level] == PRESET.parts[0].levels[1]
    assert across.levels[groups.level] == groups.sending(2, 1).levels[groups.level] == PRESET.link
    assert across.device.name == "H100 SXM5 80GB"
    assert groups.sending(2, 1).device.name == "A100 SXM4 80GB"


def test_inside_a_part_the_outermost_link_in_use_counts():
    groups = PRESET.in_groups(8, 4)  # four devices of one node in each part
    assert groups.sending(0, 1).levels[groups.level] == PRESET.parts[0].levels[0]


@pytest.mark.parametrize(
    ("devices", "groups", "told"),
    [
        (
            24,
            3,
            "3 pipeline stages of 8 devices straddle the parts of `h100-a100`: 12 `h100` and 12 "
            "`a100`; numbers of stages that work are 2, 4, 8, 12, 24",
        ),
        (
            9,
            3,
            "9 devices cannot be divided in the ratio 128:128 of the parts of `h100-a100`; use a "
            "multiple of 2, or other parts",
        ),
        (
            16,
            1,
            "cluster `h100-a100` has the parts `h100` and `a100`, and a program in one stage runs "
            "on one kind of device; give `stages` and `micro_batches`, or a named plan with "
            "`pipeline`; or use a cluster of one part",
        ),
        (
            512,
            2,
            "cluster `h100-a100` has 256 devices, but 512 were asked for; use 1 to 256 devices, or "
            "a larger cluster",
        ),
        (
            8,
            3,
            "8 devices cannot be divided into 3 pipeline stages; numbers of stages that work are "
            "2, 4, 8",
        ),
    ],
)
def test_other_stages_are_refused(devices, groups, told):
    with pytest.raises(ClusterError) as caught:
        PRESET.in_groups(devices, groups)
    assert str(caught.value) == told


def test_stages_that_lie_otherwise_in_parts_are_refused(tmp_path):
    content = described()
    outer = {"name": "net", "size": 2, "bandwidth": 1e9, "latency": 1e-5}
    inner = content["parts"][1]["levels"][0]
    content["parts"][1]["levels"] = [{**inner, "size": 2}, outer]
    with pytest.raises(ClusterError) as caught:
        read(content, tmp_path).in_groups(8, 2)
    assert str(caught.value) == (
        "stages of 4 devices do not lie alike in the levels of the parts of `boxes`; numbers of "
        "stages that work are 4, 8"
    )


def _without(key: str, content: dict) -> dict:
    del content[key]
    return content


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda c: {**c, "parts": c["parts"][:1]},
            "`parts` must be a list of at least two clusters (in PATH); a cluster of one kind has "
            "no `parts`",
        ),
        (
            lambda c: {**c, "parts": [c["parts"][0], 3]},
            "`parts.1` must hold `name`, `device` and `levels`, or `cluster` and `devices` "
            "(in PATH)",
        ),
        (
            lambda c: {**c, "parts": [c["parts"][0], _without("device", dict(c["parts"][1]))]},
            "`parts.1.device` is missing (in PATH)",
        ),
        (
            lambda c: {**c, "parts": [c["parts"][0]] * 2},
            "`parts`: the names of the parts one, one are not all different (in PATH)",
        ),
        (
            lambda c: {
                **c,
                "parts": [c["parts"][0], {"cluster": "h100-pod:figures=datasheet", "size": 3}],
            },
            "`parts.1.size` is not a key of a part that is devices of a cluster (in PATH); its "
            "keys are `name`, `cluster` and `devices`",
        ),
        (
            lambda c: {
                **c,
                "parts": [c["parts"][0], {"cluster": "h100-pod:figures=datasheet", "devices": "8"}],
            },
            "`parts.1.devices` is `8`, expected a positive integer (in PATH)",
        ),
        (lambda c: _without("link", c), "`link` is missing (in PATH)"),
        (
            lambda c: {**c, "link": {"bandwidth": -1.0, "latency": 0.0}},
            "`link.bandwidth` is `-1.0`, but should be greater than 0 (in PATH)",
        ),
        (
            lambda c: {**c, "link": {**c["link"], "name": "box"}},
            "`link.name` is `box`, the name of a level of `one` (in PATH)",
        ),
        (
            lambda c: {**c, "link": {**c["link"], "name": "compute"}},
            "`link.name`: no level can be called `compute`, the name of the stream of computation "
            "(in PATH)",
        ),
        (
            lambda c: {**c, "parts": [{"cluster": "cpu", "name": 5}, *c["parts"]]},
            "`parts.0.name` is `5`, but should be a valid string (in PATH)",
        ),
        (
            lambda c: {**c, "device": c["parts"][0]["device"]},
            "`device` is not a key of a cluster (in PATH)",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(change, told, tmp_path):
    with pytest.raises(ClusterError) as caught:
        read(change(described()), tmp_path)
    assert str(caught.value).replace(str(tmp_path / "mixed.yaml"), "PATH") == told


def test_what_needs_one_kind_of_device_refuses_parts(tmp_path):
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(described()), encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        cluster(str(path))
    assert str(caught.value) == (
        "cluster `boxes` has parts, and one kind of device is needed here; use a cluster of one "
        "part"
    )
    assert of_one_kind(cluster("cpu"), "") == cluster("cpu")


def test_the_mean_device_has_the_peak_of_all(tmp_path):
    content = described()
    content["parts"][1]["device"] = {
        **content["parts"][1]["device"],
        "peak_flops": {"float32": 2e13, "bfloat16": 4e13},
    }
    device = mean_device(read(content, tmp_path))
    assert device.peak_flops == {"float32": 1.5e13, "bfloat16": 2.5e13}
