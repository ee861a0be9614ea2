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
    """A figure that is that of a relative times a ratio."""

    path: Path
    key: str
    value: float
    source: str
    base: Path
    base_key: str
    ratio: float

    @property
    def expected(self) -> float:
        """The value by that of the relative in its file."""
        return float(_figures(self.base)[self.base_key]["value"]) * self.ratio


def scaled_figures(folder: Path = FOLDER) -> Iterator[Scaled]:
    """Yield the scaled figures of devices and clusters whose relative has the same figure."""
    for path in sorted([*(folder / "devices").iterdir(), *(folder / "clusters").iterdir()]):
        for key, figure in _figures(path).items():
            source = str(figure.get("source", ""))
            if figure.get("tag") != "scaled":
                continue
            if source in _LINKS:
                name, level = _LINKS[source]
                base, base_key = path.with_name(f"{name}.yaml"), f"{level}.{key.partition('.')[2]}"
                ratio = 1.0
            elif found := _OTHER.match(source):
                base, base_key = path.with_name(f"{found[1]}.yaml"), key
                ratio = float(found[2] or 1) / float(found[3] or 1)
            else:
                continue
            if base.exists() and "value" in figure and base_key in _figures(base):
                yield Scaled(path, key, figure["value"], source, base, base_key, ratio)


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
