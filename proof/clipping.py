"""Gradients of the reference step that are scaled down together, said anew: see `step`."""

from collections.abc import Mapping, Sequence

from shardwright.ir.attributes import Attribute
from shardwright.ir.graph import Value
from shardwright.operators.builder import Builder


def clipped(
    build: Builder,
    gradients: Mapping[str, Value],
    parameters: Mapping[str, Value],
    scale: Sequence[Value],
    limit: Attribute,
) -> Mapping[str, Value]:
    """Emit gradients whose norm, of all together, is at most a limit.

    Where there is a loss `scale`, a state of the program, gradients carry it.
    """
    if not gradients:
        return gradients
    is_wide = any(parameters[name].type.dtype == "float64" for name in gradients)
    dtype = "float64" if is_wide and not scale else "float32"
    total: Value | None = None
    for gradient in gradients.values():
        square = build.emit("sum_squares", gradient, dtype=dtype)
        total = square if total is None else build.emit("add", total, square)
    assert total is not None
    for factor in (*scale, *scale):  # the square carries the square of the scale
        total = build.emit("div", total, factor)
    return {
        name: build.emit("clip_by_norm", gradient, total, clip_norm=limit)
        for name, gradient in gradients.items()
    }
