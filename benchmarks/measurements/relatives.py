"""Scaled figures: each is that of a relative by a ratio, as its source says."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measurements.figures import FOLDER, figure_text, rewritten

_OTHER = re.compile(
    r"that of ([a-z]\w*(?:-\w+)*)(?:(?::? times| by their products:) ([\d.]+)(?: of ([\d.]+))?)?"
)
_LINKS = {
    "that of NVLink in nodes of A100": ("a100-1600g", "node"),
    "that of NVLink in nodes of H100": ("h100-3200g", "node"),
    "that of NVLink in nodes of H100 and B200": ("h100-3200g", "node"),
    "that of InfiniBand between nodes of A100": ("a100-1600g", "pod"),
    "that of the network between nodes of A100": ("a100-1600g", "pod"),
    "that of InfiniBand between nodes of H100": ("h100-3200g", "pod"),
}
TOLERANCE = 0.002  # relative: figures have three or four digits


@dataclass(frozen=True)
class Scaled:
    """A figure that is that of a relative times a ratio, which is the expected value."""

    path: Path
    key: str
    value: float
    source: str
    expected: float


def scaled_figures(folder: Path = FOLDER) -> Iterator[Scaled]:
    """Yield the scaled figures of devices and clusters whose relative has the same figure."""
    paths = sorted([*(folder / "devices").iterdir(), *(folder / "clusters").iterdir()])
    files = {path: _figures(path) for path in paths}
    for path, figures in files.items():
        for key, figure in figures.items():
            source = str(figure.get("source", ""))
            if figure.get("tag") != "scaled":
                continue
            if source in _LINKS:
                name, level = _LINKS[source]
                base_key, ratio = f"{level}.{key.partition('.')[2]}", 1.0
            elif found := _OTHER.match(source):
                name, base_key = found[1], key
                ratio = float(found[2] or 1) / float(found[3] or 1)
            else:
                continue
            base = files.get(path.with_name(f"{name}.yaml"), {}).get(base_key)
            if base is not None and "value" in figure:
                yield Scaled(path, key, figure["value"], source, float(base["value"]) * ratio)


def follow(folder: Path = FOLDER) -> None:
    """Write every scaled figure anew whose relative has another value now."""
    for _ in range(3):  # a relative of a relative of a device
        for one in scaled_figures(folder):
            if abs(one.value - one.expected) > TOLERANCE * one.expected:
                text = one.path.read_text(encoding="utf-8")
                new = figure_text(one.expected, "scaled", one.source)
                one.path.write_text(rewritten(text, one.key, new), encoding="utf-8")


def _figures(path: Path) -> dict[str, Any]:
    """Return the figures of a file by their keys; a level goes by its name."""
    return dict(_walk(yaml.safe_load(path.read_text(encoding="utf-8")), ""))


def _walk(found: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(found, dict):
        if "tag" in found:
            yield key, found
        for name, inner in found.items():
            if name != "levels":
                yield from _walk(inner, f"{key}.{name}" if key else name)
        for level in found.get("levels", ()):
            yield from _walk(level, level["name"])
