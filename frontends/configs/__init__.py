"""Models and plans in the files of other systems: what they say in words of this one.

`read_model` returns a model of the zoo with its sizes, `read_plan` the degrees of a named plan and
options of a compilation. Every field or flag is read, is known to change neither step nor memory,
or is refused by its name.
"""

from shardwright.frontends.configs.config_files import (
    CONFIG,
    is_model,
    is_plan,
    read_model,
    read_plan,
)
from shardwright.frontends.configs.huggingface import known as known_architectures
from shardwright.frontends.configs.huggingface import read as read_fields
from shardwright.frontends.configs.reading import Reading

__all__ = [
    "CONFIG",
    "Reading",
    "is_model",
    "is_plan",
    "known_architectures",
    "read_fields",
    "read_model",
    "read_plan",
]
