"""Where the figures of a cluster are from, in words."""

from shardwright.cost_model.cluster import Cluster, preset_names
from shardwright.cost_model.efficiency.cluster_files import device_names, device_text
from shardwright.cost_model.efficiency.kernels import SHORT
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster

_OF_PEAKS = "; steps are of data-sheet peaks, of which operators of published runs attain 69 to 90%"


def attained_text(described: AnyCluster) -> str:
    """Return that steps are of peaks, and which preset has attained rates; empty where they are."""
    if isinstance(described, MixedCluster):
        return next((_OF_PEAKS for part in described.parts if not part.device.efficiency), "")
    if described.device.efficiency is not None:
        return ""
    known = attained_preset(described)
    return _OF_PEAKS if known is None else f"{_OF_PEAKS}: `--cluster {known}` has attained rates"


def attained_preset(described: AnyCluster) -> str | None:
    """Return a preset with attained rates of the device of a cluster that has data-sheet peaks."""
    if isinstance(described, MixedCluster) or described.device.efficiency is not None:
        return None
    line = f"name: {described.device.name}\n"
    own = next((name for name in device_names() if line in device_text(name)), None)
    presets = (name for name in preset_names() if name == own or name.startswith(f"{own}-"))
    return next(presets, None)


def figures_line(described: AnyCluster) -> str:
    """Return where the figures of a cluster are from, in one line; empty for those of no kind."""
    if isinstance(described, MixedCluster):
        return ""
    if described.device.efficiency is None:
        return attained_text(described).removeprefix("; ") if attained_preset(described) else ""
    return f"{origins_text(described)}; `shardwright clusters {described.name}` has their sources"


def origins_text(described: Cluster) -> str:
    """Return of the main figures of a cluster what they are: measured, fitted, scaled, ..."""
    own = described.device.efficiency
    if own is None:
        return "all of data sheets"
    links = [level.efficiency for level in described.levels if level.efficiency is not None]
    tags = sorted({link.bandwidth.tag for link in links})
    kernels = described.device.kernels
    curve = None if kernels is None else kernels.of_attention(SHORT[0], backward=False)
    attention = own.attention if curve is None else curve
    parts = [("products", own.matmul), ("attention", attention), ("memory", own.memory)]
    found = [f"{what} {figure.tag}" for what, figure in parts]
    return ", ".join([*found, f"links {' and '.join(tags)}"] if links else found)
