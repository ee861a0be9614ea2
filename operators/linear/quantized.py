"""Products whose operands are quantized first: those that a recipe of low precision computes.

An operand is quantized along the contracted dimension, as the hardware reads it, each time that a
product reads it; the operands themselves stay as they are. A rank takes the scales of its own part
of a tensor, as Transformer Engine and torchao do where a tensor is not gathered. Products add up in
float32. In float64, in which plans are compared, nothing is rounded, and so nothing is quantized.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import item_bytes
from shardwright.operators.broadcasting import unbroadcast
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    register,
)
from shardwright.operators.linear.matmul import ContractLeading, MatMul
from shardwright.operators.models.recipes import OPERANDS, RECIPES, Casts, Recipe, Scaling
from shardwright.operators.models.routing import GroupedMatMul, GroupedOuter
from shardwright.operators.rule import ShardView
from shardwright.operators.workspace import WithWorkspace

QUANTIZED = {
    "matmul": "quantized_matmul",
    "grouped_matmul": "quantized_grouped_matmul",
}
"""The operators that a recipe puts in the place of others."""
_MOST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "float4_e2m1fn": 6.0}
_FORWARD, _BY_ROWS, _BY_WEIGHT = ("rows", "weight"), ("gradient", "weight"), ("rows", "gradient")


def rounded(x: Array, scaling: Scaling) -> Array:
    """Return numbers ``[..., row, depth]`` as a quantized copy has them, in float32.

    Numbers beyond the greatest of the element type, which scales allow by rounding alone, become
    that one. Where one is not finite, those that share its scale are not numbers.
    """
    x = np.asarray(x, np.float32)
    if not x.size:
        return x
    shape = x.shape
    block = (scaling.across or shape[-2], scaling.depth or shape[-1])
    if not (scaling.depth or scaling.across):
        x, block = x.reshape(1, -1), (1, x.size)
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[i - 2] % block[i]) for i in (0, 1)])
    rows, depth = (padded.shape[i - 2] // block[i] for i in (0, 1))
    blocks = padded.reshape(*padded.shape[:-2], rows, block[0], depth, block[1])
    largest = np.abs(blocks).max(axis=(-3, -1), keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        found = _in_blocks(blocks, largest, scaling)
    return found.reshape(padded.shape)[..., : x.shape[-2], : x.shape[-1]].reshape(shape)


def _in_blocks(blocks: Array, largest: Array, scaling: Scaling) -> Array:
    """Return the numbers of blocks with one scale each."""
    element = np.dtype(getattr(ml_dtypes, scaling.element))
    most = np.float32(_MOST[scaling.element])
    scale = largest / most
    if scaling.scale == "e4m3":
        scale = _of_two_levels(scale, largest)
    elif scaling.scale in ("float32_power", "e8m0"):
        scale = _power_above(scale)
    divisor = np.where(scale == 0, np.float32(1), scale)
    cast = np.clip(blocks / divisor, -most, most).astype(element).astype(np.float32)
    return np.where(np.isfinite(scale), cast * scale, np.float32(np.nan))


def _power_above(scale: Array) -> Array:
    """Return the least power of two that is no less than each scale, and normal."""
    fraction, exponent = np.frexp(scale)
    exponent = np.maximum(exponent - (fraction == 0.5), -126)
    powers = np.ldexp(np.float32(1), exponent).astype(np.float32)
    return np.where(scale > 0, np.where(np.isfinite(scale), powers, scale), scale)


def _of_two_levels(scale: Array, largest: Array) -> Array:
    """Return scales of e4m3, times one for the whole tensor with which the largest is in range."""
    eight = np.dtype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(largest.max() / (6.0 * 448.0))
    if not np.isfinite(whole) or whole == 0:
        return np.full_like(scale, whole)
    return np.asarray((scale / whole).clip(max=448.0).astype(eight).astype(np.float32) * whole)


class QuantizedProduct(WithWorkspace):
    """The base of products by a recipe.

    `recipe` is its name, and `kinds` says of each operand whether it is ``rows``, a ``weight``, or
    a ``gradient`` of rows. `readers` is how many products of the forward pass read the same rows:
    three where queries, keys and values are made of them.
    """

    defaults: ClassVar = {"recipe": "fp8-current", "kinds": _FORWARD, "readers": 1}

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """None: quantized parts of an operand do not add up to the quantized operand."""
        return ()

    @property
    def recipe(self) -> Recipe:
        """The recipe.

        Raises
        ------
        IRError
            If there is none of that name.
        """
        name = self.attributes["recipe"]
        if name not in RECIPES:
            raise IRError(f"no recipe is called `{name}`", hint=f"use one of {tuple(RECIPES)}")
        return RECIPES[name]

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """How each operand is quantized.

        Raises
        ------
        IRError
            If an operand is of no kind.
        """
        kinds, recipe = self.attributes["kinds"], self.recipe
        if len(kinds) != len(self.operand_types) or not set(kinds) <= set(OPERANDS):
            raise IRError(f"the operands are {kinds}, expected each to be one of {OPERANDS}")
        return tuple(map(recipe.scaling, kinds))

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of both operands.

        Raises
        ------
        IRError
            If they are of no kind, or their rows have no reader.
        """
        assert self.scalings
        if self.attributes["readers"] < 1:
            found = self.attributes["readers"]
            raise IRError(f"`readers` is {found}, expected the number of products, at least 1")
        return (self.common_dtype(),)

    def copies(self, x: Array, position: int) -> Array:
        """Return an operand ``[..., row, depth]`` as its quantized copy has it."""
        return x if x.dtype == np.float64 else rounded(x, self.scalings[position])

    def workspace_bytes(self, operands: Sequence[Layout], mesh: Mesh) -> float:
        """Return the bytes of the quantized copies of both operands."""
        pairs = zip(self.operand_types, operands, strict=True)
        shapes = [layout.slice_shape(kind.shape, mesh) for kind, layout in pairs]
        return sum(self._copied_bytes(shapes))

    def bytes_between(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the bytes that are read and written to quantize both operands."""
        return self.casts("each", shapes)[0]

    def launches(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the kernels: of the product, and of each operand one for each time it is read."""
        return 1 + round(self.casts("each", shapes)[1])

    def casts(self, way: Casts, shapes: Sequence[tuple[int, ...]]) -> tuple[float, float]:
        """Return this product's part of the bytes and the kernels that quantize operands.

        ``kept``: a kernel reads an activation or its gradient for the products of both directions
        that read it, and writes a copy for each direction; a weight is quantized once a step, for
        all micro-batches, which is not counted. ``shared``: equal copies are made once, and one
        with one scale for the tensor is the same in both directions. Either way products that read
        the same rows share their copies.

        Parameters
        ----------
        way : str
            How software makes copies, one of `CASTS`.
        shapes : sequence of tuple of int
            The shapes of the rank's slices of the operands.
        """
        item = item_bytes(self.operand_types[0].dtype)
        elements, written = self._elements(shapes), self._copied_bytes(shapes)
        nbytes = kernels = 0.0
        for kind, scaling, count, copied in zip(
            self.attributes["kinds"], self.scalings, elements, written, strict=True
        ):
            times = 1 + scaling.reads_twice
            reading, writing = self._shares(way, kind, scaling)
            nbytes += reading * times * count * item + writing * copied
            kernels += reading * times
        return nbytes, kernels

    def _shares(self, way: Casts, kind: str, scaling: Scaling) -> tuple[float, float]:
        """Return this product's part of reading an operand, and of writing its copy."""
        if way == "each":
            return 1.0, 1.0
        if way == "kept" and kind == "weight":
            return 0.0, 0.0
        readers = self.attributes["readers"] if kind == "rows" else 1
        if way == "kept":
            return 1 / (2 * readers), 1 / readers
        share = 1 / (2 * readers) if scaling.is_of_tensor else 1 / readers
        return share, share

    def narrower_by(self, shapes: Sequence[tuple[int, ...]]) -> float:
        """Return the bytes by which the product reads less than its operands have."""
        item = item_bytes(self.operand_types[0].dtype)
        return sum(self._elements(shapes)) * item - sum(self._copied_bytes(shapes))

    def _as(self, kinds: tuple[str, str]) -> dict[str, Any]:
        """Return the attributes of a gradient's product, whose operands are of some kinds."""
        own: dict[str, Any] = {"recipe": self.attributes["recipe"], "kinds": kinds}
        readers = self.attributes["readers"]
        return own | {"readers": readers} if "rows" in kinds and readers > 1 else own

    def _elements(self, shapes: Sequence[tuple[int, ...]]) -> list[float]:
        pairs = zip(self.operand_types, shapes, strict=False)
        return [float(kind.filled_elements(shape)) for kind, shape in pairs]

    def _copied_bytes(self, shapes: Sequence[tuple[int, ...]]) -> list[float]:
        pairs = zip(self._elements(shapes), self.scalings, strict=True)
        return [elements * scaling.bytes_each for elements, scaling in pairs]


@register
class QuantizedMatMul(QuantizedProduct, MatMul):
    """The matrix product of operands that a recipe quantizes, else as `matmul`."""

    name = "quantized_matmul"
    defaults: ClassVar = {"transpose_a": False, "transpose_b": False, **QuantizedProduct.defaults}
    examples = (
        Example(("f64[4, 6]", "f64[6, 2]"), {"recipe": "mxfp8"}),
        Example(("f64[2, 4, 6]", "f64[2, 6]"), {"recipe": "nvfp4", "transpose_b": True}),
        Example(("f64[6, 4]", "f64[2, 6]"), {"transpose_a": True, "transpose_b": True}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Quantize along the inner dimension, and multiply."""
        a, b = operands
        left = a.swapaxes(-1, -2) if self.attributes["transpose_a"] else a
        right = b if self.attributes["transpose_b"] else b.swapaxes(-1, -2)
        found = np.matmul(self.copies(left, 0), self.copies(right, 1).swapaxes(-1, -2))
        return np.asarray(found, a.dtype)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the quantized cotangent by the other operand, quantized along that product."""
        (a, b), dy = at.operands, at.cotangents[0]
        ta, tb = self.attributes["transpose_a"], self.attributes["transpose_b"]

        def product(x: Value, y: Value, kinds: tuple[str, str], tx: bool, ty: bool) -> Value:
            return build.emit(self.name, x, y, transpose_a=tx, transpose_b=ty, **self._as(kinds))

        if ta:
            da = product(b, dy, _BY_ROWS[::-1], tb, True)
        else:
            da = product(dy, b, _BY_ROWS, False, not tb)
        if b.type.rank == 2 and a.type.rank > 2 and not ta:
            pair, kinds = ((dy, a), _BY_WEIGHT[::-1]) if tb else ((a, dy), _BY_WEIGHT)
            db = build.emit("quantized_contract_leading", *pair, **self._as(kinds))
        elif tb:
            db = product(dy, a, _BY_WEIGHT[::-1], True, ta)
        else:
            db = product(a, dy, _BY_WEIGHT, not ta, False)
        return [unbroadcast(build, da, a), unbroadcast(build, db, b)]


@register
class QuantizedContractLeading(QuantizedProduct, ContractLeading):
    """The gradient of a weight of a quantized product, else as `contract_leading`."""

    name = "quantized_contract_leading"
    defaults: ClassVar = {**QuantizedProduct.defaults, "kinds": _BY_WEIGHT}
    examples = (Example(("f64[2, 4, 6]", "f64[2, 4, 2]"), {"recipe": "fp8-blockwise"}),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Quantize along all leading dimensions, and multiply."""
        a, b = (x.reshape(-1, x.shape[-1]).T for x in operands)
        return np.asarray(np.matmul(self.copies(a, 0), self.copies(b, 1).T), a.dtype)


@register
class QuantizedGroupedMatMul(QuantizedProduct, GroupedMatMul):
    """The products of experts of operands that a recipe quantizes, else as `grouped_matmul`.

    The rows of every expert have scales of their own, and so has its matrix.
    """

    name = "quantized_grouped_matmul"
    defaults: ClassVar = {"transposed": False, **QuantizedProduct.defaults}
    examples = (
        Example(("f64[4, 2, 3, 6]", "f64[4, 6, 2]"), {"recipe": "mxfp8"}),
        Example(("f64[2/4, 3~, 2]", "f64[4, 6, 2]"), {"transposed": True}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Quantize the rows of each expert that have anything but zeros, and multiply."""
        rows, matrices = operands
        result = np.zeros(view.result_shapes[0], rows.dtype)
        for x, matrix, y in zip(rows, matrices, result, strict=True):
            filled = x.any(axis=-1)
            right = matrix if self.attributes["transposed"] else matrix.T
            y[filled] = self.copies(x[filled], 0) @ self.copies(right, 1).T
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the quantized cotangent by the matrices, and the rows by it."""
        (x, matrices), dy = at.operands, at.cotangents[0]
        turned = self.attributes["transposed"]
        dx = build.emit(self.name, dy, matrices, transposed=not turned, **self._as(_BY_ROWS))
        pair, kinds = ((dy, x), _BY_WEIGHT[::-1]) if turned else ((x, dy), _BY_WEIGHT)
        return [dx, build.emit("quantized_grouped_outer", *pair, **self._as(kinds))]


@register
class QuantizedGroupedOuter(QuantizedProduct, GroupedOuter):
    """The gradient of the matrices of quantized products of experts, else as `grouped_outer`."""

    name = "quantized_grouped_outer"
    defaults: ClassVar = {**QuantizedProduct.defaults, "kinds": _BY_WEIGHT}
    examples = (
        Example(("f64[4, 2, 3, 6]", "f64[4, 2, 3, 2]"), {"recipe": "nvfp4"}),
        Example(("f64[2/4, 3~, 2]", "f64[2/4, 3~, 2]")),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Quantize along the rows of each expert that have anything but zeros, and multiply."""
        result = np.zeros(view.result_shapes[0], operands[0].dtype)
        for a, b, product in zip(*operands, result, strict=True):
            filled = a.any(axis=-1) & b.any(axis=-1)
            product[...] = self.copies(a[filled].T, 0) @ self.copies(b[filled].T, 1).T
        return result
