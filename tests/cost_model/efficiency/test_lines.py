"""Clusters that are said in a line, their figures, and the fastest published steps."""

import os
import subprocess
import sys
from itertools import combinations

import pytest

from shardwright.cost_model.cluster import Cluster, cluster, preset_names
from shardwright.cost_model.efficiency.cluster_files import stands_for
from shardwright.cost_model.efficiency.lines import with_figures
from shardwright.cost_model.efficiency.published import best_published, beyond_published
from shardwright.cost_model.pipelines.mixed import any_cluster
from shardwright.ir.errors import ClusterError

NOT_PUBLISHED = {"cpu"}
"""Presets of devices that nobody trains language models on in public."""


@pytest.mark.parametrize(
    ("line", "sizes", "outermost"),
    [
        ("h100:nodes=8", (8, 8), 50e9),
        ("h100:nodes=16,network=400Gb/s,per_node=4", (4, 16), 50e9),
        ("h100:network=25GB/s", (8, 8192), 25e9),
        ("gb200-nvl72:racks=4", (72, 4), 50e9),
        ("tpu-v5p:4x4x8", (4, 4, 8), 200e9),
        ("rtx4090:per_node=4,nodes=2", (4, 2), 6.25e9),
    ],
)
def test_a_line_changes_sizes_and_links(line, sizes, outermost):
    found = cluster(line)
    assert tuple(level.size for level in found.levels) == sizes
    assert found.levels[-1].bandwidth == outermost
    assert found.name == line
    assert found.device == cluster(line.partition(":")[0]).device


def test_a_generation_of_pcie_has_the_rate_through_host_memory():
    assert cluster("rtx4090:pcie=4").levels == cluster("rtx4090").levels
    assert cluster("rtx4090:pcie=5").levels[0].bandwidth == 32e9


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("h100:", "`h100:` says nothing after the colon; write `h100`"),
        ("h100:nodes=0", "`nodes` in `h100:nodes=0` is `0`, expected a positive integer"),
        (
            "h100:per_node=9",
            "`h100:per_node=9` has 9 devices in each node, and it joins 8 at most; describe "
            "another machine in a file, see docs/clusters.md",
        ),
        (
            "rtx4090:16x2",
            "`rtx4090:16x2` has 16 devices in each node, and it joins 8 at most; describe "
            "another machine in a file, see docs/clusters.md",
        ),
        ("h100:nodes=2,nodes=3", "`h100:nodes=2,nodes=3` gives `nodes` twice; give it once"),
        (
            "h100:racks=3",
            "`racks=3` in `h100:racks=3` is no change; of this cluster can be said per_node, "
            "nodes, network, figures, and sizes like `8x8192`",
        ),
        (
            "h100:network=0Gb/s",
            "`network` in `h100:network=0Gb/s` is `0Gb/s`, expected what each device can send; "
            "write `400Gb/s` or `50GB/s`",
        ),
        (
            "rtx4090:pcie=9",
            "`pcie` in `rtx4090:pcie=9` is `9`, expected a generation: 3, 4, 5, 6",
        ),
        (
            "tpu-v5p:4x4",
            "`tpu-v5p:4x4` gives 2 sizes, and the cluster has 3 levels; give the members of ring, "
            "plane, torus, the innermost first",
        ),
        (
            "h100-a100:nodes=2",
            "`h100-a100` is no cluster of one kind of device, and `nodes=2` changes none; write a "
            "file, see docs/clusters.md",
        ),
    ],
)
def test_lines_that_say_no_cluster_are_refused(line, told):
    with pytest.raises(ClusterError) as caught:
        any_cluster(line)
    assert str(caught.value) == told


@pytest.mark.parametrize("level", ["{size: 4, bandwidth: 1.0e+9, latency: 1.0e-6}", "4"])
def test_a_line_leaves_it_to_the_file_to_say_what_a_level_lacks(tmp_path, level):
    file = tmp_path / "mine.yaml"
    file.write_text(f"name: mine\ndevice: h100\nlevels: [{level}]\n")
    with pytest.raises(ClusterError) as bare:
        cluster(str(file))
    with pytest.raises(ClusterError) as changed:
        cluster(f"{file}:per_node=2")
    assert str(changed.value) == str(bare.value)


def test_other_figures_than_two_kinds_are_refused():
    with pytest.raises(ClusterError, match="`figures` is `mine`, expected `attained` or"):
        cluster("h100:figures=mine")


def test_figures_of_data_sheets_leave_the_description_else():
    bare, attained = cluster(with_figures("h100", "datasheet")), cluster("h100")
    assert bare.device.efficiency is None
    assert all(level.efficiency is None for level in bare.levels)
    device = attained.device.model_copy(update={"efficiency": None, "kernels": None})
    levels = tuple(level.model_copy(update={"efficiency": None}) for level in attained.levels)
    assert bare == attained.model_copy(update={"device": device, "levels": levels})


def test_figures_are_asked_of_a_line_once():
    line = with_figures("h100:nodes=2", "datasheet")
    assert line == "h100:nodes=2,figures=datasheet" == with_figures(line, "datasheet")
    assert with_figures(line, None) == line
    assert with_figures("h100", "attained") == "h100:figures=attained"
    with pytest.raises(ClusterError) as caught:
        with_figures(line, "attained")
    assert str(caught.value) == (
        "`h100:nodes=2,figures=datasheet` has `figures=datasheet`, and figures that are `attained` "
        "are asked for; say one of them"
    )


def test_parts_of_a_mixed_cluster_have_the_figures_that_are_asked_for():
    assert all(part.device.efficiency is None for part in parts("h100-a100:figures=datasheet"))
    assert all(part.device.efficiency is not None for part in parts("h100-a100"))


def parts(line: str) -> tuple[Cluster, ...]:
    return any_cluster(line).parts


def test_a_file_names_a_device_and_what_differs(tmp_path):
    file = tmp_path / "mine.yaml"
    levels = "levels: [{name: node, size: 4, bandwidth: 1.0e+9, latency: 1.0e-6}]"
    file.write_text(f"name: mine\ndevice: {{like: h100, memory_bytes: 1000}}\n{levels}\n")
    device = cluster("h100").device
    assert cluster(str(file)).device == device.model_copy(update={"memory_bytes": 1000})
    file.write_text(f"name: mine\ndevice: h100\nfigures: datasheet\n{levels}\n")
    bare = device.model_copy(update={"efficiency": None, "kernels": None})
    assert cluster(str(file)).device == bare
    file.write_text(f"name: mine\ndevice: h10\n{levels}\n")
    with pytest.raises(ClusterError, match=r"no device is called `h10` .*; did you mean `h100`"):
        cluster(str(file))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("h100-pod", "h100:nodes=256"),
        ("a100-pod", "a100:nodes=140"),
        ("b200-pod", "b200:nodes=128"),
        ("mi300x-pod", "mi300x:nodes=128"),
    ],
)
def test_other_names_are_the_clusters_that_they_stand_for(name, line):
    assert stands_for(name) == line
    assert cluster(name) == cluster(line).model_copy(update={"name": name})


def test_no_two_presets_are_the_same_under_two_descriptions():
    described = [cluster(name) for name in preset_names() if stands_for(name) is None]
    for one, other in combinations(described, 2):
        if one.device == other.device and len(one.levels) == len(other.levels):
            pairs = zip(one.levels, other.levels, strict=True)
            sizes = tuple(b.model_copy(update={"size": a.size}) for a, b in pairs)
            assert other.model_copy(update={"name": one.name, "levels": sizes}) != one


ENVIRONMENT = """
import sys
import shardwright as sw
from shardwright.tools.main import main
print(sw.compile("mlp", 2).cluster.name)
for command in (["compile"], ["estimate", "--plan", "data=2"]):
    main([command[0], "mlp", "--devices", "2", *command[1:], "--json"])
"""


def in_environment(name, program):
    environment = {**os.environ, "SHARDWRIGHT_CLUSTER": name}
    given = [sys.executable, *program]
    return subprocess.run(given, env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_the_environment_names_the_cluster_for_all():
    found = in_environment("tpu-v5e:4x4", ["-c", ENVIRONMENT])
    assert found.returncode == 0
    assert found.stdout.splitlines()[0] == "tpu-v5e:4x4"
    assert found.stdout.count('"cluster": "tpu-v5e:4x4"') == 2


def test_a_wrong_name_in_the_environment_is_one_sentence():
    found = in_environment("nosuch", ["-m", "shardwright", "fit", "mlp", "--devices", "2"])
    assert found.returncode == 2
    assert len(found.stderr.splitlines()) == 1
    assert found.stderr.startswith(
        "shardwright: no cluster is called `nosuch`, which the variable `SHARDWRIGHT_CLUSTER` "
        "names; there are a100, "
    )


@pytest.mark.parametrize("name", sorted(set(preset_names()) - NOT_PUBLISHED))
def test_every_preset_says_what_it_attains_and_has_a_published_step(name):
    described = cluster(name)
    assert described.device.efficiency is not None
    assert all(level.efficiency is not None for level in described.levels)
    assert best_published(described.device.name) is not None


def test_a_step_above_all_published_ones_is_told():
    told = beyond_published("H800 SXM 80GB", "bfloat16", "", 0.91)
    assert told == (
        "out of range: 91% MFU is above the 64% of the fastest published step on its nearest "
        "relative, H100 SXM5 80GB, Llama 2 7B on 16 devices, 13,745 tokens/s each (NVIDIA, "
        "JAX-Toolbox)"
    )
    assert beyond_published("H100 SXM5 80GB", "bfloat16", "", 0.63) is None
    assert beyond_published("H100 SXM5 80GB", "float32", "", 0.99) is None
    assert beyond_published("H100 SXM5 80GB", "bfloat16", "float8", 0.9) is None
    assert beyond_published("one core", "bfloat16", "", 0.99) is None
