"""Gradients of gradients, of every operator, against central differences of its gradient."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients import emit_gradients
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.checks.cases import Case, cases_of, has_gradient
from shardwright.operators.info import Array, operator_info, operator_names, whole_kernel

STEP, TOLERANCE = 1e-5, 1e-5
NONE: Mapping[str, Array] = {}
# Operators whose gradient cannot be differentiated: a module that does is refused.
REFUSED = {
    "bessel_i0",
    "bessel_i0e",
    "bessel_i1",
    "bessel_i1e",
    "ctc_loss",
    "cumlogsumexp",
    "cumprod",
    "head_log_sum_and_pick",
    "householder_product",
    "linear_attention",
    "recurrent_layer",
    "reduce_prod",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_mul",
    "unsorted_segment_max",
    "unsorted_segment_min",
}
# Further operands, with which an operator that has second gradients otherwise has none.
REFUSED_WITH = {("scaled_dot_product_attention", "documents"): "attention within documents"}
# Its means are constants to its own gradient; test_second_order.py has it.
OF_MEANS = "channel_variance"


def _cases() -> Iterator[Case]:
    for name in operator_names():
        for case in cases_of(name):
            info = case.info()
            if not has_gradient(info) or info.has_own_gradient or info.is_collective:
                continue
            floats = {i for i, kind in enumerate(info.operand_types) if kind.is_float}
            if floats <= {*case.example.constants}:
                continue
            # Statistics of groups are those of micro-batches, which no frontend emits.
            if name != OF_MEANS and not getattr(info, "groups", 0):
                yield case


class Twice:
    """An operator, and its gradients in the directions of random cotangents."""

    def __init__(self, case: Case, *, again: bool) -> None:
        info, self.build = case.info(), Builder()
        random = np.random.default_rng(1)
        self.arrays: dict[str, Array] = {}
        operands = [self._input(f"x{i}", array) for i, array in enumerate(case.operands(info))]
        results = self.build.emit_all(case.operator, *operands, **info.stated)
        drawn = [random.standard_normal(r.type.shape) for r in results]
        factors = [self._input(f"dy{i}", a) for i, a in enumerate(drawn)]
        self.points = [
            v for i, v in enumerate(operands) if v.type.is_float and i not in case.example.constants
        ]
        found = emit_gradients(self.build, results, factors, self.points, again=again)
        self.gradients = [(p, g) for p, g in zip(self.points, found, strict=True) if g is not None]
        self.by = [*self.points, *factors]
        self.directions = [
            self._input(f"v{i}", random.standard_normal(p.type.shape))
            for i, (p, _) in enumerate(self.gradients)
        ]

    def _input(self, name: str, array: Array) -> Value:
        self.arrays[name] = array
        return self.build.input(Value(name, TensorType(str(array.dtype), array.shape)))

    def _run(self, wanted: Sequence[Value], changed: Mapping[str, Array] = NONE) -> list[Array]:
        arrays = {**self.arrays, **changed}
        types = {v.name: v.type for v in self.build.inputs}
        for node in self.build.nodes:
            info = operator_info(node.operator, [types[n] for n in node.operands], node.attributes)
            made = whole_kernel(info, *(arrays[n] for n in node.operands))
            for result, array in zip(node.results, made, strict=True):
                arrays[result.name], types[result.name] = array, result.type
        return [arrays[v.name] for v in wanted]

    def along(self, changed: Mapping[str, Array] = NONE) -> float:
        """Return the gradients' sum of products with the directions."""
        found = self._run([g for _, g in self.gradients], changed)
        pairs = zip(found, self.directions, strict=True)
        return sum(float((g * self.arrays[v.name]).sum()) for g, v in pairs)

    def second(self) -> list[Array]:
        """Return the gradients of `along` by operands and cotangents."""
        firsts = [g for _, g in self.gradients]
        found = emit_gradients(self.build, firsts, self.directions, self.by, again=True)
        zeros = [np.zeros(v.type.shape) for v in self.by]
        made = iter(self._run([g for g in found if g is not None]))
        return [z if g is None else next(made) for z, g in zip(zeros, found, strict=True)]

    def numeric(self, value: Value, step: Array) -> float:
        """Return the central difference of `along` by a value, in one direction."""
        array = self.arrays[value.name]
        above, below = (self.along({value.name: array + sign * STEP * step}) for sign in (1, -1))
        return (above - below) / (2 * STEP)


@pytest.mark.long
@pytest.mark.parametrize("case", list(_cases()), ids=str)
def test_the_gradient_of_a_gradient_is_its_central_difference(case: Case) -> None:
    given = ((case.operator, name) for name in case.info().stated)
    refused = next((REFUSED_WITH[pair] for pair in given if pair in REFUSED_WITH), None)
    if case.operator in REFUSED or refused:
        of = refused or f"the operator `{case.operator}`"
        what = f"the second gradient of {of} cannot be imported"
        with pytest.raises(UnsupportedError, match=f"^{what}$"):
            Twice(case, again=True)
        return
    fused, composed = Twice(case, again=False), Twice(case, again=True)
    np.testing.assert_allclose(fused.along(), composed.along(), rtol=1e-11)
    random = np.random.default_rng(2)
    for value, found in zip(composed.by, composed.second(), strict=True):
        step = random.standard_normal(value.type.shape)
        expected = fused.numeric(value, step)
        np.testing.assert_allclose((found * step).sum(), expected, rtol=TOLERANCE, atol=TOLERANCE)
