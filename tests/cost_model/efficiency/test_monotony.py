"""Every figure of a cluster file has an effect: what is slower makes no program faster."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

import shardwright as sw
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.cluster_files import base_device
from shardwright.cost_model.roofline import program_seconds
from shardwright.ir.graph import Graph


def figure(value: float) -> dict[str, Any]:
    """Return a figure of a file."""
    return {"value": value, "tag": "measured", "source": "a test"}


def _messages(*points: tuple[float, float]) -> dict[str, Any]:
    return {"points": points, "tag": "measured", "source": "a test"}


_GATHER = {
    "latency": figure(9e-6),
    "bandwidth": figure(2e10),
    "messages": _messages((512, 7e-6), (6144, 9e-6), (131072, 49e-6)),
    "packing": _messages((512, 4.5e-6), (131072, 35e-6)),
}
_PROTOCOLS = [
    {"name": "short", "bandwidth": figure(0.2), "latency": figure(6e-7)},
    {"name": "long", "bandwidth": figure(0.5), "latency": figure(3e-6)},
]
DESCRIPTION: dict[str, Any] = {
    "name": "lab",
    "device": {
        "name": "card",
        "peak_flops": {"float32": 2e12, "bfloat16": 1e13},
        "memory_bandwidth": 1e12,
        "memory_bytes": 2 * 10**10,
        "launch_seconds": 3e-6,
        "efficiency": {
            "matmul": figure(0.4),
            "attention": figure(0.2),
            "memory": figure(0.4),
            "convolution": figure(0.3),
            "depth": figure(128),
            "unaligned": {"even": figure(0.4), "odd": figure(0.2)},
            "operators": {
                "relu": {"rate": figure(1e11), "launch": figure(1e-5)},
                "convolution": {
                    "rate": figure(5e11),
                    "launch": figure(1e-5),
                    "traffic": figure(5e11),
                },
            },
        },
    },
    "levels": [
        {
            "name": "node",
            "size": 4,
            "bandwidth": 1e10,
            "efficiency": {
                "bandwidth": figure(0.4),
                "skew": figure(1e-5),
                "protocols": _PROTOCOLS,
                "collectives": {"all_gather": _GATHER},
            },
        },
        {"name": "row", "size": 2, "bandwidth": 1e9, "latency": 5e-6, "shared_by": 2},
    ],
}
_RATES = ("bandwidth", "rate", "traffic", "matmul", "attention", "memory", "convolution")
_SECONDS = ("launch_seconds", "latency", "launch", "skew", "depth")


def _leaves(content: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _leaves(value, (*way, key))
        elif isinstance(value, float | int) and key not in ("size", "shared_by"):
            yield (*way, key)


def _is_rate(way: tuple[Any, ...]) -> bool:
    key = next(key for key in reversed(way) if isinstance(key, str) and key != "value")
    return key in (
        *_RATES,
        "memory_bandwidth",
        "float32",
        "bfloat16",
        "even",
        "odd",
        "memory_bytes",
    )


def scaled(way: tuple[Any, ...], factor: float) -> Cluster:
    """Return the cluster with one figure multiplied."""
    content = deepcopy(DESCRIPTION)
    place = content
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = type(place[way[-1]])(place[way[-1]] * factor)
    return Cluster.model_validate(content)


@cache
def programs() -> tuple[Graph, ...]:
    """Return programs of a transformer, of a convolutional network, and of dense layers."""
    lab = Cluster.model_validate(DESCRIPTION)
    gpt = "gpt:layers=1,hidden=60,heads=4,batch=8,sequence=32,vocabulary=64,dtype=float32"
    made = (
        sw.compile(gpt, 8, cluster=lab, plan="tensor=4,data=2,zero=3", precision="bfloat16"),
        sw.compile("lenet5:batch=8", 8, cluster=lab, mode="data_parallel"),
        sw.compile("mlp:batch=48", 8, cluster=lab, plan="tensor=4,data=2"),
    )
    return tuple(one.plan.program for one in made)


FIGURES = tuple(_leaves(DESCRIPTION))
WITHOUT_EFFECT = {("device", "memory_bytes")}


@pytest.mark.parametrize("way", FIGURES, ids=lambda way: ".".join(map(str, way)))
def test_what_is_slower_takes_no_less_time(way: tuple[Any, ...]) -> None:
    slower, faster = (0.5, 1.9) if _is_rate(way) else (1.9, 0.5)
    before, after, other = (
        [program_seconds(program, scaled(way, factor)) for program in programs()]
        for factor in (1.0, slower, faster)
    )
    for known, most, least in zip(before, after, other, strict=True):
        assert least <= known * (1 + 1e-12) <= most * (1 + 2e-12)
    has_effect = any(most > known for known, most in zip(before, after, strict=True))
    assert has_effect == (way not in WITHOUT_EFFECT)


# Kernels that were measured one by one


def _numbers(content: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to shares and halves, and to the shares of widths."""
    for place in _leaves(content, way):
        is_share_of_width = "widths" in place and place[-1] == 1
        if place[-1] in ("share", "value", "start") or "halves" in place or is_share_of_width:
            yield place


KERNELS = base_device("h100")["kernels"]
UNUSED = ("grouped", "flash", "start")  # no experts, another kernel, no measurement


def with_kernels(way: tuple[Any, ...], factor: float) -> Cluster:
    """Return the cluster with kernels of H100, one number of them multiplied."""
    content = deepcopy(DESCRIPTION)
    place = content["device"]["kernels"] = deepcopy(KERNELS)
    for key in way[:-1]:
        place = place[key]
    if way:
        place[way[-1]] *= factor
    return Cluster.model_validate(content)


@pytest.mark.long
@pytest.mark.parametrize("way", tuple(_numbers(KERNELS)), ids=lambda way: ".".join(map(str, way)))
def test_slower_kernels_take_no_less_time(way: tuple[Any, ...]) -> None:
    slower, faster = (1.9, 0.5) if "halves" in way or way[-1] == "start" else (0.5, 1.05)
    before, after, other = (
        [program_seconds(program, with_kernels(way, factor)) for program in programs()]
        for factor in (1.0, slower, faster)
    )
    for known, most, least in zip(before, after, other, strict=True):
        assert least <= known * (1 + 1e-12) <= most * (1 + 2e-12)
    narrow = "widths" in way and way[-2] > 0  # heads of the program have the first width at most
    has_effect = any(most > known for known, most in zip(before, after, strict=True))
    assert has_effect == (not narrow and not set(UNUSED) & set(way))
