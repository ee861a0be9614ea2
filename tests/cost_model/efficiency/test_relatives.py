"""A figure that is scaled from a relative is that of the relative by the ratio that it states."""

import shutil
from pathlib import Path

import pytest

from benchmarks.measurements.figures import FOLDER, rewritten
from benchmarks.measurements.relatives import TOLERANCE, follow, scaled_figures
from shardwright.cost_model.cluster import cluster


def test_scaled_figures_follow_their_relatives() -> None:
    found = list(scaled_figures())
    assert len(found) > 150
    wrong = [
        f"{one.path.name}: {one.key} is {one.value}, but {one.source} is {one.expected:.4g}"
        for one in found
        if abs(one.value - one.expected) > TOLERANCE * one.expected
    ]
    assert not wrong


def test_attention_of_a100_is_the_same_with_and_without_software() -> None:
    for name in ("a100-selene", "a100-40gb-1600g"):
        attained = cluster(name).device.efficiency
        assert attained is not None
        assert attained.attention.value == attained.profiled.attention.value


def test_what_is_scaled_from_a_changed_figure_follows_it(tmp_path: Path) -> None:
    for name in ("devices", "clusters"):
        shutil.copytree(FOLDER / name, tmp_path / name)
    changed = tmp_path / "devices" / "b200.yaml"
    text = changed.read_text(encoding="utf-8")
    figure = '{value: 0.3, tag: fitted, source: "steps"}'
    changed.write_text(rewritten(text, "efficiency.profiled.matmul", figure), encoding="utf-8")
    before = {(one.path, one.key): one.value for one in scaled_figures(tmp_path)}
    follow(tmp_path)
    moved = {
        (one.path.stem, one.key.rpartition(".")[2]): one.value
        for one in scaled_figures(tmp_path)
        if one.value != before[one.path, one.key]
    }
    # The GB300 follows the GB200, which is 0.92 of a B200.
    scaled = 0.92 * 0.3
    assert moved == {
        ("b300", "matmul"): 0.3,
        ("gb200", "matmul"): pytest.approx(scaled),
        ("gb300", "matmul"): pytest.approx(scaled),
    }
