"""Operators that multiply matrices, and what tensor cores make of their factors.

TF32 is float32 with the fraction of float16, 10 bits in the place of 23. Factors alone are rounded
to it, as they are multiplied: in memory they stay float32, as do sums and results.

References
----------
NVIDIA, "NVIDIA A100 Tensor Core GPU architecture", 2020; PTX ISA, `cvt` to `tf32`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph
from shardwright.ir.types import TF32, TensorType
from shardwright.operators.info import Array, OperatorInfo, info_of

_DROPPED = np.finfo(np.float32).nmant - np.finfo(np.float16).nmant


def as_tf32(x: Array) -> Array:
    """Return float32 numbers with 10 bits of fraction: the nearest, of two the even one.

    Numbers that are not finite stay as they are. Hopper's ``cvt.rn`` rounds so; ``cvt.rna`` of
    Ampere takes of two the greater one.

    Examples
    --------
    >>> as_tf32(np.array([1.0, 1 + 2**-11, 1 + 3 * 2**-11], np.float32)) - 1
    array([0.        , 0.        , 0.00195312], dtype=float32)
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = (bits >> _DROPPED) & 1
    with np.errstate(over="ignore"):  # of a NaN, which is not kept
        nearest = (bits + ((1 << (_DROPPED - 1)) - 1 + odd)) & ~np.uint32((1 << _DROPPED) - 1)
    return np.where(np.isfinite(x), nearest.view(np.float32).reshape(x.shape), x)


def type_of_products(info: OperatorInfo) -> str:
    """Return the type that an operator computes in: of its products, else of its operands."""
    if isinstance(info, Product) and info.products:
        return info.products
    return (info.operand_types or info.result_types)[0].dtype


class Product(OperatorInfo):
    """The base of operators that multiply matrices.

    With ``products`` tf32 the factors of its products, float32 numbers, are rounded to 10 bits of
    fraction; in float64, in which plans are compared, nothing is rounded.
    """

    defaults: ClassVar = {"products": ""}

    def __init__(self, operand_types: Sequence[TensorType], attributes: Attributes) -> None:
        super().__init__(operand_types, attributes)
        if self.products not in ("", TF32) or (self.products and not self.is_of_float32):
            kinds = " and ".join(dict.fromkeys(kind.dtype for kind in self.operand_types))
            raise IRError(
                f"`{self.name}` has `{self.products}` products of {kinds}, expected `{TF32}` "
                "products of float32"
            )

    @property
    def product_flops(self) -> float:
        """Count all operations."""
        return self.flops

    @property
    def products(self) -> str:
        """``tf32``, or empty: then products are of the type of the operands."""
        return str(self.attributes.get("products", ""))

    @property
    def is_of_float32(self) -> bool:
        """Whether all floating-point operands are float32."""
        return {kind.dtype for kind in self.operand_types if kind.is_float} == {"float32"}

    @property
    def written(self) -> dict[str, Any]:
        """The attributes, without `products` where it says nothing."""
        return {name: v for name, v in self.attributes.items() if name != "products" or v}

    def factor(self, x: Array) -> Array:
        """Return a factor of a product as it is multiplied."""
        return as_tf32(x) if self.products and x.dtype == np.float32 else x

    def product(self, a: Array, b: Array) -> Array:
        """Return the product of two arrays of matrices."""
        return np.matmul(self.factor(a), self.factor(b))


def with_products(graph: Graph, products: str) -> Graph:
    """Return a program with all its products of float32 in a type; the others stay."""
    nodes = (
        replace(node, attributes={**node.attributes, "products": products})
        if isinstance(info, Product) and info.product_flops and info.is_of_float32
        else node
        for node, info in ((node, info_of(graph, node)) for node in graph.nodes)
    )
    return replace(graph, nodes=tuple(nodes))
