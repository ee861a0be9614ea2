"""Named decoders: the fields of their ``config.json``, and where these were found.

The table is ``presets.json``, one entry for each name that people use. `counted` has their
parameters; those that a token goes through are all but the routed experts that it does not choose.
The published figures beside them have as many digits as their source, and a source of their own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shardwright.frontends import configs
from shardwright.frontends.configs.architecture import Architecture, Experts, Layer
from shardwright.zoo.decoder import Decoder


@dataclass(frozen=True)
class Preset:
    """A decoder that has a name.

    Parameters
    ----------
    fields : mapping
        Its ``config.json``.
    source : str
        Where they were found.
    parameters, active : str
        The published figures: of all parameters, and of those that a token goes through; empty
        where there is none.
    published_in : str
        Where those were published.
    """

    fields: Mapping[str, Any]
    source: str
    parameters: str
    active: str
    published_in: str


@lru_cache(maxsize=1)
def presets() -> Mapping[str, Preset]:
    """Return the decoders that have names."""
    table = json.loads((files(__package__) / "presets.json").read_text("utf-8"))
    return {
        name: Preset(
            one["fields"],
            one["source"],
            one["published"]["parameters"],
            one["published"].get("active", ""),
            one["published"]["source"],
        )
        for name, one in table.items()
    }


def read(name: str, sizes: Mapping[str, str]) -> configs.Reading:
    """Return what a preset, or a file of another system, says of a model.

    Parameters
    ----------
    name : str
        The preset or the file.
    sizes : mapping of str to str
        Fields of a decoder that the user sets.
    """
    found = presets().get(name)
    if found is None:
        return configs.read_model(name, sizes)
    reading = configs.read_fields(name, found.fields, sizes)
    reading.assumed.clear()  # the name stands for them
    reading.no_effect.clear()
    return reading


def counted(architecture: Architecture) -> tuple[int, int]:
    """Return the trained parameters of a decoder, and those that a token goes through.

    Examples
    --------
    >>> counted(read("qwen3-30b-a3b", {}).architecture)
    (30532122624, 3353032704)
    """
    layers = architecture.layers
    rest = _elements(replace(architecture, layers=()))
    total = active = rest
    for layer in dict.fromkeys(layers):
        count = layers.count(layer)
        own = _elements(replace(architecture, layers=(layer,))) - rest
        total += count * own
        active += count * (own - _idle(architecture, layer))
    return total, active


def _idle(architecture: Architecture, layer: Layer) -> int:
    """Return the parameters of the experts of a layer that a token does not go through."""
    kind = layer.feed_forward
    if not isinstance(kind, Experts):
        return 0
    hidden, inner = kind.latent or architecture.hidden, kind.each.inner
    each = hidden * inner * (3 if kind.each.gated else 2)
    if kind.each.bias:
        each += inner * (2 if kind.each.gated else 1) + hidden
    return each * (kind.count - kind.top_k)


def _elements(architecture: Architecture) -> int:
    """Return the elements of the trained parameters of a decoder."""
    network = Decoder(architecture, "float32")
    return sum(parameter.size for parameter in network.trainable_params())
