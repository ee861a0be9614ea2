"""Files of clusters that are wrong: each is refused in one sentence that names the key."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright.compiler.fit.robust import OVERLAP
from shardwright.cost_model.cluster import cluster
from shardwright.cost_model.collectives import collective_seconds
from shardwright.cost_model.pipelines.mixed import any_cluster
from shardwright.cost_model.streams import COMPUTE
from shardwright.ir.errors import ClusterError
from shardwright.ir.mesh import MeshAxis


def figure(value: float) -> dict[str, Any]:
    """Return a figure of a file."""
    return {"value": value, "tag": "measured", "source": "a test"}


def rated() -> dict[str, Any]:
    """Return the figures of an operator that was measured by itself."""
    return {"rate": figure(1e11), "launch": figure(1e-5)}


def described() -> dict[str, Any]:
    """Return a cluster with figures of every sort."""
    sends = {"latency": figure(1e-5), "bandwidth": figure(1e9)}
    return {
        "name": "lab",
        "device": {
            "name": "card",
            "peak_flops": {"float32": 1e12},
            "memory_bandwidth": 1e11,
            "memory_bytes": 1 << 30,
            "launch_seconds": 1e-6,
            "efficiency": {
                "matmul": figure(0.8),
                "attention": figure(0.4),
                "memory": figure(0.8),
                "multiprocessors": figure(8),
                "tile": figure(64),
                "unaligned": {"odd": figure(0.5)},
                "operators": {"relu": rated(), "matmul": {**rated(), "traffic": figure(1e10)}},
            },
            "workspaces": {"cublas": figure(1024)},
        },
        "levels": [
            {
                "name": "node",
                "size": 4,
                "bandwidth": 1e10,
                "latency": 1e-6,
                "efficiency": {"bandwidth": figure(0.8), "collectives": {"all_gather": sends}},
            },
            {"name": "row", "size": 3, "bandwidth": 1e9, "latency": 1e-5, "shared_by": 2},
        ],
    }


def changed(key: str, value: object) -> dict[str, Any]:
    """Return the description with one key, in dotted form, set, or `DELETED`."""
    *way, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    content: Any = described()
    place = content
    for part in way:
        place = place[part]
    if value is DELETED:
        del place[last]
    else:
        place[last] = value
    return content  # type: ignore[no-any-return]


DELETED = object()


def refusal(path: Path, text: str) -> str:
    """Return the sentence by which a file is refused, without the place."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError) as caught:
        any_cluster(str(path))
    assert caught.value.where == str(path)
    return caught.value.what


def test_the_description_itself_is_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(described()), encoding="utf-8")
    assert cluster(str(path)).size == 12


OPERATORS = "device.efficiency.operators"
PROTOCOLS = [{"name": "LL", "bandwidth": figure(0.5), "latency": figure(2e-6)}]
SHARED = "`row` is shared by 3, but 4 devices of the level below cannot share cards so evenly"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        # A switch is no number.
        ("levels.0.bandwidth", True, "`levels.0.bandwidth` is `true`, expected a number"),
        ("device.launch_seconds", False, "`device.launch_seconds` is `false`, expected a number"),
        (
            "device.efficiency.matmul.value",
            True,
            "`device.efficiency.matmul.value` is `true`, expected a number",
        ),
        # What divides is not zero.
        (
            f"{OPERATORS}.relu.rate.value",
            0,
            f"`{OPERATORS}.relu.rate.value` is `0`, but should be greater than 0",
        ),
        (
            f"{OPERATORS}.matmul.traffic.value",
            0,
            f"`{OPERATORS}.matmul.traffic.value` is `0`, but should be greater than 0",
        ),
        (
            "levels.0.efficiency.collectives.all_gather.bandwidth.value",
            0,
            "`levels.0.efficiency.collectives.all_gather.bandwidth.value` is `0`, but should be "
            "greater than 0",
        ),
        # Seconds that are no longer finite, or no longer added up.
        (
            "levels.0.bandwidth",
            1e-320,
            "`levels.0.bandwidth`: 1e-320 is not between 1e-30 and 1e+30",
        ),
        (
            "device.efficiency.memory.value",
            1e-320,
            "`device.efficiency.memory.value`: 1e-320 is not between 1e-30 and 1e+30",
        ),
        (
            "device.launch_seconds",
            1e308,
            "`device.launch_seconds`: 1e+308 is not between 1e-30 and 1e+30",
        ),
        (
            "device.memory_bytes",
            10**40,
            f"`device.memory_bytes`: {10**40} is not between 1e-30 and 1e+30",
        ),
        # What would have no effect.
        (
            "device.efficiency.multiprocessors",
            DELETED,
            "`device.efficiency`: `tile` has no effect without `multiprocessors`",
        ),
        (
            "device.efficiency.unaligned",
            {},
            "`device.efficiency.unaligned`: neither `even` nor `odd` is given",
        ),
        (
            f"{OPERATORS}.rleu",
            rated(),
            f"`{OPERATORS}`: no operator is called `rleu`; did you mean `relu`?",
        ),
        (
            f"{OPERATORS}.all_gather",
            rated(),
            f"`{OPERATORS}`: `all_gather` communicates, and is measured under `collectives` of a "
            "level",
        ),
        (
            f"{OPERATORS}.reshape",
            rated(),
            f"`{OPERATORS}`: `reshape` takes no time",
        ),
        (
            "device.workspaces.cublass",
            figure(1024),
            "`device.workspaces`: no library is called `cublass`, expected cublas, "
            "cublas_deterministic or transformer_engine",
        ),
        ("levels.1.latency", DELETED, "`levels.1`: `latency` is missing"),
        (
            "levels.0.efficiency.protocols",
            PROTOCOLS,
            "`levels.0`: `latency` has no effect, because `protocols` have their own: leave it out",
        ),
        # Sentences name what is expected, and no place that is none.
        (
            "device.efficiency.matmul.tag",
            "guessed",
            "`device.efficiency.matmul.tag` is `guessed`, but should be 'measured', 'fitted', "
            "'scaled', 'datasheet' or 'assumed'",
        ),
        ("levels.1.shared_by", 3, SHARED),
        # Names of what is told apart from levels by its name.
        *(
            (
                "levels.0.name",
                name,
                f"`levels.0.name`: no level can be called `{name}`, the name of {what}",
            )
            for name, what in {
                COMPUTE: "the stream of computation",
                OVERLAP: "an error of `--errors`",
                "from_host": "a link of the host",
            }.items()
        ),
        ("levels", 5, "`levels` is `5`, but should be a list"),
        ("device", 5, "`device` is `5`, but should be a mapping of keys"),
        ("name", "", "`name` is ``, but should have at least 1 character"),
    ],
)
def test_a_wrong_figure_is_refused(key: str, value: object, sentence: str, tmp_path: Path) -> None:
    content = changed(key, value)
    assert refusal(tmp_path / "lab.yaml", yaml.safe_dump(content)) == sentence
    assert refusal(tmp_path / "lab.json", json.dumps(content)) == sentence


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce"])
def test_links_are_slower_by_a_factor_where_a_collective_was_measured(tmp_path, kind) -> None:
    path = tmp_path / "lab.yaml"
    messages = {"points": [[1e3, 1e-5], [1e6, 1e-3]], "tag": "measured", "source": "a test"}
    key = "levels.0.efficiency.collectives.all_gather.messages"
    path.write_text(yaml.safe_dump(changed(key, messages)), encoding="utf-8")
    said = cluster(str(path))
    slower = said.with_links_slower_by([2.0, 2.0])
    inner, outer = MeshAxis("a", 4), MeshAxis("b", 3, 1)
    for axes in ((inner,), (outer,), (inner, outer)):
        for nbytes in (1e2, 1e5, 1e9):
            times = [collective_seconds(kind, nbytes, axes, one) for one in (said, slower)]
            assert times[1].seconds == pytest.approx(2 * times[0].seconds)


def test_protocols_take_the_place_of_the_latency(tmp_path: Path) -> None:
    content = changed("levels.0.efficiency.protocols", PROTOCOLS)
    del content["levels"][0]["latency"]
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    found = cluster(str(path))
    level = found.levels[0]
    assert level.send_seconds(0.0) == 2e-6
    waited = level.slower_by(0.25).send_seconds(1e6)
    assert waited == pytest.approx(level.send_seconds(1e6) * 0.25)
    assert type(found).model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("lab.yaml", "name: lab\nname: hall\n", "`name` is given twice"),
        (
            "lab.yaml",
            "name: lab\nlevels:\n  - {name: node, latency: 0, latency: 1}\n",
            "`latency` is given twice",
        ),
        ("lab.json", '{"name": "lab", "device": {"a": 1, "a": 1}}', "`a` is given twice"),
        ("lab.yaml", f"name: {'9' * 5000}\n", "a cluster file must be YAML, but a value is not"),
        (
            "lab.json",
            f'{{"name": {"9" * 5000}}}',
            "a cluster file must be JSON, but a value is not",
        ),
        ("lab.yaml", "name: 2024-13-45\n", "a cluster file must be YAML, but a value is not"),
        ("lab.yaml", "[" * 3000, "a cluster file must be YAML, but it is nested too deeply"),
        ("lab.json", "[" * 99999, "a cluster file must be JSON, but it is nested too deeply"),
        (
            "lab.yaml",
            "name: lab\ndevice: &d\n  device: *d\n",
            "a cluster file must be YAML, but line 3 is not",
        ),
    ],
)
def test_a_file_that_cannot_be_read_as_one_description_is_refused(
    name: str, text: str, sentence: str, tmp_path: Path
) -> None:
    assert refusal(tmp_path / name, text) == sentence


def test_keys_that_are_merged_are_not_given_twice(tmp_path: Path) -> None:
    content = described()
    content["levels"] = ["NODE", "ROW"]
    node = "&node {name: node, size: 4, bandwidth: 1.0e+10, latency: 0}"
    text = yaml.safe_dump(content).replace("NODE", node)
    path = tmp_path / "lab.yaml"
    path.write_text(text.replace("ROW", "{<<: *node, name: row}"), encoding="utf-8")
    assert [level.name for level in cluster(str(path)).levels] == ["node", "row"]
