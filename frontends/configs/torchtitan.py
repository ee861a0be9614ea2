"""torchtitan's TOML: a model by its flavour, a plan and a training.

The names of tables and keys are those of `torchtitan/config/job_config.py`.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.frontends.configs.layout import is_even
from shardwright.frontends.configs.reading import Fields, Reading

_FLAVORS = {
    ("llama3", "8B"): {"layers": 32},
    ("llama3", "70B"): {"layers": 80, "hidden": 8192, "heads": 64, "inner": 28672},
    ("llama3", "405B"): {"layers": 126, "hidden": 16384, "heads": 128, "inner": 53248},
}
_SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
_ROTATIONS = {"allgather": False, "alltoall": True}
_BLOCK = "layers."
_LEFT = -1  # shards: all devices that the other degrees leave
_NO_EFFECT = (
    *("job", "profiling", "metrics", "checkpoint", "lr_scheduler", "comm", "validation"),
    *("fault_tolerance", "experimental", "memory_estimation", "debug"),
)
_OF_TRAINING = (
    *("steps", "dataset", "dataset_path", "max_norm", "seed", "deterministic", "gc_freq"),
    *("warmup_steps", "debug_moe_force_load_balance", "gc_debug"),
)
_TYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def read(where: str, tables: Mapping[str, Any], *, with_model: bool) -> Reading:
    """Return what a TOML file of torchtitan says.

    Parameters
    ----------
    where, tables : str, mapping
        The file, and what it holds.
    with_model : bool
        Whether the model is read too; else it is told, and left alone.

    Raises
    ------
    ModelError
        If a key is not supported.
    """
    reading = Reading(where)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise reading.error(f"`{name}` is `{table}`, expected a table")
    of = {name: Fields(reading, table) for name, table in tables.items()}
    whole = Fields(reading, tables)
    parts = {n: of.get(n) or Fields(reading, {}) for n in _READERS}
    _read_plan(parts["parallelism"], parts["training"])
    if not with_model:
        named = parts["model"].take("name"), parts["model"].take("flavor")
        reading.notes.append(f"the model is another one than its `{named[0]}` `{named[1]}`")
    for name, reader in _READERS.items():
        reader(parts[name])
        parts[name].end(f"`[{name}]` has no such key in a named plan")
        whole.left.pop(name, None)
    whole.drop(_NO_EFFECT)
    whole.end("the table changes the step in ways that are not known")
    return reading


def _read_plan(fields: Fields, training: Fields) -> None:
    reading, plan = fields.reading, fields.reading.plan
    for key, name in (("tensor", "tensor"), ("context", "context"), ("pipeline", "pipeline")):
        degree = fields.count(f"{name}_parallel_degree", 1)
        if degree > 1:
            plan[key] = degree
    if plan.get("tensor", 1) > 1:
        plan["sequence_parallel"] = True
    how = fields.only(
        "context_parallel_rotate_method", _ROTATIONS, "expected allgather or alltoall", "allgather"
    )
    if plan.get("context", 1) > 1 and _ROTATIONS[how]:
        plan["ring"] = True
    copies = fields.count("data_parallel_replicate_degree", 1)
    shards = _LEFT
    if fields.left.get("data_parallel_shard_degree") not in (None, _LEFT):
        shards = fields.count("data_parallel_shard_degree")
    fields.left.pop("data_parallel_shard_degree", None)
    divided = shards != 1 or plan.get("context", 1) > 1  # context ranks divide parameters, too
    if divided and copies > 1:
        raise reading.error(
            f"`data_parallel_replicate_degree` is {copies} and `data_parallel_shard_degree` is "
            f"{shards}: hybrid sharding has no named plan",
            "set one of them to 1; `fit` tells what hybrid sharding would take",
        )
    if divided:
        when = fields.take("fsdp_reshard_after_forward", "default")
        kept = when == "never" or (when == "default" and plan.get("pipeline", 1) > 1)
        plan["zero"] = 2 if kept else 3
    if shards >= 1:
        plan["data"] = max(shards, copies)
    _read_batches(fields, training)


def _read_batches(fields: Fields, training: Fields) -> None:
    """Read the micro-batch: that of a pipeline, or the samples of a rank."""
    reading, plan = fields.reading, fields.reading.plan
    local = training.count("local_batch_size", training.take("batch_size", 8))
    batch = training.take("global_batch_size", -1)
    micro = local
    if plan.get("pipeline", 1) > 1:
        micro = fields.count("pipeline_parallel_microbatch_size", 1)
        why = f"expected {' or '.join(_SCHEDULES)}"
        schedule = fields.only("pipeline_parallel_schedule", _SCHEDULES, why, "1F1B")
        plan["schedule"] = _SCHEDULES[schedule]
        _read_stages(fields, plan["schedule"])
    plan["micro_batch"] = micro
    if batch not in (None, -1):
        reading.sizes["batch"] = batch
    else:
        reading.notes.append(f"the batch is {local} samples on each data rank")
        reading.options["local_batch"] = local


def _read_stages(fields: Fields, schedule: str) -> None:
    """Read the modules of every stage: their blocks must be those of a named plan."""
    reading, plan = fields.reading, fields.reading.plan
    name = "module_fqns_per_model_part"
    parts = fields.take(name)
    if parts is None and schedule == "interleaved":
        raise reading.error(
            f"`{schedule}` has several stages for each device group, and there is no `{name}`",
            "add the modules of every stage",
        )
    if parts is None:
        return
    if not parts or not isinstance(parts, list) or not all(isinstance(p, list) for p in parts):
        raise reading.refused(name, parts, "expected a list of the modules of each stage")
    sizes = tuple(sum(str(one).startswith(_BLOCK) for one in part) for part in parts)
    listed = [str(one) for part in parts for one in part if str(one).startswith(_BLOCK)]
    if listed != [f"{_BLOCK}{i}" for i in range(len(listed))] or not is_even(sizes):
        raise reading.refused(
            name, sizes, "a named plan has as even stages as there are, the longer ones behind"
        )
    groups = plan["pipeline"]
    if len(sizes) % groups or (len(sizes) > groups) != (schedule == "interleaved"):
        raise reading.refused(name, sizes, f"{len(sizes)} stages for {groups} device groups")
    if len(sizes) > groups:
        plan["chunks"] = len(sizes) // groups


def _read_parallelism(fields: Fields) -> None:
    software = ("enable_async_tensor_parallel", "enable_compiled_autograd")
    for name in [name for name in fields.left if name in software]:
        fields.reading.software.append(name)
        del fields.left[name]
    fields.only("disable_loss_parallel", (False,), "the loss is split by words", False)
    fields.only("enable_loss_parallel", (True,), "the loss is split by words", True)
    why = "layers are divided evenly"
    fields.only("pipeline_parallel_layers_per_stage", (None,), why)
    fields.only("pipeline_parallel_split_points", ([], None), why)
    fields.only("module_fqns_per_model_part", (None,), why)
    fields.drop(("fsdp_reshard_after_forward",))


def _read_model(fields: Fields) -> None:
    reading = fields.reading
    name, flavor = fields.take("name"), fields.take("flavor")
    if name is not None:
        if (str(name), str(flavor)) not in _FLAVORS:
            known = ", ".join(f"{a} {b}" for a, b in _FLAVORS)
            raise reading.error(f"the model `{name}` `{flavor}` is not known", f"there are {known}")
        reading.model = "llama"
        reading.sizes |= _FLAVORS[name, flavor]
    fields.only("converters", ([], None), "products keep their type", [])
    fields.drop(("tokenizer_path", "hf_assets_path", "norm_type", "print_after_conversion"))


def _read_training(fields: Fields) -> None:
    reading = fields.reading
    reading.sizes["sequence"] = fields.count("seq_len", 2048)
    why = f"expected {', '.join(_TYPES)}"
    kind = fields.only("mixed_precision_param", _TYPES, why, "bfloat16")
    plan = reading.plan
    cut = any(plan.get(degree, 1) > 1 for degree in ("tensor", "context", "pipeline"))
    if "zero" not in plan and cut:
        kind = "float32"  # types are lower only where parameters are divided, or data ranks alone
    reading.options["precision"] = _TYPES[kind]
    reduced = fields.only(
        "mixed_precision_reduce", ("float32", kind), "expected float32", "float32"
    )
    if reduced == "float32" and kind != "float32":
        reading.options |= {"reduce_type": "float32", "accumulate_type": "float32"}
    fields.only("dtype", ("float32",), "parameters are float32", "float32")
    fields.only("enable_cpu_offload", (False,), "tensors stay on the devices", False)
    if fields.flag("compile"):
        reading.software.append("training.compile")
    fields.drop(_OF_TRAINING)


def _read_optimizer(fields: Fields) -> None:
    kind = fields.take("name", "AdamW")
    if kind not in ("AdamW", "Adam"):
        raise fields.reading.refused("name", kind, "expected AdamW or Adam")
    fields.reading.options["optimizer"] = "adam"
    fields.only("early_step_in_backward", (False,), "updates are at the end of a step", False)
    fields.drop(("lr", "eps", "beta1", "beta2", "weight_decay", "implementation", "fused"))


def _read_checkpointing(fields: Fields) -> None:
    mode = fields.take("mode", "selective")
    option = fields.take("selective_ac_option", "2")
    if (mode, option) == ("selective", "op"):
        fields.reading.plan["recompute"] = "operators"
    elif mode not in ("none", "full"):
        raise fields.reading.refused(
            "activation_checkpoint.mode",
            mode,
            "it recomputes other operators than a named plan can, expected none or full",
        )
    if mode == "full":
        fields.reading.plan["recompute"] = "full"
    fields.drop(("per_op_sac_force_recompute_mm_shapes_by_fqns",))


def _read_compile(fields: Fields) -> None:
    fields.reading.software += [f"compile.{name}" for name in fields.left]
    fields.left.clear()


_READERS = {
    "parallelism": _read_parallelism,
    "model": _read_model,
    "training": _read_training,
    "optimizer": _read_optimizer,
    "activation_checkpoint": _read_checkpointing,
    "compile": _read_compile,
}
