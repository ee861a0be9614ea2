"""The figures that are fitted: where each stands in the product's files, and its prior."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from shardwright.cost_model.cluster import Cluster, cluster
from shardwright.cost_model.efficiency.figures import Figure
from shardwright.cost_model.efficiency.fitting import Unknown
from shardwright.cost_model.efficiency.software import Software, software

FOLDER = Path(__file__).parents[2] / "cost_model"
Place = tuple[str, str, str]
"""The folder, the file, and the keys of a figure."""


@dataclass(frozen=True)
class Fitted:
    """A figure to fit: its prior, its upper bound, and the places where it stands.

    It stands in every place by a scale, which is 1 unless devices have it in common by a figure of
    their data sheets.
    """

    name: str
    prior: float
    sigma: float
    most: float
    places: tuple[Place, ...]
    scales: tuple[float, ...] = ()

    @property
    def at_places(self) -> Iterator[tuple[Place, float]]:
        """The places, with the scale of each."""
        return zip(self.places, self.scales or (1.0,) * len(self.places), strict=True)

    @property
    def value(self) -> float:
        """The value in the files."""
        place, scale = next(self.at_places)
        return read(place) / scale

    @property
    def unknown(self) -> Unknown:
        """The unknown: the fit begins with the value in the files."""
        return Unknown(self.name, self.prior, self.sigma, self.most, self.value)

    @property
    def held(self) -> Unknown:
        """The unknown that stays at its prior."""
        return Unknown(self.name, self.prior, 1e-6, self.most, self.prior)


_MANY = 1e9
# The prior, the standard deviation of its logarithm, and the upper bound of each kind of figure.
_MATMUL = {"device.efficiency.profiled.matmul": (0.8, 0.2, 1.0)}
_ATTENTION = {"device.efficiency.profiled.attention": (0.32, 0.5, 1.0)}
_OF_NODES = {"node.efficiency.bandwidth": (0.79, 0.3, 1.0)}
_OF_NETWORKS = {"pod.efficiency.bandwidth": (0.6, 0.3, 1.0)}
# Of nodes whose devices share network cards; a ring of several devices uses that of another.
_OF_SHARED_CARDS = {"pod.efficiency.several": (0.7, 0.4, 1.0)}
_OF_SOFTWARE = {
    "pointwise": (1.0, 1.0, _MANY),
    "copies": (0.5, 1.0, _MANY),
    "host": (20e-6, 1.0, 1.0),
    "softmax": (10.0, 0.7, _MANY),
    "collective": (28e-6, 0.7, 1.0),
    "skew": (40e-6, 1.0, 1.0),
    "transfer": (0.2e-3, 0.7, 1.0),
    "exposed_parameters": (0.9, 0.4, 1.0),
    "exposed_activations": (0.98, 0.1, 1.0),
}


def _of(
    title: str,
    kinds: Mapping[str, tuple[float, float, float]],
    *files: tuple[str, str],
    scales: tuple[float, ...] = (),
) -> list[Fitted]:
    """Return figures that stand in several files, alike or by a scale."""
    return [
        Fitted(
            f"{title} {key.replace('efficiency.', '').replace('profiled.', '').replace('.', ' ')}",
            *numbers,
            tuple((*file, key) for file in files),
            scales,
        )
        for key, numbers in kinds.items()
    ]


_A100 = tuple(
    ("clusters", name) for name in ("a100-selene", "a100-800g", "a100-1600g", "a100-40gb-1600g")
)
_H100 = (("clusters", "h100-3200g"), ("clusters", "h200-3200g"))
_H100_500W, _B200 = ("clusters", "h100-96gb-3200g"), ("clusters", "b200-node")
# Large products on the chips of TSMC's 4N process are limited by power, not by the peak of their
# clock: they take as many joules for each flop in all of them, so the share of the peak is the
# flops per joule by the watts over the peak. In teraflop of a dense bfloat16 product for a joule,
# and watts of the data sheets.
_POWER = (*_H100, _H100_500W, _B200)
_WATTS_OVER_PEAK = (700 / 989, 700 / 989, 500 / 989, 1000 / 2250)
_PER_JOULE = {"device.efficiency.profiled.matmul": (1.1, 0.2, 1 / max(_WATTS_OVER_PEAK))}
_SOFTWARE = (
    "megatron",
    "megatron-deepspeed",
    "composer",
    "nanotron",
    "megatron-core",
    "torchtitan",
)
# Of the options of a profile: its name, the option, the figure, and its prior.
_OPTIONS = (
    ("torchtitan", "eager", "pointwise", (1.7, 0.5, _MANY)),
    ("torchtitan", "async_tensor", "exposed_activations", (0.53, 0.3, 1.0)),
    ("megatron-core", "overlap", "exposed_activations", (0.53, 0.3, 1.0)),
    ("megatron-core", "overlap", "exposed_parameters", (0.2, 0.4, 1.0)),
    ("megatron-core", "overlap", "exposed_transfers", (0.3, 0.5, 1.0)),
)
_RECIPES = {"recipes.fp8-rowwise": (0.9, 0.3, 1.0)}  # of the products of a software by a recipe
ALL: tuple[Fitted, ...] = (
    *_of("A100", _MATMUL | _ATTENTION, *_A100),
    *_of("H100 and B200, per joule", _PER_JOULE, *_POWER, scales=_WATTS_OVER_PEAK),
    *_of("H100", _ATTENTION, *_H100, _H100_500W),
    *_of("B200", _ATTENTION, _B200),
    *_of("H100 and B200", _OF_NODES, *_POWER),
    *_of("h100-3200g", _OF_NETWORKS, *_H100, _H100_500W),
    *_of("a100-selene", _OF_NETWORKS, _A100[0]),
    *_of("a100-800g", _OF_NETWORKS | _OF_SHARED_CARDS, _A100[1]),
    *_of("a100-1600g", _OF_NETWORKS, *_A100[2:]),
    *_of("megatron-core", {"kernels": (1.4, 0.3, _MANY)}, ("software", "megatron-core")),
    *(figure for name in _SOFTWARE for figure in _of(name, _OF_SOFTWARE, ("software", name))),
    *(
        figure
        for name, option, key, prior in _OPTIONS
        for figure in _of(name, {f"options.{option}.{key}": prior}, ("software", name))
    ),
    *_of("torchtitan", _RECIPES, ("software", "torchtitan")),
)

MEASURED: tuple[Fitted, ...] = tuple(_of("A100", _OF_NODES, *_A100))
"""Figures that are measured by themselves, which rows are not fitted to."""


_OPTION, _RECIPE = "options.", "recipes."


@cache
def _original(folder: str, name: str) -> Any:
    return cluster(name) if folder == "clusters" else software(name)


def read(place: Place) -> float:
    """Return the value of a figure in a file of the product."""
    folder, name, key = place
    if key.startswith(_OPTION):
        _, option, key = key.split(".", 2)
        name = f"{name}+{option}"
    found: Any = _original(folder, name)
    for part in key.split("."):
        found = _part(found, part)
    return float(found.value)


def _part(owner: Any, name: str) -> Any:
    if isinstance(owner, Cluster) and name != "device":
        return next(level for level in owner.levels if level.name == name)
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


def changed(owner: Any, values: Mapping[str, float]) -> Any:
    """Return a cluster or a profile with other values of figures, by their keys."""
    if isinstance(owner, Figure):
        (value,) = values.values()
        return owner.with_value(value)
    inner: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        first, _, rest = key.partition(".")
        inner.setdefault(first, {})[rest] = value
    if isinstance(owner, Cluster):
        levels = tuple(
            changed(level, inner[level.name]) if level.name in inner else level
            for level in owner.levels
        )
        device = changed(owner.device, inner["device"]) if "device" in inner else owner.device
        return owner.model_copy(update={"levels": levels, "device": device})
    if isinstance(owner, dict):
        return owner | {key: changed(owner[key], own) for key, own in inner.items()}
    assert isinstance(owner, BaseModel)
    return owner.model_copy(update={k: changed(getattr(owner, k), v) for k, v in inner.items()})


class Rates:
    """Clusters as profiles run them, for some values of the figures."""

    def __init__(self, figures: Sequence[Fitted], values: Sequence[float]) -> None:
        self.by_file: dict[tuple[str, str], dict[str, float]] = {}
        for figure, value in zip(figures, values, strict=True):
            for (folder, name, key), scale in figure.at_places:
                self.by_file.setdefault((folder, name), {})[key] = value * scale
        self._known: dict[tuple[str, str], Cluster] = {}

    def cluster(self, name: str, profile: str) -> Cluster:
        """Return a cluster for timing programs as a software runs them."""
        if (name, profile) not in self._known:
            described, run_by = self._changed("clusters", name), self._changed("software", profile)
            assert isinstance(described, Cluster)
            assert isinstance(run_by, Software)
            self._known[name, profile] = described.run_by(run_by)
        return self._known[name, profile]

    def software(self, profile: str) -> Software:
        """Return a profile, with its options."""
        found = self._changed("software", profile)
        assert isinstance(found, Software)
        return found

    def _changed(self, folder: str, text: str) -> Any:
        name, *options = text.split("+")
        values = self.by_file.get((folder, name), {})
        found = {key: value for key, value in values.items() if not key.startswith(_OPTION)}
        for option in options:
            prefix = f"{_OPTION}{option}."
            found |= {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}
        own = _original(folder, text)
        return changed(own, found) if found else own


def concerns(figure: Fitted, described: str, profile: str, precision: str) -> bool:
    """Return whether rows of a cluster, a profile and a precision depend on a figure."""
    software, *options = profile.split("+")
    chosen = {_OPTION: options, _RECIPE: [precision]}
    return any(
        name == described
        or (
            name == software
            and all(
                key.split(".")[1] in own for kind, own in chosen.items() if key.startswith(kind)
            )
        )
        for _, name, key in figure.places
    )


# Writing

_KEY = re.compile(r"^(\s*)(?:- )?([\w-]+): *([^\s#]*)")


def write(figure: Fitted, value: float, tag: str, source: str) -> None:
    """Write a value to the product's files, with where it is from."""
    for (folder, name, key), scale in figure.at_places:
        path, own = _file_of(folder, name, key)
        new = figure_text(value * scale, tag, source)
        text = rewritten(path.read_text(encoding="utf-8"), own, new)
        path.write_text(text, encoding="utf-8")


def _file_of(folder: str, name: str, key: str) -> tuple[Path, str]:
    """Return the file of a figure, and its keys there: clusters name their device."""
    path, of_device = FOLDER / folder / f"{name}.yaml", "device."
    if folder != "clusters" or not key.startswith(of_device):
        return path, key
    device = yaml.safe_load(path.read_text(encoding="utf-8"))["device"]
    own = device if isinstance(device, str) else device["like"]
    return FOLDER / "devices" / f"{own}.yaml", key.removeprefix(of_device)


def figure_text(value: float, tag: str, source: str) -> str:
    """Return a figure as it stands in a file of the product."""
    return f'{{value: {value:.4g}, tag: {tag}, source: "{source}"}}'


def rewritten(text: str, wanted: str, figure: str) -> str:
    """Return the text of a file with another figure, which has a line of its own."""
    lines, keys = [], list[tuple[int, str]]()
    for line in text.splitlines():
        match = _KEY.match(line)
        if match:
            is_level = line.lstrip().startswith("- name:")
            depth, key = len(match[1]) + 2 * is_level, match[2]
            keys = [(d, k) for d, k in keys if d < depth]
            if is_level:  # a level goes by its name
                keys = [(depth - 1, match[3])]
            keys.append((depth, key))
            if ".".join(k for _, k in keys) == wanted:
                line = f"{match[1]}{key}: {figure}"
        lines.append(line)
    return "\n".join(lines) + "\n"
