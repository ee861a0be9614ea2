"""``shardwright clusters``: the clusters that come with the package."""

import argparse

from shardwright.cost_model.cluster import Cluster, cluster, preset_names
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.tables import print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print every cluster with its levels."""
    rows = [_row(cluster(name)) for name in preset_names()]
    headings = ("cluster", "devices", "device, memory, float32", "links, innermost first")
    print_table("", headings, rows, right=(1,))
    print("a cluster of your own is a file: `--cluster my_cluster.yaml`; see docs/clusters.md")
    return 0


def _row(described: Cluster) -> tuple[str, ...]:
    device = described.device
    speed = f"{device.flops_per_second('float32') / 1e12:g} Tflop/s"
    links = [
        f"{level.name} x{level.size}: {level.bandwidth / 1e9:g} GB/s, {seconds_text(level.latency)}"
        for level in described.levels
    ]
    return (
        described.name,
        f"{described.size:,}",
        f"{device.name}\n{bytes_text(device.memory_bytes)}, {speed}",
        "\n".join(links),
    )


def attained_text(described: Cluster) -> str:
    """Return that steps are of peaks, and which preset has attained rates; empty where they are."""
    if described.device.efficiency is not None:
        return ""
    own = described.device.name
    presets = ((name, cluster(name).device) for name in preset_names())
    known = [name for name, device in presets if device.name == own and device.efficiency]
    text = "; steps are of data-sheet peaks, of which operators of published runs attain 69 to 90%"
    if not known:
        return text
    names = " or ".join(f"`--cluster {name}`" for name in known)
    return f"{text}: {names} has rates fitted to such runs on this device"
