"""The layouts of parameters, inputs and outputs as text of Shardy, XLA's dialect of shardings."""

from collections.abc import Sequence

from shardwright.compiler.plans.plan import Plan
from shardwright.exports.emission.writing import Code, code, lines, listed, literal, prose, word
from shardwright.ir.graph import Value

_TYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "ui"}
_HEAD = """// The layouts of {model} on {devices} devices, for XLA.
// A function from parameters, states and inputs to outputs; its arguments have the plan's names.
"""


def shardy_text(plan: Plan) -> Code:
    """Return ``shardings.mlir``: a function without a body, whose arguments have shardings.

    Dimensions of a tensor are open to no other axes than their own; an axis that is run in time is
    left out, since a device keeps the parts of all its micro-batches.
    """
    ranks, program = plan.mesh.of_ranks, plan.program
    axes = listed(code("{}={}", literal(axis.name), axis.size) for axis in ranks.axes)
    outputs = [program.values[name] for name in program.outputs]
    head = code(_HEAD, model=prose(plan.document.model), devices=plan.mesh.size)
    text = [
        head,
        code("module {{"),
        code("  sdy.mesh @mesh = <[{}]>", axes),
        code("  func.func private @step("),
        *_entries([*(p.value for p in program.parameters), *program.inputs], plan),
        code("  ) -> ("),
        *_entries(outputs, plan),
        code("  )"),
        code("}}"),
        code(""),
    ]
    return lines(text)


def _entries(values: Sequence[Value], plan: Plan) -> list[Code]:
    last = len(values) - 1
    return [
        code("    {}," if i < last else "    {}", _entry(value, plan))
        for i, value in enumerate(values)
    ]


def _entry(value: Value, plan: Plan) -> Code:
    layout = value.layout.without(plan.mesh.in_time) if value.layout else None
    splits = layout.splits if layout else ((),) * value.type.rank
    dimensions = listed(code("{{{}}}", listed(map(literal, axes))) for axes in splits)
    return code(
        "{} {{sdy.sharding = #sdy.sharding<@mesh, [{}]>, shardwright.name = {}}}",
        _type(value),
        dimensions,
        literal(value.name),
    )


def _type(value: Value) -> Code:
    """Return the type of a tensor: ``tensor<8x16xf32>``."""
    kind = value.type.dtype
    stem = kind.rstrip("0123456789")
    element = _TYPES[stem] + kind.removeprefix(stem) if stem in _TYPES else "i1"
    return code("tensor<{}>", listed([*value.type.shape, word(element)], "x"))
