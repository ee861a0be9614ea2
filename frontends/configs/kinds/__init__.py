"""The decoders of Hugging Face: how each differs from Llama, in names of fields and in parts."""

from collections.abc import Mapping

from shardwright.frontends.configs.kinds.dense import DENSE
from shardwright.frontends.configs.kinds.kind import CONDITIONAL, Kind
from shardwright.frontends.configs.kinds.mixtures import MIXTURES

KINDS: Mapping[str, Kind] = {**DENSE, **MIXTURES}

__all__ = ["CONDITIONAL", "KINDS", "Kind"]
