"""``shardwright clusters``: the clusters that come with the package."""

import argparse

from shardwright.cost_model.cluster import DEFAULT_CLUSTER, Cluster, Level, cluster, preset_names
from shardwright.cost_model.efficiency.cluster_files import (
    DEFAULT_VARIABLE,
    mixed_names,
    stands_for,
)
from shardwright.cost_model.efficiency.figures import Description, Figure
from shardwright.cost_model.efficiency.kernels import Curve
from shardwright.cost_model.pipelines.mixed import MixedCluster, any_cluster
from shardwright.ir.types import TF32
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.tools.console.tables import print_table

_SHEET = "data sheet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cluster whose figures are printed."""
    parser.add_argument(
        "cluster",
        nargs="?",
        metavar="NAME|FILE|LINE",
        help="print what devices and links of this one attain, each figure with its source",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print every cluster with its levels, or the figures of one."""
    if arguments.cluster is not None:
        _print_figures(cluster(arguments.cluster))
        return 0
    rows = [_row_of_preset(name) for name in preset_names()]
    for name in mixed_names():
        described = any_cluster(name)
        assert isinstance(described, MixedCluster)
        rows += _rows_of_parts(described)
    headings = ("cluster", "devices", "device, memory, float32", "links, innermost first")
    print_table("", headings, rows, right=(1,))
    print(
        "what differs is said after a colon: `--cluster h100:nodes=8,network=200Gb/s`; a cluster of"
    )
    print("your own is a file: `--cluster my_cluster.yaml`; see docs/clusters.md")
    default = f"without `--cluster` it is `{DEFAULT_CLUSTER}`"
    print(f"{default}; the variable {DEFAULT_VARIABLE} names another")
    return 0


def _print_figures(described: Cluster) -> None:
    """Print every figure of a cluster: its value, whether it was measured, and its source."""
    device = described.device
    rows = [("peak", f"{device.flops_per_second('bfloat16') / 1e12:g} Tflop/s", _SHEET, "bfloat16")]
    rows.append(
        ("memory bandwidth", f"{device.memory_bandwidth / 1e9:g} GB/s", _SHEET, device.name)
    )
    if device.efficiency is not None:
        rows += _figure_rows("", device.efficiency)
    if device.kernels is not None:
        rows += _figure_rows("kernels: ", device.kernels)
    if device.tf32 is not None:
        rate = f"{device.flops_per_second(TF32) / 1e12:g} Tflop/s"
        rows.append((TF32, rate, _SHEET, "peak of its products"))
        rows += _rows_of(f"{TF32} of products", device.tf32)
    for name, figure in device.recipes.items():
        rate = f"{device.recipe_flops_per_second(name) / 1e12:g} Tflop/s"
        rows.append((name, rate, _SHEET, "peak of its products"))
        rows += _rows_of(f"{name} of products", figure)
    for level in described.levels:
        rows.append((level.name, _rate_text(level), _SHEET, f"{level.size:,} members"))
        if level.efficiency is not None:
            rows += _figure_rows(f"{level.name} ", level.efficiency)
    print_table(described.name, ("figure", "value", "origin", "source"), rows, right=(1,))


def _figure_rows(place: str, part: Description) -> list[tuple[str, str, str, str]]:
    """Return a row for each figure of a part, and of the parts in it."""
    rows: list[tuple[str, str, str, str]] = []
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, dict):
            for key, inner in value.items():
                own = f"{name} {key}" if isinstance(inner, Curve) else key
                rows += _rows_of(f"{place}{own}", inner)
        else:
            rows += _rows_of(f"{place}{name}", value)
    return rows


def _rows_of(name: str, value: object) -> list[tuple[str, str, str, str]]:
    """Return the rows of a figure, a curve, or of a description that has some."""
    if isinstance(value, Curve):
        text = f"{value.share:g}{_halves(value)}"
        return [(name, text, _origin(value.tag), value.source)]
    if isinstance(value, Figure):
        return [(name, f"{value.value:g}", _origin(value.tag), value.source)]
    return _figure_rows(f"{name} ", value) if isinstance(value, Description) else []


def _halves(curve: Curve) -> str:
    """Return the sizes at which a curve has half of its share."""
    return "".join(f", half at {size} {half:g}" for size, half in curve.halves.items() if half)


def _origin(tag: str) -> str:
    return _SHEET if tag == "datasheet" else tag


def _row_of_preset(name: str) -> tuple[str, ...]:
    """Return the row of a preset; one that is another name says of what."""
    line = stands_for(name)
    first, *rest = _row(cluster(name))
    return (first if line is None else f"{first}\n= {line}", *rest)


def _row(described: Cluster) -> tuple[str, ...]:
    device = described.device
    speed = f"{device.flops_per_second('float32') / 1e12:g} Tflop/s"
    links = [f"{level.name} x{level.size}: {_rate_text(level)}" for level in described.levels]
    return (
        described.name,
        f"{described.size:,}",
        f"{device.name}\n{bytes_text(device.memory_bytes)}, {speed}\n{_attained(described)}",
        "\n".join(links),
    )


def _attained(described: Cluster) -> str:
    """Return of products how much of their peak is attained, and by what that is known."""
    own = described.device.efficiency
    return "data sheet" if own is None else f"products at {own.matmul.value:.0%}, {own.matmul.tag}"


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
