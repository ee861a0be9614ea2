"""DeepSpeed's JSON: data ranks, a ZeRO stage, micro-batches and types.

The names are those of `deepspeed/runtime/config.py` and `deepspeed/runtime/zero/config.py`.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.frontends.configs.reading import Fields, Reading

_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_TABLES = (*_SIZES, "zero_optimization")
_NO_EFFECT = (
    *("steps_per_print", "wall_clock_breakdown", "scheduler", "gradient_clipping", "tensorboard"),
    *(
        "wandb",
        "csv_monitor",
        "comms_logger",
        "flops_profiler",
        "dump_state",
        "checkpoint",
        "_comment",
    ),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients"),
    *("memory_breakdown", "seed"),
)
_SOFTWARE = (
    *("overlap_comm", "contiguous_gradients", "reduce_bucket_size", "allgather_bucket_size"),
    *("reduce_scatter", "allgather_partitions", "round_robin_gradients", "sub_group_size"),
    *("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "stage3_max_reuse_distance"),
    *("stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save"),
)
_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "muon": "muon"}


def is_config(table: Mapping[str, Any]) -> bool:
    """Return whether a JSON object is a configuration of DeepSpeed."""
    return any(name in table for name in _TABLES)


def read(where: str, table: Mapping[str, Any]) -> Reading:
    """Return what a configuration says.

    Raises
    ------
    ModelError
        If a key is not supported.
    """
    reading = Reading(where, profile="deepspeed")
    fields = Fields(reading, table)
    _read_sizes(fields)
    _read_zero(_table(fields, "zero_optimization"))
    _read_types(fields)
    _read_optimizer(fields)
    if fields.take("activation_checkpointing") is not None:
        reading.plan["recompute"] = "full"
        reading.notes.append(
            "`activation_checkpointing` is taken as that of every block; the model's own code says"
        )
    fields.drop(_NO_EFFECT)
    fields.end("it changes the step in ways that a named plan does not say")
    return reading


def _table(fields: Fields, name: str) -> Fields:
    table = fields.take(name, {})
    if not isinstance(table, dict):
        raise fields.reading.refused(name, table, "expected an object")
    return Fields(fields.reading, table, f"{name}.")


def _read_sizes(fields: Fields) -> None:
    """Read batch, micro-batch and passes: of three numbers and the data ranks, what they say."""
    reading, plan = fields.reading, fields.reading.plan
    batch, micro, passes = (
        fields.count(name) if fields.left.get(name) is not None else fields.take(name)
        for name in _SIZES
    )
    if micro is None:
        raise reading.error(f"there is no `{_SIZES[1]}`", "add it")
    plan["micro_batch"] = micro
    if batch is not None:
        reading.sizes["batch"] = batch
        if passes is not None and batch % (micro * passes):
            raise reading.refused(_SIZES[0], batch, f"{micro} * {passes} samples do not divide it")
        if passes is not None:
            plan["data"] = batch // (micro * passes)
    elif passes is not None:
        reading.options["local_batch"] = micro * passes


def _read_zero(fields: Fields) -> None:
    reading, plan = fields.reading, fields.reading.plan
    stage = fields.only("stage", (0, 1, 2, 3), "expected 0, 1, 2 or 3", 0)
    if stage:
        plan["zero"] = stage
    for name in ("offload_param", "offload_optimizer"):
        table = fields.take(name, {})
        if isinstance(table, dict) and table.get("device", "none") not in (None, "none"):
            raise reading.refused(f"{fields.prefix}{name}", table, "tensors stay on the devices")
    for name in [name for name in fields.left if name in _SOFTWARE]:
        reading.software.append(name)
        del fields.left[name]
    fields.end("a named plan has no such part")


def _read_types(fields: Fields) -> None:
    reading, options = fields.reading, fields.reading.options
    lower = [name for name in ("bf16", "fp16") if _is_on(_table(fields, name))]
    if len(lower) > 1:
        raise reading.error("`bf16` and `fp16` are both enabled", "enable one of them")
    word = lower[0] if lower else "fp32"
    options["precision"] = _TYPES[word]
    types = _table(fields, "data_types")
    kept = types.only("grad_accum_dtype", (None, *_TYPES), "expected fp32, bf16 or fp16")
    types.end("there is no such type")
    sent = fields.only("communication_data_type", (None, *_TYPES), "expected fp32, bf16 or fp16")
    if lower:
        for name, value in (("reduce_type", sent), ("accumulate_type", kept)):
            if value not in (None, "fp32", word):
                raise reading.refused(name, value, f"expected fp32 or {word}")
            options[name] = "float32" if value == "fp32" else "lower"
    elif {sent, kept} - {None, "fp32"}:
        raise reading.error("gradients have a lower type than parameters", "enable bf16 or fp16")


def _is_on(fields: Fields) -> bool:
    found = fields.flag("enabled", bool(fields.left))
    fields.left.clear()  # scales and rounds
    return found


def _read_optimizer(fields: Fields) -> None:
    table = _table(fields, "optimizer")
    kind = table.take("type")
    if kind is None:
        fields.reading.notes.append("the script makes the optimizer, so `--optimizer` says which")
        return
    rule = _OPTIMIZERS.get(str(kind).lower())
    if rule is None:
        raise fields.reading.refused("optimizer.type", kind, "expected Adam, AdamW, Muon or SGD")
    params = table.left.get("params", {})
    moves = rule == "sgd" and isinstance(params, dict) and params.get("momentum")
    fields.reading.options["optimizer"] = "momentum" if moves else rule
