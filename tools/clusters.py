"""``shardwright clusters``: the clusters that come with the package."""

import argparse

from shardwright.cost_model.cluster import Cluster, Level, cluster, preset_names
from shardwright.cost_model.efficiency.files import cluster_in, mixed_names
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster, any_cluster
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.tables import print_table

_OF_PEAKS = "; steps are of data-sheet peaks, of which operators of published runs attain 69 to 90%"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print every cluster with its levels."""
    rows = [_row(cluster(name)) for name in preset_names()]
    for name in mixed_names():
        described = any_cluster(name)
        assert isinstance(described, MixedCluster)
        rows += _rows_of_parts(described)
    headings = ("cluster", "devices", "device, memory, float32", "links, innermost first")
    print_table("", headings, rows, right=(1,))
    print("a cluster of your own is a file: `--cluster my_cluster.yaml`; see docs/clusters.md")
    return 0


def _row(described: Cluster) -> tuple[str, ...]:
    device = described.device
    speed = f"{device.flops_per_second('float32') / 1e12:g} Tflop/s"
    links = [f"{level.name} x{level.size}: {_rate_text(level)}" for level in described.levels]
    return (
        described.name,
        f"{described.size:,}",
        f"{device.name}\n{bytes_text(device.memory_bytes)}, {speed}",
        "\n".join(links),
    )


def _rate_text(level: Level) -> str:
    """Return the bandwidth of links, and the seconds of an empty message."""
    return f"{level.bandwidth / 1e9:g} GB/s, {seconds_text(level.send_seconds(0.0))}"


def _rows_of_parts(described: MixedCluster) -> list[tuple[str, ...]]:
    """Return a row for a mixed cluster, with the link between its parts, and one for each part."""
    link = described.link
    joined = f"{link.name}: {_rate_text(link)}"
    whole = (described.name, f"{described.size:,}", f"{len(described.parts)} parts", joined)
    parts = (_row(part) for part in described.parts)
    return [whole, *((f"  {name}", *rest) for name, *rest in parts)]


def attained_text(described: AnyCluster) -> str:
    """Return that steps are of peaks, and which preset has attained rates; empty where they are."""
    if isinstance(described, MixedCluster):
        return next((_OF_PEAKS for part in described.parts if not part.device.efficiency), "")
    if described.device.efficiency is not None:
        return ""
    known = fitted_presets(described)
    if not known:
        return _OF_PEAKS
    names = " or ".join(f"`--cluster {name}`" for name in known)
    return f"{_OF_PEAKS}: {names} has rates fitted to such runs on this device"


def fitted_presets(described: AnyCluster) -> list[str]:
    """Return presets with attained rates of the device of a cluster that has data-sheet peaks."""
    if isinstance(described, MixedCluster) or described.device.efficiency is not None:
        return []
    own = described.device.name
    named = (name for name in preset_names() if own in cluster_in(name)[0])  # others are not read
    presets = ((name, cluster(name).device) for name in named)
    return [name for name, device in presets if device.name == own and device.efficiency]
