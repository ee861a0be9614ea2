"""The cluster that measurements describe, as a cluster file whose figures have their sources."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import yaml

from shardwright.cost_model.cluster import Cluster
from shardwright.tools.calibrate.fitting import Line, Sample, fitted, rising
from shardwright.tools.calibrate.kernels import Machine
from shardwright.tools.calibrate.links import Measured

MARK = "# A cluster file of `shardwright calibrate`.\n"
_CONVOLUTION = "convolution"
_LEAST = 1e-8  # seconds: what is measured as less takes no time


def of_machine(
    name: str,
    found: Machine,
    operators: Mapping[str, Sequence[Sample]],
    collectives: Sequence[Measured],
    processes: int,
    skew: float = 0.0,
) -> dict[str, Any]:
    """Return the description of this machine, each process of which is a device.

    Parameters
    ----------
    name : str
        The name of the cluster.
    found : Machine
        Its peaks.
    operators : mapping of str to sequence of Sample
        Its measured operators.
    collectives : sequence of Measured
        Its measured collectives; without any there is one device.
    processes : int
        Number of processes.
    skew : float
        Seconds for which two of them wait for the later one.
    """
    rates = {operator: fitted(samples) for operator, samples in operators.items()}
    launch = sorted(line.fixed for line in rates.values())[len(rates) // 2]
    shares = _shares(rates, found.flops["float32"], found.bandwidth)
    level: dict[str, Any] = {"name": "machine", "size": processes}
    if collectives:
        level |= _level(collectives, skew)
    else:
        level |= {"bandwidth": found.bandwidth / 2, "latency": 0.0}
    return {
        "name": name,
        "device": {
            "name": "one process",
            "peak_flops": {k: float(v) for k, v in found.flops.items()},
            "memory_bandwidth": found.bandwidth,
            "memory_bytes": found.memory_bytes // processes,
            "launch_seconds": launch,
            "efficiency": shares,
        },
        "levels": [level],
    }


def _level(collectives: Sequence[Measured], skew: float) -> dict[str, Any]:
    """Return the links between processes: messages, and every kind of collective by itself."""
    kinds = dict.fromkeys(item.kind for item in collectives)
    found = {kind: [item for item in collectives if item.kind == kind] for kind in kinds}
    plain = {kind: [item for item in found[kind] if not item.is_packed] for kind in kinds}
    lines = {kind: fitted([item.sample for item in plain[kind]]) for kind in kinds}
    message = lines["permute"]
    rates = {kind: _collective(line) | _messages(found[kind]) for kind, line in lines.items()}
    return {
        "bandwidth": message.rate,
        "latency": message.fixed,
        "efficiency": {
            "bandwidth": _figure(1.0, "measured", f"messages: {message.text}"),
            "skew": _figure(skew, "measured", "work and collectives in a chain"),
            "collectives": {**rates, "send": _collective(message)},
        },
    }


def _collective(line: Line) -> dict[str, Any]:
    return {
        "latency": _figure(line.fixed, "measured", line.text),
        "bandwidth": _figure(line.rate, "measured", line.text),
    }


def _messages(collectives: Sequence[Measured]) -> dict[str, Any]:
    """Return the messages of one kind by their bytes, and what parts that are copied take more."""
    points = rising(item.message for item in collectives if not item.is_packed)
    found = {"messages": _points(points, "the bytes of a message and its seconds")}
    sizes, seconds = np.array(points).T
    packed = [
        (size, max(taken - float(np.interp(size, sizes, seconds)), _LEAST))
        for size, taken in (item.message for item in collectives if item.is_packed)
    ]
    if packed:
        found["packing"] = _points(rising(packed), "along the second dimension, less the first")
    return found


def _points(points: Sequence[tuple[float, float]], source: str) -> dict[str, Any]:
    pairs = [_Pair(pair) for pair in points]
    return {"points": pairs, "tag": "measured", "source": source}


class _Pair(list[float]):
    """Two numbers that a file has in one line."""


class _Dumper(yaml.SafeDumper):
    """Writes pairs of numbers in one line."""


_Dumper.add_representer(
    _Pair,
    lambda dumper, pair: dumper.represent_sequence("tag:yaml.org,2002:seq", pair, flow_style=True),
)


def of_base(
    name: str,
    base: Cluster,
    operators: Mapping[str, Sequence[Sample]],
    collectives: Sequence[Measured],
) -> dict[str, Any]:
    """Return a cluster of data sheets with what was measured on it.

    Parameters
    ----------
    name : str
        The name of the cluster.
    base : Cluster
        The devices and links by their data sheets.
    operators, collectives
        What was measured; either may be empty. Collectives are those of the innermost level.
    """
    content: dict[str, Any] = base.model_copy(update={"name": name}).model_dump(
        mode="json", exclude_none=True, exclude={"software"}
    )
    device = base.device
    if operators:
        aligned = {name: [s for s in found if s.is_aligned] for name, found in operators.items()}
        rates = {name: fitted(aligned[name] or found) for name, found in operators.items()}
        peak = max(device.peak_flops.values())
        shares = _shares(rates, peak, device.memory_bandwidth)
        compared = {name: found for name, found in operators.items() if aligned[name]}
        content["device"]["efficiency"] = shares | _unaligned(rates, compared)
    if collectives:
        link, level = fitted([item.sample for item in collectives]), content["levels"][0]
        share = min(1.0, link.rate / base.levels[0].bandwidth)
        level["latency"] = link.fixed
        level["efficiency"] = {"bandwidth": _figure(share, "measured", link.text)}
    return content


def _shares(rates: Mapping[str, Line], peak: float, bandwidth: float) -> dict[str, Any]:
    """Return what the device attains: shares of its peaks, and rates by operator."""
    product = _share(rates, ("matmul",), peak)
    attention = _share(rates, ("scaled_dot_product_attention", "causal_attention"), peak)
    convolution = _share(rates, tuple(n for n in rates if n.startswith(_CONVOLUTION)), peak)
    moved = _share(rates, ("add", "mul", "relu", "gelu"), bandwidth)
    assumed = _figure(1.0, "assumed", "not measured")
    found = {
        "matmul": product or assumed,
        "attention": attention or product or assumed,
        "memory": moved or assumed,
    }
    if convolution is not None:
        found[_CONVOLUTION] = convolution
    return {**found, "operators": {name: _rate(line) for name, line in sorted(rates.items())}}


def _unaligned(
    rates: Mapping[str, Line], operators: Mapping[str, Sequence[Sample]]
) -> dict[str, Any]:
    """Return what products keep of their rates where dimensions are no multiples of 8."""
    kept: dict[str, list[float]] = {"even": [], "odd": []}
    for name, samples in operators.items():
        for sample in (sample for sample in samples if not sample.is_aligned):
            share = min(1.0, rates[name].seconds(sample) / sample.seconds)
            kept["odd" if sample.alignment == 1 else "even"].append(share)
    found = {
        parity: _figure(float(np.median(shares)), "measured", f"{len(shares)} products")
        for parity, shares in kept.items()
        if shares
    }
    return {"unaligned": found} if found else {}


def _rate(line: Line) -> dict[str, Any]:
    terms = {"rate": line.rate, "launch": line.fixed, "traffic": line.traffic}
    return {
        name: _figure(value, "measured", line.text)
        for name, value in terms.items()
        if isfinite(value)
    }


def _share(rates: Mapping[str, Line], names: Sequence[str], peak: float) -> dict[str, Any] | None:
    """Return the share of a peak that the first of some operators attains."""
    for name in names:
        if name in rates:
            line = rates[name]
            share, source = line.rate / peak, f"{name}: {line.text}"
            more = "" if share <= 1 else f"; {share:.3g} times the peak, as it works in caches"
            return _figure(min(1.0, share), "measured", source + more)
    return None


def _figure(value: float, tag: str, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.6g}"), "tag": tag, "source": source}


def as_text(content: Mapping[str, Any], notes: Sequence[str]) -> str:
    """Return a description as YAML, with notes on its top."""
    lines = "".join(f"# {note}\n" for note in notes)
    text = yaml.dump(_rounded(content), Dumper=_Dumper, sort_keys=False, width=120)
    return MARK + lines + text


def _rounded(item: Any) -> Any:
    if isinstance(item, dict | Mapping):
        return {key: _rounded(value) for key, value in item.items()}
    if isinstance(item, _Pair):
        first, second = item
        return _Pair([first, _rounded(second)])
    if isinstance(item, list | tuple):
        return [_rounded(value) for value in item]
    return float(f"{item:.6g}") if isinstance(item, float) else item
