"""Linear recurrences: the scans of state space models and of gated linear attention."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView, dimension


@register
class LinearRecurrence(OperatorInfo):
    """The states h = a h' + b along ``axis``, element by element; h' is the state before.

    Operands are a, b, and perhaps the initial state, without the axis; else it is zero. With
    ``reverse`` the last step is the first.

    References
    ----------
    Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
    """

    name = "linear_recurrence"
    result_dtype = "common"
    defaults: ClassVar = {"axis": -1, "reverse": False}
    of_reals = True
    flops_per_point = 2.0
    examples = (
        Example(("f64[4, 3]", "f64[4, 3]")),
        Example(("f64[3, 4, 6]", "f64[3, 4, 6]", "f64[4, 6]"), {"axis": 0}),
        Example(("f64[4, 3, 2]", "f64[4, 3, 2]", "f64[4, 2]"), {"axis": 1, "reverse": True}),
    )

    @property
    def axis(self) -> int:
        """The dimension of the steps, counted from the front."""
        return dimension(self.attributes["axis"], self.operand_types[0].rank)

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """All operands but the first."""
        return (tuple(range(1, len(self.operand_types))),)

    def make_rule(self) -> Rule:
        """Keep the steps whole."""
        shapes, axis = [operand.shape for operand in self.operand_types], self.axis
        names = [f"i{d}" + "^" * (d == axis) for d in range(len(shapes[0]))]
        state, whole = " ".join(names[:axis] + names[axis + 1 :]), " ".join(names)
        operands = [whole, whole, *[state] * (len(shapes) == 3)]
        return resolve(f"{', '.join(operands)} -> {whole}", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Take the steps one by one."""
        a, b = (np.moveaxis(x, self.axis, 0) for x in operands[:2])
        state = operands[2] if len(operands) == 3 else np.zeros(b.shape[1:], b.dtype)
        found = np.empty_like(b)
        for step in reversed(range(len(b))) if self.attributes["reverse"] else range(len(b)):
            state = a[step] * state + b[step]
            found[step] = state
        return np.moveaxis(found, 0, self.axis)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """The recurrence the other way, with each factor at the step before its own."""
        a, states, initial = at.operands[0], at.results[0], at.operands[2:]
        forward = not self.attributes["reverse"]
        later = self._moved(build, a, not forward, ())
        g = at.cotangents[0]
        db = build.emit("linear_recurrence", later, g, axis=self.axis, reverse=forward)
        da = build.emit("mul", db, self._moved(build, states, forward, initial))
        if not initial:
            return [da, db]
        first = 0 if forward else a.type.shape[self.axis] - 1
        return [da, db, build.emit("mul", *(self._step(build, x, first) for x in (a, db)))]

    def _moved(self, build: Emitter, x: Value, back: bool, first: Sequence[Value]) -> Value:
        """Return the elements moved by one step, after the first one or zeros."""
        size, axis = list(x.type.shape), self.axis
        begin, counts = [0] * len(size), [0] * len(size)
        size[axis] -= 1
        begin[axis], counts[axis] = int(not back), 1
        ones = [build.emit("expand_dims", state, axis=axis) for state in first]
        if not size[axis]:
            return ones[0] if ones else build.emit("zeros_like", x)
        rest = build.emit("slice", x, begin=tuple(begin), size=tuple(size))
        if ones:
            return build.emit("concat", *([*ones, rest] if back else [rest, *ones]), axis=axis)
        none = (0,) * len(size)
        before, after = (tuple(counts), none) if back else (none, tuple(counts))
        return build.emit("pad", rest, before=before, after=after)

    def _step(self, build: Emitter, x: Value, step: int) -> Value:
        """Return one step, without the axis."""
        begin, size = [0] * x.type.rank, list(x.type.shape)
        begin[self.axis], size[self.axis] = step, 1
        one = build.emit("slice", x, begin=tuple(begin), size=tuple(size))
        return build.emit("squeeze", one, axis=self.axis)
