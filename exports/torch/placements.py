"""Placements of PyTorch's DTensor: of every parameter, optimizer state and input of a plan.

A mesh axis of the plan is a dimension of a ``DeviceMesh``. DTensor splits a dimension by the axes
in the order of the mesh; where the plan has another order, an axis that comes before its major
axes in the mesh has a ``_StridedShard``, whose split factor is the product of their sizes.
"""

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.exported import Exported
from shardwright.exports.emission.writing import Code, code, document, listed, word
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import first_names


def export(plan: Plan) -> Exported:
    """Return ``placements.json``."""
    mesh, program = plan.mesh.of_ranks, plan.program
    inputs = {value.name: _tensor(value, mesh) for value in program.inputs}
    parameters = {
        parameter.name: {"role": parameter.role, **_tensor(parameter.value, mesh)}
        for parameter in program.parameters
    }
    tables = {
        "mesh_shape": list(mesh.shape),
        "mesh_dim_names": list(mesh.names),
        "inputs": inputs,
        "parameters": parameters,
    }
    return Exported({"placements.json": _text(tables)}, _notes(plan, mesh))


def placements(layout: Layout, mesh: Mesh) -> tuple[Code, ...]:
    """Return the placement of a layout on each axis of a mesh, as PyTorch writes it."""
    return tuple(_placement(name, layout, mesh) for name in mesh.names)


def _placement(name: str, layout: Layout, mesh: Mesh) -> Code:
    if name in layout.partial:
        return code("Partial({})", word(layout.reduction))
    for dimension, axes in enumerate(layout.splits):
        if name in axes:
            later = mesh.names[mesh.names.index(name) + 1 :]
            major = [axis for axis in axes[: axes.index(name)] if axis in later]
            if not major:
                return code("Shard({})", dimension)
            return code("_StridedShard(dim={}, sf={})", dimension, mesh.extent(major))
    return code("Replicate()")


def _tensor(value: Value, mesh: Mesh) -> dict[str, object]:
    layout = value.known_layout
    found: dict[str, object] = {
        "dtype": value.type.dtype,
        "shape": list(value.type.shape),
        "placements": list(placements(layout, mesh)),
    }
    if layout.stage is not None:
        found["stage"] = layout.stage
    return found


def _notes(plan: Plan, mesh: Mesh) -> tuple[str, ...]:
    """Return what the placements do not say: uneven parts, and the loop over micro-batches."""
    values = (*plan.program.inputs, *(p.value for p in plan.program.parameters))
    uneven = [
        value.name
        for value in values
        if value.layout is not None
        and not value.layout.without(plan.mesh.in_time).is_even(value.type.shape, mesh)
    ]
    notes = []
    if uneven:
        notes.append(
            f"uneven parts: {first_names(uneven, 1)}; DTensor gives the first ranks whole parts "
            "and the last one the rest, the plan spreads the rest"
        )
    if plan.mesh.passes > 1:
        notes.append(f"inputs are those of all {plan.mesh.passes} micro-batches of a step")
    return tuple(notes)


def _text(tables: dict[str, object]) -> Code:
    """Return JSON with a tensor a line."""
    entries = []
    for key, item in tables.items():
        text = document(item)
        if isinstance(item, dict) and item:
            rows = [code("  {}: {}", document(name), document(row)) for name, row in item.items()]
            text = code("{{\n{}\n }}", listed(rows, ",\n"))
        entries.append(code(" {}: {}", document(key), text))
    return code("{{\n{}\n}}\n", listed(entries, ",\n"))
