"""Routing of tokens to experts of limited capacity (Shazeer et al., 2017; Lepikhin et al., 2020).

Tokens ``[group, token, feature]`` choose experts; each expert has ``capacity`` slots for the tokens
of a group. `expert_slots` assigns the slots, `dispatch` moves tokens to their slots ``[expert,
(group slot), feature]``, `combine` moves them back: each is the transpose of the other.

Groups may be split, and so may experts. The all-to-all between tokens split by group and experts
that are split follows from the layouts and has no code here.
"""

from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.ir.graph import Value
from shardwright.operators.indexing.gather import require_integers, segment_sums
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
from shardwright.operators.rule import Rule, ShardView


@register
class ExpertSlots(OperatorInfo):
    """The slot of each choice of an expert, ``[group, token, choice]``; -1 if the expert is full.

    Slot ``j`` of expert ``i`` is ``i capacity + j``. First choices are served before second
    choices, and tokens in order.
    """

    name = "expert_slots"
    notation = "g s^ k^ -> g s k"
    defaults: ClassVar = {"experts": 1, "capacity": 1}
    flops_per_point = 10.0
    examples = (
        Example(("i64[4, 6, 2]",), {"experts": 3, "capacity": 3}),
        Example(("i64[2, 5, 1]",), {"experts": 2, "capacity": 2}, {0: (-1, 4)}),
    )

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of positions."""
        require_integers(self, 0)
        return (self.operand_types[0].dtype,)

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sort choices by expert, and count in each."""
        chosen = operands[0]
        groups, tokens, choices = chosen.shape
        capacity, experts = self.attributes["capacity"], self.attributes["experts"]
        expert = chosen.transpose(0, 2, 1).reshape(groups, choices * tokens)
        order = np.argsort(expert, axis=1, kind="stable")
        ordered, count = np.take_along_axis(expert, order, 1), np.arange(choices * tokens)
        begins = np.where(np.diff(ordered, axis=1, prepend=ordered[:, :1] - 1) != 0, count, 0)
        place = np.empty_like(expert)
        np.put_along_axis(place, order, count - np.maximum.accumulate(begins, axis=1), 1)
        kept = (place < capacity) & (expert >= 0) & (expert < experts)
        slots = np.where(kept, expert * capacity + place, -1)
        return slots.reshape(groups, choices, tokens).transpose(0, 2, 1)


class Routed(OperatorInfo):
    """The base of operators between tokens and slots, with the slots of each token's choices.

    The slots, ``[group, token, choice]``, may be followed by a weight for each.
    """

    defaults: ClassVar = {"capacity": 1}
    slots_at: ClassVar[int] = 1

    @property
    def is_weighted(self) -> bool:
        """Whether each choice has a weight."""
        return len(self.operand_types) > self.slots_at + 1

    @property
    def linear_sets(self) -> tuple[tuple[int, ...], ...]:
        """The first operand; the weights."""
        others = tuple((i,) for i in range(self.slots_at))
        return (*others, (self.slots_at + 1,)) if self.is_weighted else others

    @property
    def flops(self) -> float:
        """Count a product and a sum for each feature of each choice."""
        sizes = self.rule.sizes
        return 2.0 * sizes["g"] * sizes["s"] * sizes["k"] * sizes["d"]

    def make_dtypes(self) -> tuple[str, ...]:
        """Return the type of the first operand."""
        require_integers(self, self.slots_at)
        return (self.operand_types[0].dtype,)

    def resolve_routed(self, notation: str, experts: int | None = None) -> Rule:
        """Return the rule of a notation, in which ``W`` stands for the weights, if there are any.

        Raises
        ------
        IRError
            If the operands have other numbers of dimensions.
        """
        shapes = [operand.shape for operand in self.operand_types]
        if len(shapes) <= self.slots_at or any(len(shape) != 3 for shape in shapes):
            raise IRError(f"the operands have the shapes {shapes}, expected three dimensions")
        sizes = {"g": shapes[self.slots_at][0], "c": self.attributes["capacity"]}
        if experts is not None:
            sizes = {"e": experts, **sizes}
        weight = f", {self.weight}" if self.is_weighted else ""
        return resolve(notation.replace("W", weight), shapes, sizes)

    weight: ClassVar[str] = ""

    def own_slots(self, slots: Array, view: ShardView) -> tuple[Array, Array]:
        """Return slots as positions in the local ``[expert, group, slot]``, and which are local."""
        capacity = self.attributes["capacity"]
        expert = slots // capacity - view.starts["e"]
        place = slots % capacity - view.starts["c"]
        experts, groups, places = (view.sizes[factor] for factor in "egc")
        inside = (slots >= 0) & (expert >= 0) & (expert < experts) & (place >= 0)
        inside &= place < places
        group = np.arange(groups)[:, None, None]
        return np.where(inside, (expert * groups + group) * places + place, 0), inside


@register
class Dispatch(Routed):
    """Move tokens to the slots of ``experts`` experts; each slot holds the sum of its tokens."""

    name = "dispatch"
    defaults: ClassVar = {"experts": 1, "capacity": 1}
    weight = "g s+ k+"
    examples = (
        Example(("f64[2, 4, 3]", "i64[2, 4, 2]"), {"experts": 3, "capacity": 2}, {1: (-1, 6)}),
        Example(
            ("f64[2, 3, 2]", "i64[2, 3, 1]", "f64[2, 3, 1]"),
            {"experts": 2, "capacity": 3},
            {1: (-1, 7)},
        ),
    )

    def make_rule(self) -> Rule:
        """Contract tokens and choices."""
        notation = "g s+ d, g s+ k+W -> e (g c) d"
        return self.resolve_routed(notation, self.attributes["experts"])

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Sum the tokens of each local slot."""
        x, slots = operands[:2]
        positions, inside = self.own_slots(slots, view)
        group, token, choice = np.nonzero(inside)
        terms = x[group, token]
        if self.is_weighted:
            terms = terms * operands[2][group, token, choice][:, None]
        experts, places, features = view.result_shapes[0]
        kept = np.ones(len(terms), bool)
        total = segment_sums(terms, positions[inside], kept, experts * places)
        return total.reshape(experts, places, features)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Combine the cotangent."""
        return _gradients(build, at, "combine", {"capacity": self.attributes["capacity"]})


@register
class Combine(Routed):
    """Move the contents of slots back to the tokens, summed over a token's choices."""

    name = "combine"
    weight = "g s k+"
    examples = (
        Example(("f64[3, 4, 3]", "i64[2, 4, 2]"), {"capacity": 2}, {1: (-1, 6)}),
        Example(("f64[2, 6, 2]", "i64[2, 3, 2]", "f64[2, 3, 2]"), {"capacity": 3}, {1: (-1, 7)}),
    )

    def make_rule(self) -> Rule:
        """Contract the experts and their slots."""
        return self.resolve_routed("e+ (g c+) d, g s k+W -> g s d")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Look up the local slots, choice by choice."""
        y, slots = operands[:2]
        positions, inside = self.own_slots(slots, view)
        factors = inside * operands[2] if self.is_weighted else inside
        flat, total = y.reshape(-1, y.shape[-1]), np.zeros(view.result_shapes[0], y.dtype)
        for choice in range(slots.shape[2]):
            total += flat[positions[..., choice]] * factors[..., choice, None]
        return total

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Dispatch the cotangent."""
        how = {"experts": at.operands[0].type.shape[0], **self.attributes}
        return _gradients(build, at, "dispatch", how)


def _gradients(build: Emitter, at: Linearization, transpose: str, how: dict[str, Any]) -> Gradients:
    """Emit the gradients of `dispatch` or `combine`, each by the other."""
    dy, moved, routes = at.cotangents[0], at.operands[0], at.operands[1:]
    like = moved if transpose == "dispatch" else None
    gradients: list[Value | None] = [build.emit(transpose, dy, *routes, like=like, **how), None]
    if len(routes) > 1:
        tokens, slots = (dy, moved) if transpose == "dispatch" else (moved, dy)
        capacity = how["capacity"]
        operands = (tokens, slots, routes[0])
        gradients.append(build.emit("routing_weight_gradient", *operands, capacity=capacity))
    return gradients


@register
class RoutingWeightGradient(Routed):
    """The product of each token with the content of the slot of each of its choices."""

    name = "routing_weight_gradient"
    slots_at = 2
    examples = (
        Example(("f64[2, 4, 3]", "f64[3, 4, 3]", "i64[2, 4, 2]"), {"capacity": 2}, {2: (-1, 6)}),
    )

    def make_rule(self) -> Rule:
        """Contract features, experts and slots."""
        return self.resolve_routed("g s d+, e+ (g c+) d+, g s k -> g s k")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Multiply, choice by choice."""
        x, y, slots = operands
        positions, inside = self.own_slots(slots, view)
        flat, result = y.reshape(-1, y.shape[-1]), np.empty(view.result_shapes[0], x.dtype)
        for choice in range(slots.shape[2]):
            found = np.einsum("gsd,gsd->gs", x, flat[positions[..., choice]])
            result[..., choice] = found * inside[..., choice]
        return result

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Dispatch or combine the other operand: the product is linear in both."""
        (x, y, slots), dw = at.operands, at.cotangents[0]
        capacity, experts = self.attributes["capacity"], y.type.shape[0]
        dx = build.emit("combine", y, slots, dw, capacity=capacity)
        dy = build.emit("dispatch", x, slots, dw, like=y, experts=experts, capacity=capacity)
        return [dx, dy, None]
