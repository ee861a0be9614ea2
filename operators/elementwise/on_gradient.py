"""Operators that act on gradients: a model's own backward pass."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    operator_info,
    register,
)
from shardwright.operators.rule import Dims, Rule, ShardView, base


@register
class OnGradient(OperatorInfo):
    """Zeros whose gradients an operator is applied to, to give those of the operands.

    It is the transpose of the operator ``apply`` with attributes ``keywords``: the operator, which
    need not be linear,
    runs in the backward pass, on the gradients of the results here, and what it returns are the
    gradients of the first operands. ``reads`` has the type and the shape of each operand that is a
    gradient, and ``()`` for one that is an operand here, after the first; ``returns`` the results
    that count. Numbers that are not real are held as those of the type of the first operand, which
    an empty type stands for.
    """

    name = "on_gradient"
    of_reals = True
    has_own_gradient = True
    flops_per_point = 0.0
    defaults: ClassVar = {"apply": "identity", "keywords": (), "reads": (), "returns": (0,)}
    examples = (
        Example(
            ("f64[4, 6]",),
            {
                "apply": "clip",
                "keywords": (("high", 0.5), ("low", -0.5)),
                "reads": (("", 4, 6),),
            },
        ),
        Example(("f64[4, 6]", "f64[6]"), {"apply": "minimum", "reads": (("", 4, 6), ())}),
        Example(("f64[4, 6]",), {"apply": "greater", "reads": (("", 4, 6), ("", 6))}),
        Example(("f64[4, 6]",), {"apply": "mask", "reads": (("", 4, 6), ("bool", 4, 6))}),
        Example(("f64[4, 6]",), {"apply": "matmul", "reads": (("", 4, 3), ("", 3, 6))}),
        Example(
            ("f64[4]",),
            {"apply": "reduce_max", "keywords": (("axis", 1),), "reads": (("", 4, 6),)},
        ),
        Example(
            ("f64[4, 2]",),
            {
                "apply": "top_k",
                "keywords": (("axis", 1), ("k", 2)),
                "reads": (("", 4, 6),),
                "returns": (1,),
            },
        ),
    )

    def _inner(self) -> OperatorInfo:
        """Return the operator that runs on gradients."""
        real, count = self.operand_types[0].dtype, len(self.attributes["returns"])
        given = iter(self.operand_types[count:])
        types = [
            TensorType(read[0] or real, tuple(read[1:])) if read else next(given)
            for read in self.attributes["reads"]
        ]
        inner = operator_info(self.attributes["apply"], types, dict(self.attributes["keywords"]))
        for position, operand in zip(self.attributes["returns"], self.operand_types, strict=False):
            if inner.result_types[position].shape != operand.shape:
                raise IRError(
                    f"`{inner.name}` makes the gradient {inner.result_types[position]} of an "
                    f"operand that is {operand}, expected one shape"
                )
        return inner

    def make_rule(self) -> Rule:
        """Return the rule of the operator, its results as operands and its operands as results.

        A factor that it sums over is one of a result here: split, it leaves partial sums in the
        gradient of an operand that lacks it, as every operator does.
        """
        inner, reads = self._inner(), self.attributes["reads"]
        targets = [inner.rule.results[position] for position in self.attributes["returns"]]
        pairs = list(zip(reads, inner.rule.operands, strict=True))
        given = [_plain(dims) for read, dims in pairs if not read]
        results = [_plain(dims) for read, dims in pairs if read]
        made, left, kept = _factors(targets), _factors(results), _factors(given)
        halos = {base(factor) for factor, kind in inner.rule.kinds.items() if kind == "halo"}
        kinds = {}
        for factor in inner.rule.sizes:
            kind = inner.rule.kinds[factor]
            is_free = (
                (kind == "sum" and factor in left and factor not in made)
                or (kind == "parallel" and factor in made and factor in left)
                or (kind == "parallel" and factor in made and factor in kept)
            )
            if factor == base(factor):
                kinds[factor] = "parallel" if is_free and factor not in halos else "whole"
        sizes = {factor: inner.rule.sizes[factor] for factor in kinds}
        return Rule((*targets, *given), tuple(results), sizes, kinds)

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the first operand, of all."""
        count = sum(1 for read in self.attributes["reads"] if read)
        return (self.operand_types[0].dtype,) * count

    def kernel(self, view: ShardView, *operands: Array) -> Array | tuple[Array, ...]:
        """Make zeros."""
        kinds = zip(self.result_types, view.result_shapes, strict=True)
        made = tuple(np.broadcast_to(numpy_dtype(t.dtype).type(0), shape) for t, shape in kinds)
        return made if len(made) > 1 else made[0]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Apply the operator."""
        reads, returns = self.attributes["reads"], self.attributes["returns"]
        cotangents, given = iter(at.cotangents), iter(at.operands[len(returns) :])
        operands = [_held(build, next(cotangents), r[0]) if r else next(given) for r in reads]
        attributes: dict[str, Any] = dict(self.attributes["keywords"])
        made = build.emit_all(self.attributes["apply"], *operands, **attributes)
        real = self.operand_types[0].dtype
        found = [_held(build, made[position], real) for position in returns]
        return [*found, *[None] * (len(at.operands) - len(returns))]


def _held(build: Emitter, value: Value, dtype: str) -> Value:
    """Return a value in a type; an empty one stands for its own."""
    if dtype in ("", value.type.dtype):
        return value
    return build.emit("cast", value, dtype=dtype)


def _plain(dims: Dims) -> Dims:
    """Return the factors of a tensor, without the marks of halos."""
    return tuple(tuple(map(base, factors)) for factors in dims)


def _factors(tensors: Sequence[Dims]) -> set[str]:
    return {base(factor) for dims in tensors for factors in dims for factor in factors}
