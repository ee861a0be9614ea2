"""transformers' `DistributedConfig` as JSON: tensor, data and expert ranks.

The names are those of `transformers/distributed/configuration_utils.py` since 5.20. The samples of
a micro-batch and recomputation are in `TrainingArguments`, not in it.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.frontends.configs.reading import Fields, Reading

_SIZES = ("tp_size", "fsdp_size", "dp_replicate_size", "pp_size", "ep_size")
_PLANS = ("tp_plan", "fsdp_plan", "ep_plan")
_EXCHANGES = (None, "auto", "all_to_all")
_OFF = (False, None)


def is_config(table: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a `DistributedConfig`."""
    return any(name in table for name in _SIZES)


def read(where: str, table: Mapping[str, Any]) -> Reading:
    """Return what a `DistributedConfig` says.

    Raises
    ------
    ModelError
        If a field is not supported.
    """
    reading = Reading(where)
    fields, plan = Fields(reading, table), reading.plan
    tensor, shards, copies, stages, experts = (fields.count(name, 1) for name in _SIZES)
    degrees = {"tensor": tensor, "pipeline": stages, "expert": experts}
    plan |= {name: degree for name, degree in degrees.items() if degree > 1}
    plan["data"] = copies * shards
    if shards > 1:
        plan["zero"] = 3
    if copies > 1 < shards:
        plan["shard"] = shards
    if experts > 1 < tensor:
        why = f"the {tensor} tensor ranks hold the same tokens, and named plans exchange others"
        raise reading.refused("ep_size", experts, why)
    exchange = fields.only("ep_implementation", _EXCHANGES, "expected auto or all_to_all")
    if experts > 1 and exchange != _EXCHANGES[-1]:
        reading.notes.append("the exchange of tokens with experts is priced as all-to-all")
    why = "give `ep_size`, which it stands for"
    fields.only("enable_expert_parallel", _OFF if experts == 1 else (*_OFF, True), why)
    fields.only("enable_sequence_parallel", _OFF, "transformers does not divide sequences yet")
    fields.only("fsdp_cpu_offload", _OFF, "tensors stay on the devices")
    if fields.take("fsdp_mixed_precision"):
        reading.options["precision"] = "bfloat16"
    given = [name for name in _PLANS if fields.take(name)]
    if given:
        names = ", ".join(given)
        reading.notes.append(f"modules are divided as in any named plan, so not read: {names}")
    fields.end("a named plan has no such part")
    return reading
