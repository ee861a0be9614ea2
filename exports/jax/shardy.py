"""The layouts of parameters, inputs and outputs as text of Shardy, XLA's dialect of shardings."""

from collections.abc import Sequence

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.writing import prose
from shardwright.ir.graph import Value

_TYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "ui"}
_HEAD = """// The layouts of {model} on {devices} devices, for XLA.
// A function from parameters, states and inputs to outputs; its arguments have the plan's names.
"""


def shardy_text(plan: Plan) -> str:
    """Return ``shardings.mlir``: a function without a body, whose arguments have shardings.

    Dimensions of a tensor are open to no other axes than their own; an axis that is run in time is
    left out, since a device keeps the parts of all its micro-batches.
    """
    ranks, program = plan.mesh.of_ranks, plan.program
    axes = ", ".join(f'"{axis.name}"={axis.size}' for axis in ranks.axes)
    outputs = [program.values[name] for name in program.outputs]
    lines = [
        _HEAD.format(model=prose(plan.document.model), devices=plan.mesh.size),
        "module {",
        f"  sdy.mesh @mesh = <[{axes}]>",
        "  func.func private @step(",
        *_entries([*(p.value for p in program.parameters), *program.inputs], plan),
        "  ) -> (",
        *_entries(outputs, plan),
        "  )",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _entries(values: Sequence[Value], plan: Plan) -> list[str]:
    texts = [_entry(value, plan) for value in values]
    return [f"    {text}{',' * (i < len(texts) - 1)}" for i, text in enumerate(texts)]


def _entry(value: Value, plan: Plan) -> str:
    layout = value.layout.without(plan.mesh.in_time) if value.layout else None
    splits = layout.splits if layout else ((),) * value.type.rank
    dimensions = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in splits)
    sharding = f"#sdy.sharding<@mesh, [{dimensions}]>"
    return f'{_type(value)} {{sdy.sharding = {sharding}, shardwright.name = "{value.name}"}}'


def _type(value: Value) -> str:
    """Return the type of a tensor: ``tensor<8x16xf32>``."""
    kind = value.type.dtype
    stem = kind.rstrip("0123456789")
    element = _TYPES[stem] + kind.removeprefix(stem) if stem in _TYPES else "i1"
    return f"tensor<{'x'.join([*map(str, value.type.shape), element])}>"
