"""A mixture of experts in a program: where it begins and ends, what it computes, and its test."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardwright.frontends.common.mixtures.probes import WIDE, Run, UnknownError, choices
from shardwright.ir.graph import Graph, Node, Value, renamed_result
from shardwright.ir.rounding import EQUAL
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array
from shardwright.operators.models.routing import choices_within

_TRIED = 24  # values that may be the weights of choices, or the sum after the experts: the nearest
_SAME = ("reshape", "expand_dims", "squeeze", "identity")
_MOVING = (*_SAME, "broadcast_to", "transpose", "gather")
CHOOSING = {"top_k": 1, "argmax": 0}  # and which result is the choice

Lifted = Callable[[Builder, Value], Value | None]  # from rows of experts to what they compute


@dataclass(frozen=True)
class Mixture:
    """A mixture.

    Parameters
    ----------
    out : str
        The sum over the experts of each token.
    x, chosen, weights : str
        Tokens, the experts that they chose, and the weight of each choice; none if it is empty.
    base : str
        What the sum is added to; nothing if it is empty.
    experts : int
        How many there are.
    lift : callable
        Emits what the experts compute, on rows of experts.
    capacity : int
        Most tokens of a group that an expert takes; as many as chose it if zero.
    """

    out: str
    x: str
    chosen: str
    weights: str
    base: str
    experts: int
    lift: Lifted
    capacity: int = 0


@dataclass(frozen=True)
class Candidate:
    """What may be a mixture.

    Parameters
    ----------
    graph : Graph
        The program.
    data : mapping of str to array
        Constants.
    chosen : str
        The experts that tokens chose.
    experts : int
        How many there are.
    x : str
        The tokens.
    ends : sequence of (str, str, callable)
        What experts compute; the rows of which they compute it; and a function of the run that
        returns the expert of each row.
    lift : callable
        See `Mixture`.
    capacity : int
        The slots of an expert for each group of tokens, if tokens go to slots.
    """

    graph: Graph
    data: Mapping[str, Array]
    chosen: str
    experts: int
    x: str
    ends: Sequence[tuple[str, str, Callable[[Run], Array]]]
    lift: Lifted
    capacity: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return prod(self.graph.values[self.x].type.shape[:-1])

    @property
    def choices(self) -> int:
        """How many experts a token chooses."""
        return self.graph.values[self.chosen].type.elements // self.tokens

    def mixture(self) -> Mixture | None:
        """Return the mixture that it is, or None."""
        sent: dict[str, bool] = {}
        for out in self._outs():
            for weights in ("", *self._weights(out)):
                if weights not in sent:
                    sent[weights] = not self.capacity or self._sends(weights)
                if not sent[weights]:
                    continue
                for base in ("", *self._bases(out)):
                    if self._is_mixture(out, weights, base):
                        where = (out, self.x, self.chosen, weights, base)
                        return Mixture(*where, self.experts, self.lift, self._limit)
        return None

    def _outs(self) -> list[str]:
        """Return values after all ends that have a row for each token."""
        reached = [{end} for end, _, _ in self.ends]
        found: list[str] = []
        for node in self.graph.nodes:
            for one in reached:
                if not one.isdisjoint(node.operands):
                    one.update(result.name for result in node.results)
            name = node.name
            if all(name in one for one in reached) and self._has_tokens(name):
                found.append(name)
                if len(found) == _TRIED:
                    break
        return found

    def _has_tokens(self, name: str) -> bool:
        kind, width = self.graph.values[name].type, self._width
        return (
            kind.is_float and kind.shape[-1:] == (width,) and (kind.elements == self.tokens * width)
        )

    @property
    def _width(self) -> int:
        return self.graph.values[self.ends[0][0]].type.shape[-1]

    def _weights(self, out: str) -> list[str]:
        """Return values that may be the weights of choices, the last ones first."""
        stops = {self.x, self.chosen, *(end for end, _, _ in self.ends)}
        near = cone(self.graph, [out], stops)
        values = self.graph.values
        order = [result.name for node in self.graph.nodes for result in node.results]
        found = [
            name
            for name in reversed(order)
            if name in near and values[name].type.is_float and self._has_weights(values[name].type)
        ]
        return found[:_TRIED]

    def _has_weights(self, kind: TensorType) -> bool:
        """Return whether there is a number for each choice, or, of slots, for each expert."""
        if kind.elements == self.tokens * self.choices:
            return kind.shape[-1] == self.choices or self.choices == 1
        is_dense = kind.elements == self.tokens * self.experts and self.capacity > 0
        return is_dense and kind.shape[-1] == self.experts

    @property
    def _limit(self) -> int:
        """How many tokens of a group an expert takes at most; zero if no choice is dropped."""
        kind = self.graph.values[self.x].type
        return self.capacity if self.capacity < kind.shape[-2] else 0

    def _kept(self, chosen: Array) -> Array:
        """Return choices of which those are -1 that find their expert full."""
        if not self._limit:
            return chosen
        size = self.graph.values[self.x].type.shape[-2]
        grouped = chosen.reshape(-1, size, self.choices)
        return choices_within(grouped, self.experts, self._limit).reshape(chosen.shape)

    def _bases(self, out: str) -> list[str]:
        """Return what the sum of experts may be added to: the last tokens without experts."""
        ends = {end for end, _, _ in self.ends}
        near, behind = cone(self.graph, [out], {self.x, self.chosen, *ends}), {*ends}
        found: list[str] = []
        for node in self.graph.nodes:
            if not behind.isdisjoint(node.operands):
                behind.update(result.name for result in node.results)
            elif node.name in near and self._has_tokens(node.name):
                found = [node.name]
        return [name for name in found if name != self.x]

    def _is_mixture(self, out: str, weights: str, base: str) -> bool:
        """Return whether values are those of a mixture, for all probes."""
        probes = choices(self.tokens, self.experts, self.choices)
        try:
            return all(
                self._fits(out, weights, base, chosen, seed) for seed, chosen in enumerate(probes)
            )
        except UnknownError:
            return False

    def _fits(self, out: str, weights: str, base: str, chosen: Array, seed: int) -> bool:
        """Return whether random linear maps in place of experts give the sum of a mixture."""
        random, values = np.random.default_rng(seed), self.graph.values
        kind = values[self.x].type
        width, size = kind.shape[-1], self._width
        narrow = frozenset((width, size)) if self._is_wide else frozenset[int]()
        width, size = (1, 1) if self._is_wide else (width, size)
        x = random.normal(size=(self.tokens, width))
        w, kept = self._drawn(random, weights, chosen), self._kept(chosen)
        matrix, scale = random.normal(size=(width, size)), random.normal(size=self.experts)
        given: dict[str, Array | Callable[[Run], Array]] = {
            self.x: x.reshape(*kind.shape[:-1], width),
            self.chosen: chosen.reshape(values[self.chosen].type.shape),
        }
        of_choice = w if w.shape == chosen.shape else np.take_along_axis(w, chosen, 1)
        shares = of_choice * scale[chosen] * (kept >= 0)
        expected = shares.sum(1, keepdims=True) * (x @ matrix)
        if weights:
            given[weights] = w.reshape(values[weights].type.shape)
        if base:
            shape = values[base].type.shape
            given[base] = random.normal(size=(*shape[:-1], size))
            expected = expected + np.asarray(given[base]).reshape(expected.shape)
        for end, rows, of in self.ends:
            given[end] = _map(rows, of, matrix, scale)
        run = Run(self.graph, self.data, given, narrow)
        if self.capacity and not self._are_sent(run, x, kept):
            return False
        found = run.value(out).reshape(-1, size)
        return found.shape == expected.shape and bool(
            np.abs(found - expected).max() < EQUAL * (1 + np.abs(expected).max())
        )

    def _drawn(self, random: np.random.Generator, weights: str, chosen: Array) -> Array:
        """Return weights for each choice or expert; positive ones where masks may ask for that."""
        if not weights:
            return np.ones(chosen.shape)
        shape = (self.tokens, self.graph.values[weights].type.elements // self.tokens)
        return random.uniform(0.1, 1, shape) if self.capacity else random.normal(size=shape)

    def _sends(self, weights: str) -> bool:
        """Return whether random choices send tokens to the rows of their experts."""
        chosen, kind = (
            choices(self.tokens, self.experts, self.choices)[0],
            self.graph.values[self.x],
        )
        random = np.random.default_rng(0)
        x = random.normal(size=(self.tokens, 1 if self._is_wide else kind.type.shape[-1]))
        given = {
            self.x: x.reshape(*kind.type.shape[:-1], -1),
            self.chosen: chosen.reshape(self.graph.values[self.chosen].type.shape),
        }
        if weights:
            drawn = self._drawn(random, weights, chosen)
            given[weights] = drawn.reshape(self.graph.values[weights].type.shape)
        narrow = frozenset((kind.type.shape[-1],)) if self._is_wide else frozenset[int]()
        try:
            return self._are_sent(Run(self.graph, self.data, given, narrow), x, self._kept(chosen))
        except UnknownError:
            return False

    def _are_sent(self, run: Run, x: Array, kept: Array) -> bool:
        """Return whether the rows of experts are the tokens that chose them, as they are."""
        for _, start, of in self.ends:
            expert, sent = of(run).reshape(-1), run.value(start).reshape(-1, x.shape[1])
            for number in range(self.experts):
                own = x[(kept == number).any(1)]
                got = sent[expert == number]
                got = got[(got != 0).any(1)]
                if not np.array_equal(*(rows[np.argsort(rows[:, 0])] for rows in (own, got))):
                    return False
        return True

    @property
    def _is_wide(self) -> bool:
        return self.tokens * self.choices * self._width > WIDE


def _map(
    rows: str, of: Callable[[Run], Array], matrix: Array, scale: Array
) -> Callable[[Run], Array]:
    """Return the function that stands for experts: a matrix, times a number of each expert."""

    def computed(run: Run) -> Array:
        expert = of(run).reshape(-1, 1)
        within = (expert >= 0) & (expert < len(scale))
        factor = np.where(within, scale[np.clip(expert, 0, len(scale) - 1)], 0.0)
        found: Array = run.value(rows) @ matrix
        return found * factor.reshape(*found.shape[:-1], 1)

    return computed


def cone(graph: Graph, names: Iterable[str], stops: Iterable[str] = ()) -> set[str]:
    """Return the values that others depend on, up to some, and up to choices."""
    found, todo, ends = set[str](), list(names), {*stops}
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        node = graph.producers.get(name)
        if node is not None and name not in ends and node.operator not in CHOOSING:
            todo += node.operands
    return found


def choice_of(graph: Graph, name: str) -> str:
    """Return the choice of experts that integers follow from; empty if it is not one alone."""
    found = {
        one
        for one in cone(graph, [name])
        if (node := graph.producers.get(one)) is not None
        and node.operator in CHOOSING
        and node.results[CHOOSING[node.operator]].name == one
    }
    return found.pop() if len(found) == 1 else ""


def tokens_of(graph: Graph, name: str, chosen: str) -> str:
    """Return the tokens of rows, before all that reshapes them; empty if there are none."""
    node = graph.producers.get(chosen)
    kind = graph.values[chosen].type
    count = 1 if node is None or node.operator == "argmax" else kind.shape[-1]
    tokens, width = kind.elements // count, graph.values[name].type.shape[-1]
    found = ""
    while True:
        shape = graph.values[name].type.shape
        if prod(shape[:-1]) == tokens and shape[-1] == width:
            found = name
        node = graph.producers.get(name)
        if node is None or node.operator not in (_SAME if found else _MOVING):
            return found
        name = node.operands[0]


def emitted(graph: Graph, build: Builder, node: Node, own: Mixture) -> list[Node]:
    """Return the nodes of a mixture in place of the one that makes its sum.

    The node itself, if what the experts compute has no form on rows of experts.
    """
    build.nodes, build.scope = [], node.scope
    values, shape = graph.values, node.results[0].type.shape
    x = values[own.x]
    tokens = x.type.shape[:-1]
    count = values[own.chosen].type.elements // prod(tokens)

    def routed(name: str) -> Value:
        kind = (*tokens, count)
        value = values[name]
        return value if value.type.shape == kind else build.emit("reshape", value, shape=kind)

    chosen = every = routed(own.chosen)
    if own.capacity:
        chosen = _within(build, every, own)
    made = own.lift(build, build.emit("dispatch", x, chosen, experts=own.experts))
    if made is None:
        return [node]
    weights = [_weights_of(build, values[own.weights], every, own)] if own.weights else []
    found = build.emit("combine", made, chosen, *weights)
    if found.type.shape != shape:
        found = build.emit("reshape", found, shape=shape)
    if own.base:
        base = values[own.base]
        if base.type.shape != shape:
            base = build.emit("reshape", base, shape=shape)
        found = build.emit("add", base, found)
    if found.type != node.results[0].type.dense:
        found = build.emit("cast", found, dtype=node.results[0].type.dtype)
    return [renamed_result(one, found.name, node.name) for one in build.nodes]


def _weights_of(build: Builder, value: Value, chosen: Value, own: Mixture) -> Value:
    """Return the weights of choices; those of all experts are looked up."""
    shape = chosen.type.shape
    if value.type.elements == prod(shape):
        return value if value.type.shape == shape else build.emit("reshape", value, shape=shape)
    whole = (*shape[:-1], own.experts)
    if value.type.shape != whole:
        value = build.emit("reshape", value, shape=whole)
    return build.emit("gather_elements", value, chosen, axis=len(shape) - 1)


def _within(build: Builder, chosen: Value, own: Mixture) -> Value:
    """Return choices of which those are none that find their expert full."""
    shape = chosen.type.shape
    if len(shape) == 2:
        chosen = build.emit("reshape", chosen, shape=(1, *shape))
    how: dict[str, Any] = {"experts": own.experts, "capacity": own.capacity}
    found = build.emit("within_capacity", chosen, **how)
    return found if found.type.shape == shape else build.emit("reshape", found, shape=shape)
