"""The decoders of Hugging Face: how each differs from Llama, in names of fields and in parts."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml

from shardwright.frontends.configs.kinds.kind import CONDITIONAL, Kind


@cache
def kinds() -> Mapping[str, Kind]:
    """Return the decoders by their ``model_type``, those of ``kinds.yaml``."""
    table = yaml.safe_load((files(__package__) / "kinds.yaml").read_text("utf-8"))
    del table["shared"]
    return {name: Kind(**own) for name, own in table.items()}


__all__ = ["CONDITIONAL", "Kind", "kinds"]
