"""Rotary embeddings in a ``config.json``: their base, and how they are stretched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log, pi
from typing import Any

from shardwright.frontends.configs.architecture import Rotary
from shardwright.frontends.configs.reading import Fields, Reading

_WORDS = ("rope_type", "truncate", "short_factor", "long_factor", "finetuned")
_NUMBERS = (
    *("rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    *("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    *("attention_factor", "partial_rotary_factor", "llama_4_scaling_beta"),
    "max_position_embeddings",
)
_POSITIVE = (
    *("rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow"),
    *("partial_rotary_factor", "low_freq_factor", "high_freq_factor"),
)
_PLAIN = ("longrope", "su", "dynamic")  # changed angles that the zoo does not have
_STRETCHED = ("linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of layers of one type.

    Parameters
    ----------
    reading : Reading
        The file.
    values : mapping
        Its fields.
    longest : int
        The longest sequence of the model.
    """

    reading: Reading
    values: Mapping[str, Any]
    longest: int

    def rotary(self, head: int, interleaved: bool) -> Rotary:
        """Return how features of a head are turned.

        Raises
        ------
        ModelError
            If a part of the head cannot be, or the angles have no form here.
        """
        share = float(self.values["partial_rotary_factor"])
        size = int(head * share)
        if not 2 <= size <= head or size % 2:
            raise self.reading.error(
                f"`partial_rotary_factor` is {share:g} and a head has {head} features, of which "
                f"{size} would be turned, expected an even number"
            )
        base = float(self.values["rope_theta"])
        own = 0 if size == head else size
        return Rotary(base, own, interleaved, **self._stretch(size))

    def scale(self, features: int) -> float | None:
        """Return the factor of scores, which YaRN as DeepSeek has it makes larger."""
        whole = self.values.get("mscale_all_dim")
        if self.values["rope_type"] == "default" or not whole:
            return None
        larger = _larger(self.values["factor"], whole)
        return float(features**-0.5 * larger**2)

    @property
    def temperature(self) -> tuple[float, int, int] | None:
        """The factor of queries by their positions (Ministral 3)."""
        factor = self.values.get("llama_4_scaling_beta")
        if not factor:
            return None
        return float(factor), int(self.values["original_max_position_embeddings"]), 0

    def _stretch(self, size: int) -> dict[str, Any]:
        """Return how the angles of longer sequences are made."""
        values, kind = self.values, self.values["rope_type"]
        if kind in _PLAIN:
            note = (
                f"`rope_scaling` ({kind}) changes the angles of positions, neither step nor "
                "memory; the model turns by plain angles"
            )
            if note not in self.reading.notes:
                self.reading.notes.append(note)
        if kind in ("default", *_PLAIN):
            return {}
        if kind not in _STRETCHED:
            known = ", ".join(("default", *_STRETCHED, *_PLAIN))
            raise self.reading.refused("rope_type", kind, f"expected {known}")
        needed = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ()
        for name in ("factor", *needed):
            if name not in values:
                raise self.reading.error(f"`rope_scaling` ({kind}) has no `{name}`", "add it")
        factor = float(values["factor"])
        if kind == "linear":
            return {"factor": factor}
        before = values.get("original_max_position_embeddings", self.longest)
        if kind == "llama3":
            slow, fast = (2 * pi * float(values[name]) / before for name in needed)
            return {"factor": factor, "ramp": (slow, fast), "by_frequency": True}
        return {"factor": factor, **_yarn(values, factor, before, size)}


def ropes(
    fields: Fields, types: Sequence[str], theta: float, longest: int, plain: frozenset[str]
) -> dict[str, Rope]:
    """Return the rotary embedding of each type of layers.

    A file has it for all in one table, or one for each type; older files have single fields.

    Parameters
    ----------
    fields : Fields
        The fields of the file.
    types : sequence of str
        The types of its layers.
    theta : float
        The base where the file has none.
    longest : int
        The longest sequence of the model.
    plain : frozenset of str
        Types that a single table is not for.

    Raises
    ------
    ModelError
        If a field has no form here.
    """
    reading = fields.reading
    partial = fields.number("partial_rotary_factor", 1.0)
    base = fields.number("rope_theta", theta)
    local = fields.number("rope_local_base_freq", base)
    old, new = fields.take("rope_scaling"), fields.take("rope_parameters")
    table = old if old is not None else new if new is not None else {}
    if not isinstance(table, dict):
        raise reading.error(f"`rope_parameters` is `{table}`, expected a table")
    nested = any(isinstance(one, dict) for one in table.values())
    found = {}
    for name in dict.fromkeys(types):
        own = table.get(name, {}) if nested else {} if name in plain else table
        start = local if name in plain else base
        values = {"rope_theta": start, "partial_rotary_factor": partial, **own}
        found[name] = Rope(reading, _checked(reading, values), longest)
    return found


def _checked(reading: Reading, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a rotary embedding, each of which has to be known."""
    kind = values.pop("type", None)
    values["rope_type"] = values.get("rope_type") or kind or "default"
    for name, value in values.items():
        if name not in (*_WORDS, *_NUMBERS):
            raise reading.refused(f"rope_parameters.{name}", value, "no such field is known")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _NUMBERS and value is not None and not is_number:
            shown = name if name == "rope_theta" else f"rope_parameters.{name}"
            raise reading.error(f"`{shown}` is `{value}`, expected a number")
        least = 1 if name == "rope_theta" else 0
        if name in _POSITIVE and is_number and not least < value < inf:
            raise reading.error(f"`{name}` is `{value}`, expected a number over {least}")
    if not isinstance(values["rope_type"], str):
        kind = values["rope_type"]
        raise reading.error(f"`rope_type` is `{kind}`, expected a name")
    return {name: value for name, value in values.items() if value is not None}


def _larger(factor: float, share: float) -> float:
    """Return by how much scores of longer sequences are made larger."""
    return 1.0 if factor <= 1 else 0.1 * share * log(factor) + 1.0


def _yarn(values: Mapping[str, Any], factor: float, before: float, size: int) -> dict[str, Any]:
    """Return the ramp and the amplitude of YaRN (Peng et al., 2023, section 3)."""

    def pair(turns: float) -> float:
        """Return the index of the pair that makes so many turns in the first training."""
        rest = log(before / (turns * 2 * pi))
        return float(size * rest / (2 * log(values["rope_theta"])))

    low, high = pair(values.get("beta_fast", 32)), pair(values.get("beta_slow", 1))
    if values.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    amplitude = values.get("attention_factor")
    if amplitude is None:
        share, whole = values.get("mscale"), values.get("mscale_all_dim")
        amplitude = _larger(factor, 1.0)
        if share and whole:
            amplitude = _larger(factor, share) / _larger(factor, whole)
    return {"ramp": (float(high), float(low)), "amplitude": float(amplitude)}
