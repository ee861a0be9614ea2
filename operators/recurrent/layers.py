"""Layers of recurrent networks: a cell over all steps of a sequence, as one operator.

The product of the inputs with the input weights is an ordinary one before it. The gradient
recomputes all gates in one product from the outputs (and cells) of all steps, which are saved.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.products import Product
from shardwright.operators.recurrent.cells import CELLS, Cell
from shardwright.operators.rule import Rule, ShardView


class OverSteps(Product):
    """The base of a recurrent layer and its gradient: both read the operands of the layer.

    Samples ``b`` may be split; steps ``s``, gates ``k`` and features ``h`` stay whole, since every
    step reads all features of the state of the step before.
    """

    result_dtype = "common"
    defaults: ClassVar = {"cell": "lstm", "reverse": False, **Product.defaults}
    first: ClassVar[int]  # cotangents before the operands of the layer, for each tensor of a state

    @property
    def cell(self) -> Cell:
        """The cell."""
        return CELLS[self.attributes["cell"]]

    @property
    def begin(self) -> int:
        """The position of the first operand of the layer."""
        return self.first * self.cell.states

    @property
    def has_bias(self) -> bool:
        """Whether the recurrent product has a bias."""
        return len(self.operand_types) == self.begin * 2 + 3 + self.cell.states

    def notation_of_operands(self) -> list[str]:
        """Return the dimensions of the operands of the layer.

        Raises
        ------
        IRError
            If there is no such cell, or the weights are of another number of gates or features.
        """
        if self.attributes["cell"] not in CELLS:
            raise IRError(
                f"there is no cell `{self.attributes['cell']}`", hint=f"use one of {tuple(CELLS)}"
            )
        given = len(self.operand_types) - 2 * self.begin
        if given - 2 - self.cell.states not in (0, 1):
            raise IRError(
                f"{given} operands were given, expected inputs, weights, "
                f"{self.cell.states} initial states and perhaps a bias"
            )
        wide, gates = self.operand_types[self.begin + 1].shape, self.cell.gates
        if len(wide) != 2 or wide[0] != gates * wide[1]:
            raise IRError(f"the recurrent weights are {wide}, expected {gates} squares on another")
        states = ["b+ h^"] * self.cell.states
        return ["s^ b+ (k^ h^)", "(k^ h^) e^", *states, *["(k^ h^)"] * self.has_bias]

    def resolved(self, operands: list[str], results: list[str]) -> Rule:
        """Return the rule of operands and results."""
        shapes = [operand.shape for operand in self.operand_types]
        sizes = {"k": self.cell.gates, "h": shapes[self.begin + 1][1]}
        return resolve(f"{', '.join(operands)} -> {', '.join(results)}", shapes, sizes)

    def in_order(self, x: Array) -> Array:
        """Return steps in the order in which the cell takes them, or back."""
        return x[::-1] if self.attributes["reverse"] else x


@register
class RecurrentLayer(OverSteps):
    """The states ``[step, sample, feature]`` of a ``cell`` (lstm, gru, tanh, relu) at all steps.

    Operands are the inputs times their weights, ``[step, sample, gate feature]``; the recurrent
    weights ``[gate feature, feature]``; the initial states ``[sample, feature]``: of an LSTM output
    and cell, of others the output; and perhaps a bias of the recurrent product. Gates have the
    order of PyTorch: input, forget, cell, output; reset, update, new. The reset gate multiplies the
    recurrent product with its bias. With ``reverse`` the last step is the first.
    """

    name = "recurrent_layer"
    of_reals = True
    first = 0
    flops_per_point = 2.0
    examples = (
        Example(("f64[3, 4, 12]", "f64[12, 3]", "f64[4, 3]", "f64[4, 3]", "f64[12]")),
        Example(("f64[3, 6, 12]", "f64[12, 3]", "f64[6, 3]", "f64[6, 3]"), {"reverse": True}),
        Example(("f64[3, 4, 9]", "f64[9, 3]", "f64[4, 3]", "f64[9]"), {"cell": "gru"}),
        Example(("f64[3, 4, 9]", "f64[9, 3]", "f64[4, 3]"), {"cell": "gru", "reverse": True}),
        Example(("f64[3, 6, 3]", "f64[3, 3]", "f64[6, 3]", "f64[3]"), {"cell": "tanh"}),
        Example(("f64[3, 4, 3]", "f64[3, 3]", "f64[4, 3]"), {"cell": "relu"}),
    )

    def make_rule(self) -> Rule:
        """Split the samples alone."""
        operands = self.notation_of_operands()
        return self.resolved(operands, ["s^ b+ h^"] * self.cell.states)

    def kernel(self, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
        """Take the steps one by one."""
        x, weights = self.in_order(operands[0]), operands[1]
        state = operands[2 : 2 + self.cell.states]
        bias = operands[-1] if self.has_bias else 0
        found = [np.empty((*x.shape[:2], weights.shape[1]), x.dtype) for _ in state]
        for step, entered in enumerate(x):
            state = self.cell.step((entered, self.product(state[0], weights.T) + bias), state)
            for whole, part in zip(found, state, strict=True):
                whole[step] = part
        states = tuple(self.in_order(whole) for whole in found)
        return states if len(states) > 1 else states[0]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Save the operands and the states of all steps for backward, and no gates."""
        operands = (*at.cotangents, *at.operands, *at.results)
        return build.emit_all("recurrent_layer_gradient", *operands, **self.written)


@register
class RecurrentLayerGradient(OverSteps):
    """The gradients by all operands of a recurrent layer.

    Operands are the cotangents of the states, the operands of the layer, and its results.
    """

    name = "recurrent_layer_gradient"
    first = 1
    flops_per_point = 6.0  # the products of the layer, and by the states and the weights
    examples = (
        Example(
            (
                *("f64[3, 4, 3]",) * 2,
                *("f64[3, 4, 12]", "f64[12, 3]", "f64[4, 3]", "f64[4, 3]", "f64[12]"),
                *("f64[3, 4, 3]",) * 2,
            )
        ),
        Example(
            ("f64[3, 4, 3]", "f64[3, 4, 9]", "f64[9, 3]", "f64[4, 3]", "f64[9]", "f64[3, 4, 3]"),
            {"cell": "gru", "reverse": True},
        ),
        Example(
            ("f64[3, 6, 3]", "f64[3, 6, 3]", "f64[3, 3]", "f64[6, 3]", "f64[3, 6, 3]"),
            {"cell": "tanh"},
        ),
        Example(
            ("f64[3, 4, 3]", "f64[3, 4, 3]", "f64[3, 3]", "f64[4, 3]", "f64[3]", "f64[3, 4, 3]"),
            {"cell": "relu"},
        ),
    )

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The set of all cotangents."""
        return (tuple(range(self.begin)),)

    def make_rule(self) -> Rule:
        """Sum the gradients of weights and bias over the samples."""
        operands, steps = self.notation_of_operands(), ["s^ b+ h^"] * self.begin
        return self.resolved([*steps, *operands, *steps], operands)

    def kernel(self, view: ShardView, *operands: Array) -> tuple[Array, ...]:
        """Recompute the gates, and take the steps backward."""
        count = self.cell.states
        slopes = [self.in_order(dy) for dy in operands[:count]]
        x, weights = self.in_order(operands[count]), operands[count + 1]
        first = operands[count + 2 : 2 * count + 2]
        after = [self.in_order(y) for y in operands[-count:]]
        before = [np.concatenate((a[None], y[:-1])) for a, y in zip(first, after, strict=True)]
        bias = operands[-count - 1] if self.has_bias else 0
        turned = self.product(before[0], weights.T) + bias
        entering, turning = np.empty_like(x), np.empty_like(x)
        slope = tuple(np.zeros_like(a) for a in first)
        for step in reversed(range(len(x))):
            slope = tuple(a + dy[step] for a, dy in zip(slope, slopes, strict=True))
            gates, state = (x[step], turned[step]), tuple(y[step] for y in before)
            entering[step], turning[step], rest = self.cell.pull(gates, state, slope)
            slope = (rest[0] + self.product(turning[step], weights), *rest[1:])
        return tuple(self._of_operands(self.in_order(entering), turning, before[0], slope))

    def _of_operands(
        self, entering: Array, turning: Array, outputs: Array, slope: tuple[Array, ...]
    ) -> Iterator[Array]:
        """Yield the gradients, given those by the gates and by the initial states."""
        yield entering
        rows = turning.reshape(-1, turning.shape[-1])
        yield self.product(rows.T, outputs.reshape(-1, outputs.shape[-1]))
        for one in slope:
            yield np.asarray(one, entering.dtype)
        if self.has_bias:
            yield rows.sum(axis=0)
