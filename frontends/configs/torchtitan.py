"""torchtitan's TOML: a model by its flavour, a plan and a training.

The names of tables and keys are those of `torchtitan/config/job_config.py`. Until version 0.1 the
degrees stood in the tables `training` and `experimental`.
"""

from collections.abc import Mapping
from typing import Any

from shardwright.frontends.configs.layout import is_even
from shardwright.frontends.configs.reading import Fields, Reading
from shardwright.frontends.configs.recipes import of_torchtitan
from shardwright.frontends.configs.torchtitan_models import FLAVORS, stage_sizes

_SCHEDULES = {
    "1F1B": "1f1b",
    "GPipe": "gpipe",
    "Interleaved1F1B": "interleaved",
    "ZBVZeroBubble": "zero_bubble_v",
    "DualPipeV": "dualpipe_v",
}
_OF_CHUNKS = ("interleaved", "zero_bubble_v", "dualpipe_v")
_ROTATIONS = {"allgather": False, "alltoall": True}
_OF_EXPERTS = ("expert", "expert_tensor")
_BLOCK = "layers."
_LISTED = "module_fqns_per_model_part"
_EACH = "pipeline_parallel_layers_per_stage"
_ENDS = tuple(f"pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
_PASSES = "pipeline_parallel_microbatches"
_OLD = "pipeline_parallel_old_stages"  # of version 0.1: the degree stands in another table
_LEFT = -1  # shards: all devices that the other degrees leave
_OLD_TABLES = ("training", "experimental")
_DEGREES = (
    *("data_parallel_", "tensor_parallel_", "pipeline_parallel_", "context_parallel_"),
    *("expert_parallel_", "expert_tensor_parallel_"),
)
_OLD_KEYS = (
    *("enable_async_tensor_parallel", "enable_compiled_autograd", "fsdp_reshard_after_forward"),
    *("disable_loss_parallel", "enable_loss_parallel"),
)
_BY_CONVERTER = 'turn it off, and name the converter in `[model]`: converters = ["float8"]'
_EIGHT_BITS = ("float8", "mx", "quantize")  # in use only where a converter names them
_NO_EFFECT = (
    *("job", "profiling", "metrics", "checkpoint", "lr_scheduler", "comm", "validation"),
    *("memory_estimation", "debug", *_EIGHT_BITS),
)
_OF_TRAINING = (
    *("steps", "dataset", "dataset_path", "max_norm", "seed", "deterministic", "gc_freq"),
    *("warmup_steps", "debug_moe_force_load_balance", "gc_debug"),
)
_OF_CHECKPOINTING = (
    *("per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "preserve_rng_state"),
    *("determinism_check", "debug", "memory_budget", "visualize_memory_budget_pareto"),
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
    found = _with_degrees(reading, tables)
    of = {name: Fields(reading, table) for name, table in found.items()}
    whole = Fields(reading, found)
    parts = {n: of.get(n) or Fields(reading, {}) for n in _READERS}
    if with_model:
        _read_flavor(parts["model"])
    else:
        named = parts["model"].take("name"), parts["model"].take("flavor")
        reading.notes.append(f"the model is another one than its `{named[0]}` `{named[1]}`")
    _read_plan(parts["parallelism"], parts["training"])
    if "float8" in of:
        of["float8"].only("enable_float8_linear", (False,), _BY_CONVERTER, False)
    recipe = of_torchtitan(parts["model"], found)
    for name, reader in _READERS.items():
        reader(parts[name])
        parts[name].end(f"`[{name}]` has no such key in a named plan")
        whole.left.pop(name, None)
    if recipe is not None:
        _set_recipe(reading, recipe)
        for name in _EIGHT_BITS:
            whole.left.pop(name, None)
    whole.drop(_NO_EFFECT)
    whole.end("the table changes the step in ways that are not known")
    return reading


def _set_recipe(reading: Reading, recipe: str) -> None:
    """Put a recipe in the place of the precision that it stands beside."""
    if reading.options["precision"] != "bfloat16":
        raise reading.error(
            f"`{recipe}` stands beside {reading.options['precision']}, expected bfloat16",
            'set `mixed_precision_param = "bfloat16"` in `[training]`, or leave out the converter; '
            "types are lower only where parameters are divided",
        )
    reading.options["precision"] = recipe


def _with_degrees(reading: Reading, tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables with the degrees in `parallelism`, wherever they stand."""
    found = {name: dict(table) for name, table in tables.items()}
    degrees = found.setdefault("parallelism", {})
    for table in _OLD_TABLES:
        own = found.get(table, {})
        for key in [k for k in own if k.startswith(_DEGREES) or k in _OLD_KEYS]:
            name = "data_parallel_shard_degree" if key == "data_parallel_degree" else key
            if name in degrees:
                raise reading.error(
                    f"`{name}` is given twice, in `[{table}]` too", "keep one of them"
                )
            degrees[name] = own.pop(key)
            if name == "pipeline_parallel_degree":
                degrees[_OLD] = True
    return found


def _read_plan(fields: Fields, training: Fields) -> None:
    reading, plan = fields.reading, fields.reading.plan
    for key, name in (("tensor", "tensor"), ("context", "context"), ("pipeline", "pipeline")):
        degree = fields.count(f"{name}_parallel_degree", 1)
        if degree > 1:
            plan[key] = degree
    if plan.get("tensor", 1) > 1:
        plan["sequence_parallel"] = True
    expert, within = (fields.count(f"{one}_parallel_degree", 1) for one in _OF_EXPERTS)
    if within not in (1, plan.get("tensor", 1)):
        raise reading.refused(
            f"{_OF_EXPERTS[1]}_parallel_degree", within, "expected 1, or as many as tensor ranks"
        )
    if expert > 1:
        plan |= {"expert": expert, "expert_tensor": within}
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
    hybrid = divided and copies > 1
    if hybrid and shards == _LEFT:
        raise reading.error(
            f"`data_parallel_replicate_degree` is {copies} and `data_parallel_shard_degree` is "
            "left to the devices: a plan names both",
            "give `data_parallel_shard_degree`",
        )
    if hybrid and shards == 1:
        raise reading.error(
            f"`data_parallel_replicate_degree` is {copies}, and parameters are divided over "
            "context ranks alone, which no named plan says",
            "set `data_parallel_replicate_degree` to 1",
        )
    if divided:
        when = fields.take("fsdp_reshard_after_forward", "default")
        kept = when == "never" or (when == "default" and plan.get("pipeline", 1) > 1)
        plan["zero"] = 2 if kept else 3
    if shards >= 1:
        plan["data"] = shards * copies
    if hybrid:
        plan["shard"] = shards
    _read_batches(fields, training)


def _read_batches(fields: Fields, training: Fields) -> None:
    """Read the micro-batch: that of a pipeline, or the samples of a rank."""
    reading, plan = fields.reading, fields.reading.plan
    local = training.count("local_batch_size", training.take("batch_size", 8))
    batch = training.take("global_batch_size", -1)
    micro = local
    if plan.get("pipeline", 1) > 1:
        why = f"expected {' or '.join(_SCHEDULES)}"
        schedule = fields.only("pipeline_parallel_schedule", _SCHEDULES, why, "1F1B")
        plan["schedule"] = _SCHEDULES[schedule]
        _read_stages(fields, plan["schedule"])
        micro = _read_micro_batch(fields, local)
    else:  # what is said of a pipeline has no effect without one
        fields.left.pop(_OLD, None)
        fields.drop((_LISTED,), ("pipeline_parallel_",))
    plan["micro_batch"] = micro
    if batch not in (None, -1):
        reading.sizes["batch"] = batch
    else:
        reading.notes.append(f"the batch is {local} samples on each data rank")
        reading.options["local_batch"] = local


def _read_micro_batch(fields: Fields, local: int) -> int:
    """Return the samples of a micro-batch; until version 0.1 the number of them was given."""
    if _PASSES not in fields.left:
        return fields.count("pipeline_parallel_microbatch_size", 1)
    passes = fields.count(_PASSES)
    if local % passes:
        raise fields.reading.refused(_PASSES, passes, f"they do not divide {local} samples")
    return local // passes


def _read_stages(fields: Fields, schedule: str) -> None:
    """Read the blocks of every stage: they must be those of a named plan."""
    reading, plan = fields.reading, fields.reading.plan
    groups, several = plan["pipeline"], schedule in _OF_CHUNKS
    fields.only("pipeline_parallel_split_points", ([], None), "layers are divided evenly")
    fields.only("pipeline_parallel_schedule_csv", ("", None), "an order of its own has no name")
    sizes = _sizes(fields, groups, 1 + several)
    if sizes is None:
        reading.notes.append("the stages are taken as those of a named plan, as even as there are")
    elif len(sizes) % groups or (len(sizes) > groups) != several:
        raise reading.error(
            f"there are {len(sizes)} stages for {groups} device groups with the order `{schedule}`",
            "expected one of each group, of `Interleaved1F1B` several, of those in a V two",
        )
    elif not is_even(sizes):
        raise reading.error(
            f"its stages have {', '.join(map(str, sizes))} blocks: a named plan has as even stages "
            "as there are, the longer ones behind",
            f"list others as `{_LISTED}`, or set `{_ENDS[0]}` and `{_ENDS[1]}` to 0",
        )
    if several:
        plan["chunks"] = 2 if sizes is None else len(sizes) // groups


def _sizes(fields: Fields, groups: int, per_group: int) -> tuple[int, ...] | None:
    """Return the numbers of blocks of the stages; None where the model is another one."""
    reading, each = fields.reading, None
    parts, layers = fields.take(_LISTED), reading.sizes.get("layers")
    if _EACH in fields.left:
        each = fields.count(_EACH)
    old = fields.take(_OLD) is not None
    if old:  # as many micro-batches as stages
        fields.left.setdefault(_PASSES, groups * per_group)
    ends = tuple(fields.whole(name, 1) for name in _ENDS)
    if parts is not None:
        return _listed(reading, parts, layers)
    if layers is None and each is not None:
        raise reading.refused(_EACH, each, "how many stages that makes is the model's")
    if layers is None:
        return None
    if max(groups * per_group, *ends) > layers:
        raise reading.error(
            f"{groups * per_group} stages, whose ends count as {ends[0]} and {ends[1]} blocks, "
            f"cannot be made of {layers} blocks",
            "use fewer stages",
        )
    own = None if old else (ends[0], ends[1])
    return stage_sizes(layers, groups, per_group, each=each, ends=own)


def _listed(reading: Reading, parts: object, layers: int | None) -> tuple[int, ...]:
    """Return the numbers of blocks of the stages whose modules are listed."""
    if not parts or not isinstance(parts, list) or not all(isinstance(p, list) for p in parts):
        raise reading.refused(_LISTED, parts, "expected a list of the modules of each stage")
    sizes = tuple(sum(str(one).startswith(_BLOCK) for one in part) for part in parts)
    listed = [str(one) for part in parts for one in part if str(one).startswith(_BLOCK)]
    if listed != [f"{_BLOCK}{i}" for i in range(layers or len(listed))]:
        raise reading.refused(_LISTED, sizes, "expected all blocks in their order")
    return sizes


def _read_parallelism(fields: Fields) -> None:
    software = ("enable_async_tensor_parallel", "enable_compiled_autograd")
    for name in [name for name in fields.left if name in software]:
        fields.reading.software.append(name)
        del fields.left[name]
    fields.only("disable_loss_parallel", (False,), "the loss is split by words", False)
    fields.only("enable_loss_parallel", (True,), "the loss is split by words", True)
    fields.only("data_parallel_type", ("fsdp",), "expected fsdp", "fsdp")
    fields.only(
        "context_parallel_load_balancer", ("headtail",), "work is balanced by halves", "headtail"
    )
    fields.drop(("fsdp_reshard_after_forward", "expert_parallel_comm_backend"))


def _read_flavor(fields: Fields) -> None:
    reading = fields.reading
    name, flavor = fields.take("name"), fields.take("flavor")
    if name is None:
        return
    if (str(name), str(flavor)) not in FLAVORS:
        known = ", ".join(f"{a} {b}" for a, b in FLAVORS)
        raise reading.error(f"the model `{name}` `{flavor}` is not known", f"there are {known}")
    if flavor == "debugmodel":
        reading.notes.append("`debugmodel` is that of version 0.2: 6 layers and 2,048 words")
    reading.model = "llama"
    reading.sizes |= FLAVORS[name, flavor]


def _read_model(fields: Fields) -> None:
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
    fields.only("fp8_linear", ("", False), _BY_CONVERTER, "")
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
    elif mode == "full" or (mode, option) == ("selective", "1"):
        fields.reading.plan["recompute"] = "full"
    elif mode != "none":
        told = f"{mode}` with the option `{option}" if mode == "selective" else mode
        raise fields.reading.refused(
            "activation_checkpoint.mode",
            told,
            "it recomputes other operators than a named plan can; expected none, full, or selective"
            " with the option op",
        )
    fields.drop(_OF_CHECKPOINTING)


def _read_compile(fields: Fields) -> None:
    fields.reading.software += [f"compile.{name}" for name in fields.left]
    fields.left.clear()


def _read_experimental(fields: Fields) -> None:
    """Read what is left in it: modules of the user's own may be another model."""
    for name in ("custom_import", "custom_args_module", "custom_model_path"):
        fields.only(name, ("",), "what a module of the user's own changes is not known", "")


def _read_fault_tolerance(fields: Fields) -> None:
    fields.only("enable", (False,), "replicas that may fail have no named plan", False)
    fields.reading.no_effect += list(fields.left)
    fields.left.clear()


_READERS = {
    "parallelism": _read_parallelism,
    "model": _read_model,
    "training": _read_training,
    "optimizer": _read_optimizer,
    "activation_checkpoint": _read_checkpointing,
    "compile": _read_compile,
    "experimental": _read_experimental,
    "fault_tolerance": _read_fault_tolerance,
}
