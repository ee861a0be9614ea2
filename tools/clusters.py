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
