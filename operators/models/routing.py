"""Experts between which tokens choose: their rows, and their products (Shazeer et al., 2017).

Tokens ``[token..., feature]`` choose experts ``[token..., choice]``. `dispatch` makes the row of
every expert and token, ``[expert, token..., feature]``, of which only those of chosen experts are
filled (`Ragged`); `grouped_matmul` multiplies the rows of each expert by its weights; `combine`
sums the rows of a token's choices. A choice of -1 is of no expert: `within_capacity` makes it of
choices whose expert is full.

Tokens may be split, and so may experts. Between tokens that are split and experts that are split
the all-to-all follows from the layouts and has no code here, nor has the sum over split experts.

References
----------
Lepikhin et al., "GShard", 2020; Gale et al., "MegaBlocks", 2022.
"""

from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.ir.types import Ragged
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
from shardwright.operators.products import Product
from shardwright.operators.rule import Rule, ShardView

IMBALANCE = 1.04
"""Tokens of the busiest rank over the mean, without more knowledge: of the busiest expert of models
of 1e9 and 3e9 parameters whose selection bias balances (Wang et al., 2024, table 2; with auxiliary
losses 1.72 and 1.52). At twice its value that rank computes, holds and receives twice the rows."""


@register
class WithinCapacity(OperatorInfo):
    """The experts that tokens chose, ``[group, token, choice]``; -1 of a choice that found it full.

    An expert takes at most ``capacity`` choices of a group. First choices are served before second
    choices, and tokens in order.
    """

    name = "within_capacity"
    notation = "g s^ k^ -> g s k"
    positions = (0,)
    defaults: ClassVar = {"experts": 1, "capacity": 1}
    flops_per_point = 10.0
    examples = (
        Example(("i64[4, 6, 2]",), {"experts": 3, "capacity": 3}),
        Example(("i64[2, 5, 1]",), {"experts": 2, "capacity": 2}, {0: (-1, 4)}),
    )

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sort choices by expert, and count in each."""
        return choices_within(operands[0], self.attributes["experts"], self.attributes["capacity"])


def choices_within(chosen: Array, experts: int, capacity: int) -> Array:
    """Return choices ``[group, token, choice]`` as `WithinCapacity` does, with -1 for none."""
    groups, tokens, choices = chosen.shape
    expert = chosen.transpose(0, 2, 1).reshape(groups, choices * tokens)
    order = np.argsort(expert, axis=1, kind="stable")
    ordered, count = np.take_along_axis(expert, order, 1), np.arange(choices * tokens)
    begins = np.where(np.diff(ordered, axis=1, prepend=ordered[:, :1] - 1) != 0, count, 0)
    place = np.empty_like(expert)
    np.put_along_axis(place, order, count - np.maximum.accumulate(begins, axis=1), 1)
    kept = (place < capacity) & (expert >= 0) & (expert < experts)
    return np.where(kept, expert, -1).reshape(groups, choices, tokens).transpose(0, 2, 1)


class Routed(OperatorInfo):
    """The base of operators between tokens and rows of experts, with the choices of each token.

    The choices, ``[token..., choice]``, may be followed by a weight for each. Without weights a
    row counts once, however often the token chose the expert.
    """

    positions = (1,)

    @property
    def chosen_at(self) -> int:
        """The place of the choices."""
        return self.positions[0]

    @property
    def is_weighted(self) -> bool:
        """Whether each choice has a weight."""
        return len(self.operand_types) > self.chosen_at + 1

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The first operand; the weights."""
        others = tuple((i,) for i in range(self.chosen_at))
        return (*others, (self.chosen_at + 1,)) if self.is_weighted else others

    @property
    def flops(self) -> float:
        """Count a product and a sum for each feature of each row, filled or not."""
        return 2.0 * self.rule.points / self.rule.sizes["k"]

    def resolve_routed(self, notation: str, experts: int | None = None) -> Rule:
        """Return the rule of a notation with ``T`` for tokens and ``K`` for what choices have.

        A choice has its expert, and a weight if there are weights.

        Raises
        ------
        IRError
            If the operands have other numbers of dimensions.
        """
        shapes = [operand.shape for operand in self.operand_types]
        if len(shapes) <= self.chosen_at or len(shapes[self.chosen_at]) < 2:
            raise IRError(f"the operands have the shapes {shapes}, expected choices of tokens")
        tokens = " ".join(f"t{i}" for i in range(len(shapes[self.chosen_at]) - 1))
        notation = notation.replace("K", "T k+, T k+" if self.is_weighted else "T k^")
        sizes = {} if experts is None else {"e": experts}
        return resolve(notation.replace("T", tokens), shapes, sizes)

    def taken(self, chosen: Array, view: ShardView) -> Array:
        """Return which choices ``[token..., choice]`` are of each local expert, experts first."""
        local = np.arange(view.starts["e"], view.starts["e"] + view.sizes["e"])
        return np.asarray(chosen == local.reshape(-1, *(1,) * chosen.ndim))

    def shares(self, operands: tuple[Array, ...], view: ShardView) -> Array:
        """Return the weight of each row ``[expert, token...]``: 0 where it is not filled."""
        taken = self.taken(operands[self.chosen_at], view)
        if not self.is_weighted:
            return np.asarray(taken.any(axis=-1))
        return np.asarray((taken * operands[self.chosen_at + 1]).sum(axis=-1))


@register
class Dispatch(Routed):
    """The rows of ``experts`` experts: a token, times its weight, for those that it chose, else 0.

    ``imbalance`` is the rows of the rank that has most over the mean, where ranks divide the
    experts. With ``ragged=False`` rows that are not filled are computed and held, too. ``parts`` is
    in how many of how many groups of experts those of a token are, as its router limits them. All
    three are priced, and change no value.
    """

    name = "dispatch"
    defaults: ClassVar = {"experts": 1, "imbalance": IMBALANCE, "ragged": True, "parts": (1, 1)}
    examples = (
        Example(("f64[2, 4, 3]", "i64[2, 4, 2]"), {"experts": 4, "imbalance": 1.5}, {1: (-1, 5)}),
        Example(
            ("f64[4, 2]", "i64[4, 2]", "f64[4, 2]"), {"experts": 3, "ragged": False}, {1: (-1, 4)}
        ),
    )

    def make_rule(self) -> Rule:
        """Choose between the experts."""
        return self.resolve_routed("T d, K -> e T d", self.attributes["experts"])

    def make_ragged(self) -> tuple[Ragged | None, ...]:
        """Return that as many rows of a token are filled as it has choices."""
        sizes, rank = self.rule.sizes, self.operand_types[0].rank
        if sizes["k"] >= sizes["e"] or not self.attributes["ragged"]:
            return (None,)
        imbalance, parts = self.attributes["imbalance"], tuple(self.attributes["parts"])
        if sizes["e"] % parts[1] or sizes["k"] > sizes["e"] // parts[1] * parts[0]:
            few, count = parts
            raise IRError(
                f"{sizes['k']} of {sizes['e']} experts are to be in {few} of {count} equal groups"
            )
        return (Ragged(0, tuple(range(1, rank)), sizes["k"], imbalance, parts),)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply tokens by the weights of the rows."""
        shares = self.shares(operands, view).astype(operands[0].dtype)
        return np.asarray(operands[0] * shares[..., None])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Combine the cotangent."""
        (x, *routes), dy = at.operands, at.cotangents[0]
        dx = build.emit("combine", dy, *routes)
        return _with_weight_gradient(build, [dx, None], (x, dy), routes)


@register
class Combine(Routed):
    """The sum of the rows of a token's choices, each times its weight."""

    name = "combine"
    examples = (
        Example(("f64[3/4, 2~, 4~, 3]", "i64[2, 4, 3]"), {}, {1: (-1, 5)}),
        Example(("f64[3, 4, 2]", "i64[4, 2]", "f64[4, 2]"), {}, {1: (-1, 4)}),
    )

    def make_rule(self) -> Rule:
        """Contract the experts."""
        return self.resolve_routed("e+ T d, K -> T d")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Add up the filled rows, expert by expert."""
        y, total = operands[0], np.zeros(view.result_shapes[0], operands[0].dtype)
        for rows, share in zip(y, self.shares(operands, view), strict=True):
            filled = share != 0
            total[filled] += rows[filled] * share[filled].astype(y.dtype)[..., None]
        return total

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Dispatch the cotangent."""
        (y, *routes), dy = at.operands, at.cotangents[0]
        rows = build.emit("dispatch", dy, *routes, like=y, **_rows_like(y))
        return _with_weight_gradient(build, [rows, None], (dy, y), routes)


def _rows_like(rows: Value) -> dict[str, Any]:
    """Return the attributes of a `dispatch` that fills rows as those of a value are filled."""
    experts, marked = rows.type.shape[0], rows.type.ragged
    if marked is None:
        return {"experts": experts, "ragged": False}
    return {"experts": experts, "imbalance": marked.imbalance, "parts": marked.parts}


def _with_weight_gradient(
    build: Emitter, found: list[Value | None], factors: tuple[Value, Value], routes: list[Value]
) -> Gradients:
    """Return gradients with that by the weights: tokens times the rows of their choices."""
    if len(routes) > 1:
        found.append(build.emit("routing_weight_gradient", *factors, routes[0]))
    return found


@register
class RoutingWeightGradient(Routed):
    """The product of each token with the row of each of its choices."""

    name = "routing_weight_gradient"
    positions = (2,)
    examples = (Example(("f64[2, 4, 3]", "f64[4, 2, 4, 3]", "i64[2, 4, 2]"), {}, {2: (-1, 5)}),)

    def make_rule(self) -> Rule:
        """Contract features and experts."""
        return self.resolve_routed("T d+, e+ T d+, T k -> T k")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply, expert by expert."""
        x, y, chosen = operands
        result = np.zeros(view.result_shapes[0], x.dtype)
        for rows, taken in zip(y, self.taken(chosen, view), strict=True):
            token = np.nonzero(taken)
            result[token] = np.einsum("nd,nd->n", x[token[:-1]], rows[token[:-1]])
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Dispatch or combine the other operand: the product is linear in both."""
        (x, y, chosen), dw = at.operands, at.cotangents[0]
        dx = build.emit("combine", y, chosen, dw)
        dy = build.emit("dispatch", x, chosen, dw, like=y, **_rows_like(y))
        return [dx, dy, None]


class Grouped(Product):
    """The base of products of the rows of experts, ``[expert, token..., feature]``."""

    result_dtype = "common"
    linear = ((0,), (1,))
    flops_per_point = 2.0

    @property
    def tokens(self) -> tuple[str, ...]:
        """The factors of tokens."""
        return tuple(f"t{i}" for i in range(self.operand_types[0].rank - 2))


@register
class GroupedMatMul(Grouped):
    """The rows ``[expert, token..., k]`` of each expert times its matrix of ``[expert, k, n]``.

    With ``transposed`` the matrices are ``[expert, n, k]``. Rows that are not filled are zeros,
    and so are their products.
    """

    name = "grouped_matmul"
    defaults: ClassVar = {"transposed": False, **Product.defaults}
    examples = (
        Example(("f64[4, 2, 3, 6]", "f64[4, 6, 2]")),
        Example(("f64[2/4, 3~, 2]", "f64[4, 6, 2]"), {"transposed": True}),
    )

    def make_rule(self) -> Rule:
        """Contract the features."""
        tokens, matrix = " ".join(self.tokens), "n k+" if self.attributes["transposed"] else "k+ n"
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"e {tokens} k+, e {matrix} -> e {tokens} n", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply the rows of each expert that have anything but zeros."""
        rows, matrices = operands
        result = np.zeros(view.result_shapes[0], rows.dtype)
        for x, matrix, y in zip(rows, matrices, result, strict=True):
            filled = x.any(axis=-1)
            y[filled] = self.product(
                x[filled], matrix.T if self.attributes["transposed"] else matrix
            )
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the cotangent by the matrices, and the rows by it."""
        (x, matrices), dy = at.operands, at.cotangents[0]
        transposed = self.attributes["transposed"]
        dx = build.emit("grouped_matmul", dy, matrices, transposed=not transposed)
        pair = (dy, x) if transposed else (x, dy)
        return [dx, build.emit("grouped_outer", *pair)]


@register
class GroupedOuter(Grouped):
    """The sum over tokens of products of two rows of each expert: a gradient of its matrix.

    An expert without tokens has zeros.
    """

    name = "grouped_outer"
    examples = (
        Example(("f64[4, 2, 3, 6]", "f64[4, 2, 3, 2]")),
        Example(("f64[2/4, 3~, 2]", "f64[2/4, 3~, 2]")),
    )

    def make_rule(self) -> Rule:
        """Contract the tokens."""
        tokens = " ".join(f"{token}+" for token in self.tokens)
        shapes = [operand.shape for operand in self.operand_types]
        return resolve(f"e {tokens} m, e {tokens} n -> e m n", shapes)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply the rows of each expert where both have anything but zeros."""
        result = np.zeros(view.result_shapes[0], operands[0].dtype)
        for a, b, product in zip(*operands, result, strict=True):
            filled = a.any(axis=-1) & b.any(axis=-1)
            product[...] = self.product(a[filled].T, b[filled])
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Multiply the other rows by the cotangent."""
        (a, b), dy = at.operands, at.cotangents[0]
        da = build.emit("grouped_matmul", b, dy, transposed=True)
        return [da, build.emit("grouped_matmul", a, dy)]
