"""Device configurations and sharding specs of ONNX (IR 11), on the file of the model of a plan.

A tensor of the file has a spec where the plan has a tensor of its name: what is folded or fused
has none, and neither has a pending sum, for which ONNX has no field.
"""

from collections.abc import Iterable
from itertools import product
from typing import Any, Final

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.ir.errors import OptionError
from shardwright.ir.layout import Layout
from shardwright.ir.optional import optional
from shardwright.ir.text import plain_name
from shardwright.ir.units import first_names

_NAME: Final = "shardwright"


def export(plan: Plan) -> Exported:
    """Return ``model.onnx``: the file of the model, with a spec of every tensor that the plan has.

    Raises
    ------
    ShardwrightError
        If the model is no ONNX file, the file is not there, or `onnx` is not installed.
    """
    onnx = optional("onnx", extra="onnx", need="an ONNX file with sharding specs")
    path = _path(plan)
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise OptionError(
            f"the model of the plan, `{path}`, cannot be read: {error.strerror}",
            hint="run the command in the folder where the plan was compiled",
        ) from error
    model.ir_version = max(model.ir_version, 11)  # the first with device configurations
    configuration = model.configuration.add()
    configuration.name, configuration.num_devices = (
        _NAME,
        plan.mesh.of_ranks.size * plan.mesh.stages,
    )
    left_out, uneven = _annotate(plan, model.graph.node)
    notes = []
    if left_out:
        notes.append(
            f"{len(left_out)} tensors have no spec: they are folded, fused, or pending sums in the "
            "plan"
        )
    if uneven:
        notes.append(
            f"parts of unequal size: {first_names(uneven, 1)}; ONNX does not say which are larger: "
            "here the first ones"
        )
    external = [one.name for one in model.graph.initializer if one.external_data]
    if external:
        notes.append(f"`{external[0]}` has its data in another file: keep that beside this one")
    if plan.mesh.passes > 1:
        notes.append(f"specs are those of one of {plan.mesh.passes} micro-batches")
    return Exported({"model.onnx": model.SerializeToString(deterministic=True)}, tuple(notes))


def _path(plan: Plan) -> str:
    """Return the path of the model.

    Raises
    ------
    OptionError
        If it is no ONNX file.
    """
    path, found, _ = plan.document.model.partition(".onnx")
    if not found:
        raise OptionError(
            f"the model of the plan is `{plan.document.model}`, `--to onnx` needs an ONNX file",
            hint="compile the file of the model: `shardwright compile model.onnx --devices 8`",
        )
    return path + found


def _annotate(plan: Plan, nodes: Iterable[Any]) -> tuple[set[str], list[str]]:
    """Add the specs to nodes; return the tensors that have none, and those of uneven parts."""
    values, mesh = plan.program.values, plan.mesh.of_ranks
    left_out: set[str] = set()
    uneven: dict[str, None] = {}
    for node in nodes:
        own = node.device_configurations.add()
        own.configuration_id = _NAME
        for name in dict.fromkeys((*node.input, *node.output)):
            value = values.get(plain_name(name)) if name else None
            layout = None if value is None else value.layout
            if value is None or layout is None or layout.partial:
                left_out.update([name] if name else [])
                continue
            if not layout.without(plan.mesh.in_time).is_even(value.type.shape, mesh):
                uneven[name] = None
            _add_spec(own.sharding_spec.add(), name, value.type.shape, layout, plan)
            if layout.stage is not None and name in node.output:
                own.pipeline_stage = layout.stage
        if not own.sharding_spec:
            del node.device_configurations[:]
    return left_out, [*uneven]


def _add_spec(spec: Any, name: str, shape: tuple[int, ...], layout: Layout, plan: Plan) -> None:
    """Fill in the spec of a tensor: its devices by shard, and the axes that are split."""
    mesh = plan.mesh.of_ranks
    layout = layout.without(plan.mesh.in_time)
    spec.tensor_name = name
    counts = layout.counts(mesh)
    shards: dict[tuple[int, ...], list[int]] = {
        at: [] for at in product(*(range(count) for count in counts))
    }
    for device in plan.mesh.ranks_of(layout.stage):
        rank = device % mesh.size
        at = tuple(_coordinate(axes, rank, plan) for axes in layout.splits)
        shards[at].append(device)
    for i, devices in enumerate(shards.values()):
        if len(devices) == 1:
            spec.device.append(devices[0])
            continue
        key = mesh.size * plan.mesh.stages + i  # no device has it
        spec.device.append(key)
        entry = spec.index_to_device_group_map.add()
        entry.key = key
        entry.value.extend(devices)
    for axis, (size, count) in enumerate(zip(shape, counts, strict=True)):
        if count > 1:
            dim = spec.sharded_dim.add()
            dim.axis = axis
            one = dim.simple_sharding.add()
            one.dim_value, one.num_shards = size, count


def _coordinate(axes: tuple[str, ...], rank: int, plan: Plan) -> int:
    """Return the number of the slice of a dimension that a rank has, over axes major to minor."""
    mesh = plan.mesh.of_ranks
    found = 0
    for name in axes:
        found = found * mesh.sizes[name] + mesh.coordinate(rank, name)
    return found
