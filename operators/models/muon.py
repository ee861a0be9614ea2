"""Muon: the momentum of a matrix, orthogonalized (Jordan et al., 2024).

Three operators: the direction of a step, elementwise; its orthogonalization, of which a device has
the whole matrix; and the update, elementwise again. They compute what `torch.optim.Muon` does.

References
----------
K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
J. Liu et al., "Muon is scalable for LLM training", 2025: the adjustment ``match_rms_adamw``.
J. Bernstein, "Deriving Muon", 2025: the adjustment ``spectral_unclamped``.
"""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes, numpy_dtype
from shardwright.operators.info import Array, Example, OperatorInfo, register
from shardwright.operators.models.optimizer import Update
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView
from shardwright.operators.workspace import WithWorkspace


def _mean(momentum: float, m: Array, g: Array) -> Array:
    """Return the decaying mean of gradients."""
    return momentum * m + (1 - momentum) * g


@register
class MuonDirection(OperatorInfo):
    """The direction of a step of Muon: m' = ``momentum`` m + (1 - ``momentum``) g, or Nesterov's.

    Nesterov's is ``momentum`` m' + (1 - ``momentum``) g. The operands are the gradient and the
    state m, which `muon_update` replaces; the result has the element type ``dtype``. Under a
    dynamic loss scale the scale comes last, by which the gradient is divided.
    """

    name = "muon_direction"
    result_dtype = "attribute"
    defaults: ClassVar = {"momentum": 0.95, "nesterov": True, "dtype": "bfloat16"}
    linear = ((0, 1),)
    flops_per_point = 8.0
    examples = (
        Example(("f64[4, 6]",) * 2, {"dtype": "float64"}),
        Example(("f64[4, 6]",) * 2, {"dtype": "float64", "nesterov": False}),
        Example(("f64[4, 6]", "f64[4, 6]", "f64[]"), {"dtype": "float64"}, {2: (1, 9)}),
    )

    def make_rule(self) -> Rule:
        """Refuse to broadcast."""
        shapes = [operand.shape for operand in self.operand_types]
        if shapes[0] != shapes[1]:
            raise IRError(f"gradient and state have the shapes {shapes[:2]}, one expected")
        return resolve(f"..., ...{', ' * (len(shapes) - 2)} -> ...", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Combine; a program that runs in another floating-point type stays in it."""
        own = self.attributes
        widened = operands[1].dtype != numpy_dtype(self.operand_types[1].dtype)
        g, m, *scale = operands
        exact = np.result_type(g.dtype, m.dtype)
        g = np.asarray(g, exact) / scale[0] if scale else np.asarray(g, exact)
        mean = _mean(own["momentum"], np.asarray(m, exact), g)
        direction = _mean(own["momentum"], mean, g) if own["nesterov"] else mean
        return np.asarray(direction, exact if widened else numpy_dtype(own["dtype"]))


@register
class Orthogonalize(WithWorkspace):
    """The nearest matrices with singular values near 1, over the last two dimensions.

    ``iterations`` of Newton and Schulz with the polynomial a x + b x^3 + c x^5 of ``coefficients``,
    on the matrix divided by its Frobenius norm, or by ``epsilon`` where that is more. As in
    PyTorch, every product is rounded to the element type.
    """

    name = "orthogonalize"
    defaults: ClassVar = {
        "coefficients": (3.4445, -4.775, 2.0315),
        "epsilon": 1e-7,
        "iterations": 5,
    }
    examples = (
        Example(("f64[4, 6]",)),
        Example(("f64[6, 4]",), {"iterations": 2}),
        Example(("f64[4, 3, 2]",), {"iterations": 1, "epsilon": 9.0}),
    )

    def make_rule(self) -> Rule:
        """Keep the matrices whole; there may be many."""
        if self.operand_types[0].rank < 2:
            raise IRError(f"a tensor of {self.operand_types[0].rank} dimensions has no matrices")
        return resolve("... m^ n^ -> ... m^ n^", [self.operand_types[0].shape])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of matrices, and their smaller and larger side."""
        *leading, rows, columns = self.operand_types[0].shape
        return prod(leading), min(rows, columns), max(rows, columns)

    @property
    def flops(self) -> float:
        """Count the products of all iterations: m x n x m, m x m x m, and m x m x n in each."""
        count, m, n = self.sizes
        return self.attributes["iterations"] * count * (4.0 * m * m * n + 2.0 * m**3)

    @property
    def product_flops(self) -> float:
        """Count all operations."""
        return self.flops

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the bytes of one more matrix of a rank, its Gram matrix, and the square of it."""
        _, m, n = self.sizes
        *leading, _, _ = operands[0].slice_shape(self.operand_types[0].shape, mesh)
        return prod(leading) * (m * n + 2 * m * m) * item_bytes(self.operand_types[0].dtype)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Iterate on the wide orientation of the matrices."""
        x, (a, b, c) = operands[0], self.attributes["coefficients"]
        declared = numpy_dtype(self.operand_types[0].dtype)
        narrow = declared if declared.itemsize < x.dtype.itemsize <= np.float32().itemsize else None

        def rounded(array: Array) -> Array:
            return array if narrow is None else array.astype(narrow).astype(array.dtype)

        is_tall = x.shape[-2] > x.shape[-1]
        x = np.swapaxes(x, -1, -2) if is_tall else x
        norm = rounded(np.sqrt(np.sum(np.square(x), axis=(-2, -1), keepdims=True)))
        x = rounded(x / np.maximum(norm, self.attributes["epsilon"]))
        for _ in range(self.attributes["iterations"]):
            gram = rounded(x @ np.swapaxes(x, -1, -2))
            x = rounded(a * x + rounded(b * gram + c * (gram @ gram)) @ x)
        return np.ascontiguousarray(np.swapaxes(x, -1, -2) if is_tall else x)


@register
class MuonUpdate(Update):
    """One step of Muon: p' = (1 - ``learning_rate`` ``weight_decay``) p - r ``learning_rate`` o.

    The operand after the state is o, the orthogonalized direction of the step; r is ``ratio``, by
    which `adjustment_ratio` makes steps of all shapes alike. The state becomes ``momentum`` m +
    (1 - ``momentum``) g.
    """

    name = "muon_update"
    notation = "..., ..., ..., ... -> ..., ..."
    defaults: ClassVar = {
        "learning_rate": 0.001,
        "momentum": 0.95,
        "weight_decay": 0.1,
        "ratio": 1.0,
    }
    linear = ((0, 1, 2, 3),)
    flops_per_point = 8.0
    states = 1
    others = 1
    by_rows = False
    examples = (
        Example(("f64[4, 6]",) * 4, {"ratio": 2.0}),
        Example((*("f64[4, 6]",) * 4, "f64[]"), {}, {4: (0, 1)}),
        Example((*("f64[4, 6]",) * 4, "f64[]", "i64[]"), {}, {4: (1, 9), 5: (0, 1)}),
    )

    def updated(self, rate: float, *operands: Array) -> Sequence[Array]:
        """Decay the parameter, and step along the orthogonal matrix."""
        (p, g, m, o), own = operands, self.attributes
        kept: Any = 1 - rate * own["weight_decay"]
        return kept * p - own["ratio"] * rate * o, _mean(own["momentum"], m, g)


def adjustment_ratio(adjustment: str, shape: tuple[int, ...]) -> float:
    """Return the factor of the learning rate for a matrix.

    Parameters
    ----------
    adjustment : str
        With A rows and B columns, ``original``: sqrt(max(1, A / B)); ``match_rms_adamw``: 0.2
        sqrt(max(A, B)), by which a step is as large as one of AdamW; ``spectral_unclamped``: sqrt(A
        / B); ``none``: 1.
    shape : tuple of int
        The shape of the parameter; the last two dimensions are those of a matrix.

    Examples
    --------
    >>> adjustment_ratio("original", (16, 4)), adjustment_ratio("original", (4, 16))
    (2.0, 1.0)
    """
    rows, columns = shape[-2:]
    ratios = {
        "original": sqrt(max(1.0, rows / columns)),
        "match_rms_adamw": 0.2 * sqrt(max(rows, columns)),
        "spectral_unclamped": sqrt(rows / columns),
        "none": 1.0,
    }
    return ratios[adjustment]
