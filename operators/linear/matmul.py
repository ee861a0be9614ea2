"""Matrix products."""

from importlib import import_module
from typing import ClassVar

import numpy as np

from shardwright.ir.graph import Value
from shardwright.operators.broadcasting import unbroadcast
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
from shardwright.operators.rule import Rule, ShardView


def _transposed(x: Array, yes: bool) -> Array:
    return x.swapaxes(-1, -2) if yes else x


# numpy has no public name for what it found of the processor.
_FEATURES = import_module("numpy._core._multiarray_umath").__cpu_features__
_HAS_WIDE_VECTORS = bool(_FEATURES.get("AVX512F", False))


def is_faster_turned(a: Array, b: Array, *, wide: bool = _HAS_WIDE_VECTORS) -> bool:
    """Return whether `a` times the transposed `b` is faster as the transposed `b` times `a.T`.

    With its kernels for AVX-512, OpenBLAS multiplies few rows with a transposed matrix at 0.4 to
    0.95 of the speed that it has the other way around, with the copy counted; with those for AVX2
    both take as long (`benchmarks/products.py`).

    Parameters
    ----------
    a, b : array
        The factors; `b` is the one to transpose.
    wide : bool
        Whether the processor has AVX-512.
    """
    if not wide or a.ndim != 2 or b.ndim != 2 or a.dtype != np.float32:
        return False
    rows, inner, columns = *a.shape, b.shape[0]
    return 2 <= rows <= 64 and inner >= 4 * rows and columns >= max(128, 2048 // rows)


@register
class MatMul(Product):
    """Matrix product over the last two dimensions, batched over the leading ones.

    Leading dimensions are broadcast like numpy. ``transpose_a`` and ``transpose_b`` swap the last
    two dimensions of an operand first.
    """

    name = "matmul"
    result_dtype = "common"
    defaults: ClassVar = {"transpose_a": False, "transpose_b": False, **Product.defaults}
    linear = ((0,), (1,))
    flops_per_point = 2.0
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[4, 6]", "f64[6, 2]")),
        Example(("f64[6, 4]", "f64[2, 6]"), {"transpose_a": True, "transpose_b": True}),
        Example(("f64[2, 4, 6]", "f64[6, 2]")),
        Example(("f64[2, 4, 6]", "f64[2, 6]"), {"transpose_b": True}),
        Example(("f64[2, 6, 4]", "f64[6, 2]"), {"transpose_a": True}),
        Example(("f64[2, 1, 4, 6]", "f64[2, 6, 2]")),
    )

    def make_rule(self) -> Rule:
        """Contract the inner dimensions."""
        left = "k+ m" if self.attributes["transpose_a"] else "m k+"
        right = "n k+" if self.attributes["transpose_b"] else "k+ n"
        notation = f"... {left}, ... {right} -> ... m n"
        return resolve(notation, [operand.shape for operand in self.operand_types])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply."""
        a, b = map(self.factor, operands)
        left = _transposed(a, self.attributes["transpose_a"])
        if self.attributes["transpose_b"] and is_faster_turned(left, b):
            return np.ascontiguousarray(np.matmul(b, left.T).T)
        return np.matmul(left, _transposed(b, self.attributes["transpose_b"]))

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the cotangent by the other operand, and sum broadcast dimensions."""
        (a, b), dy = at.operands, at.cotangents[0]
        ta, tb = self.attributes["transpose_a"], self.attributes["transpose_b"]
        if ta:
            da = build.emit("matmul", b, dy, transpose_a=tb, transpose_b=True)
        else:
            da = build.emit("matmul", dy, b, transpose_b=not tb)
        if b.type.rank == 2 and a.type.rank > 2 and not ta:
            db = _weight_gradient(build, a, dy, tb)
        elif tb:
            db = build.emit("matmul", dy, a, transpose_a=True, transpose_b=ta)
        else:
            db = build.emit("matmul", a, dy, transpose_a=not ta)
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


def _weight_gradient(build: Emitter, a: Value, dy: Value, transposed: bool) -> Value:
    """Contract all leading dimensions at once, without an intermediate per batch."""
    return build.emit("contract_leading", *((dy, a) if transposed else (a, dy)))


@register
class ContractLeading(Product):
    """Contract every dimension but the last: the gradient of a weight that is shared by a batch."""

    name = "contract_leading"
    result_dtype = "common"
    linear = ((0,), (1,))
    flops_per_point = 2.0
    examples = (Example(("f64[2, 4, 6]", "f64[2, 4, 2]")),)

    def make_rule(self) -> Rule:
        """Contract all dimensions but the last."""
        leading = " ".join(f"k{i}+" for i in range(self.operand_types[0].rank - 1))
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"{leading} m, {leading} n -> m n", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply as two matrices."""
        a, b = (x.reshape(-1, x.shape[-1]) for x in operands)
        return self.product(a.T, b)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the rows of the other operand by the cotangent."""
        (a, b), dy = at.operands, at.cotangents[0]
        return [build.emit("matmul", b, dy, transpose_b=True), build.emit("matmul", a, dy)]
