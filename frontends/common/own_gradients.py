"""Gradients that a model computes by itself: the backward pass of a function, and hooks.

The backward pass is imported like everything else, from *marks* that stand for the gradients of the
function's results. Its operators are then transposed: a value of the backward pass becomes the
tensor whose gradient it is. An operator that is linear in gradients becomes that of its gradient,
any other one `on_gradient`. So the program is differentiated after it is partitioned like any
other, and every operator of the backward pass is split by its own rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.dataflow.cotangents import differentiable_operands
from shardwright.frontends.common.emission import Emission
from shardwright.frontends.common.errors import UnsupportedError
from shardwright.ir.graph import Node, Value
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.operators.info import Linearization, OperatorInfo, operator_info


@dataclass
class OwnGradients:
    """The marks of a program that is being imported, and what replaces them.

    Parameters
    ----------
    emission : Emission
        The graph that grows.
    marks : dict of str to Value
        The marks that are still in use, by name; they are inputs of the graph until then.
    """

    emission: Emission
    marks: dict[str, Value] = field(default_factory=dict)

    def mark(self, kind: TensorType) -> Value:
        """Return a value that stands for the gradient of one with this type."""
        build = self.emission.build
        mark = build.input(Value(build.unique_name("cotangent", numbered=True), kind))
        self.marks[mark.name] = mark
        return mark

    def given(
        self,
        values: Sequence[Value],
        marks: Sequence[Value | None],
        targets: Sequence[Value],
        gradients: Sequence[Value | None],
    ) -> list[Value]:
        """Return values with given gradients, and take the backward pass out of the graph.

        Parameters
        ----------
        values : sequence of Value
            The results of the function.
        marks : sequence of Value or None
            The mark of each; None for one without a gradient.
        targets : sequence of Value
            The arguments of the function.
        gradients : sequence of Value or None
            The gradient of each, computed from the marks and other values; None for zero.

        Raises
        ------
        UnsupportedError
            If they read other marks, or depend on them in a way that has no operator.
        """
        own = [mark for mark in marks if mark is not None]
        if own:
            gradients = [g and self._anchored(g, own[0]) for g in gradients]
        ends = {g.name for g in gradients if g is not None}
        body = self._taken({mark.name for mark in own}, ends)
        build = self.emission.build
        transposed = _Transposed(self.emission, body)
        for target, gradient in zip(targets, gradients, strict=True):
            if gradient is not None and gradient.name in body.dependent:
                transposed.add(gradient.name, target)
        for node in reversed(body.nodes):
            transposed.visit(node)
        self.emission.producers, self.emission.seen = {}, 0
        found = []
        for value, mark in zip(values, marks, strict=True):
            source = None if mark is None else transposed.total(mark.name)
            if source is not None:
                found.append(build.emit("with_gradient_of", value, source))
            else:
                found.append(build.emit("stop_gradient", value) if value.type.is_float else value)
        return found

    def _anchored(self, gradient: Value, mark: Value) -> Value:
        """Return a gradient that depends on a mark, so that it is computed if the mark's is."""
        build = self.emission.build
        dependent = _dependents(build.nodes, {mark.name for mark in self.marks.values()})
        if gradient.name in dependent:
            return gradient
        total = build.emit("reduce_sum", mark) if mark.type.rank else mark
        if total.type.dtype != gradient.type.dtype:
            total = build.emit("cast", total, dtype=gradient.type.dtype)
        if gradient.type.rank:
            total = build.emit("broadcast_to", total, shape=gradient.type.shape)
        return build.emit("with_gradient_of", gradient, total)

    def _taken(self, own: set[str], ends: set[str]) -> "_Body":
        """Take the nodes that depend on marks out of the graph; return those that ends need."""
        build = self.emission.build
        dependent = _dependents(build.nodes, own)
        foreign = _dependents(build.nodes, set(self.marks) - own)
        values = {value.name: value for node in build.nodes for value in node.results}
        values |= {v.name: v for v in (*build.inputs, *(p.value for p in build.parameters))}
        nodes = live([n for n in build.nodes if n.name in dependent], ends).nodes
        read = {name for node in nodes for name in node.operands}
        if foreign & (read | ends) or _dependents(build.nodes, set(self.marks) - own) & read:
            raise UnsupportedError(
                "a gradient that is computed from the gradient of another tensor"
            )
        build.nodes[:] = [node for node in build.nodes if node.name not in dependent]
        zeros = {n.name for n in build.nodes if n.operator == "fill" and not n.attributes["value"]}
        for name in own:
            del self.marks[name]
        build.inputs[:] = [value for value in build.inputs if value.name not in own]
        return _Body(nodes, values, dependent, zeros)

    def finish(self) -> None:
        """Take marks that nothing needed out of the graph.

        Raises
        ------
        UnsupportedError
            If a result of the model depends on one.
        """
        self._taken(set(self.marks), set())


@dataclass(frozen=True)
class _Body:
    """A backward pass.

    Parameters
    ----------
    nodes : sequence of Node
        Its nodes that depend on marks.
    values : mapping of str to Value
        All values, by name.
    dependent, zeros : set of str
        The values that depend on its marks, and those that are zero everywhere.
    """

    nodes: Sequence[Node]
    values: Mapping[str, Value]
    dependent: set[str]
    zeros: set[str]

    def info(self, node: Node) -> OperatorInfo:
        types = [self.values[name].type for name in node.operands]
        return operator_info(node.operator, types, node.attributes)


@dataclass
class _Transposed:
    """The tensors whose gradients are the values of a backward pass."""

    emission: Emission
    body: _Body
    sums: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)

    def add(self, name: str, target: Value) -> None:
        """Let a value of the backward pass be the gradient of one more tensor."""
        so_far = self.sums.get(name)
        build = self.emission.build
        self.sums[name] = target if so_far is None else build.emit("add", so_far, target)

    def total(self, name: str) -> Value | None:
        """Return the tensor whose gradient a value is; None if it is that of none."""
        return self.sums.get(name)

    def visit(self, node: Node) -> None:
        """Transpose a node."""
        targets = [self.total(result.name) for result in node.results]
        if all(target is None for target in targets):
            return
        info = self.body.info(node)
        self.emission.build.scope = node.scope
        positions = [i for i, name in enumerate(node.operands) if name in self.body.dependent]
        if info.stops_gradient and targets[0] is not None:
            self.add(node.operands[0], targets[0])
        elif not (self._is_linear(node, info, positions) and self._linear(node, info, targets)):
            self._applied(node, info, positions, targets)

    def _is_linear(self, node: Node, info: OperatorInfo, positions: Sequence[int]) -> bool:
        """Return whether a node is linear in the operands that are gradients, zeros beside them."""
        kinds = [*info.operand_types, *info.result_types]
        if info.is_scaling and all(kind.is_float for kind in kinds):
            return True
        zeros = [i for i, name in enumerate(node.operands) if name in self.body.zeros]
        sets = set(map(frozenset, info.linear_sets))
        return frozenset(positions) in sets or frozenset((*positions, *zeros)) in sets

    def _linear(self, node: Node, info: OperatorInfo, targets: Sequence[Value | None]) -> bool:
        """Emit the gradient of a linear node on targets; return whether it reads no gradient."""
        build = self.emission.build
        before = len(build.nodes)
        operands = [
            self.body.values[name] if name in self.body.dependent else self._constant(name)
            for name in node.operands
        ]
        cotangents = [
            build.emit("fill", shape=result.type.shape, dtype=result.type.dtype, value=0.0)
            if target is None
            else target
            for target, result in zip(targets, node.results, strict=True)
        ]
        begin = len(build.nodes)
        found = info.gradient(build, Linearization(operands, node.results, cotangents))
        pairs = zip(node.operands, found, strict=True)
        wanted = [(name, g) for name, g in pairs if name in self.body.dependent]
        nodes = live(build.nodes[begin:], {g.name for _, g in wanted if g is not None}).nodes
        reads = {value.name: value for value in (*operands, *cotangents)}
        reads |= {value.name: value for n in build.nodes[begin:] for value in n.results}
        passing = {target.name for target in cotangents}
        gradients = [(name, g) for name, g in wanted if g is not None and g.name in reads]
        passed = all(self._passes(n, reads, passing) for n in nodes)
        if not passed or len(gradients) < len(wanted):
            del build.nodes[before:]
            self.constants.clear()
            return False
        build.nodes[begin:] = nodes
        for name, gradient in gradients:
            self.add(name, gradient)
        return True

    def _passes(self, node: Node, reads: Mapping[str, Value], passing: set[str]) -> bool:
        """Return whether a node reads no gradient, and passes on those of its results.

        Some operators stand in backward passes alone, and have no gradient of their own.
        """
        if any(name in self.body.dependent or name not in reads for name in node.operands):
            return False
        entering = [name in passing for name in node.operands]
        if not any(entering):
            return True
        passing.update(result.name for result in node.results)
        kinds = [reads[name].type for name in node.operands]
        passed = differentiable_operands(operator_info(node.operator, kinds, node.attributes))
        return all(has for has, enters in zip(passed, entering, strict=True) if enters)

    def _applied(
        self,
        node: Node,
        info: OperatorInfo,
        positions: Sequence[int],
        targets: Sequence[Value | None],
    ) -> None:
        """Emit an operator that applies the node's to gradients."""
        returns = tuple(i for i, target in enumerate(targets) if target is not None)
        held = [target for target in targets if target is not None]
        real = held[0].type.dtype
        for kind in (*(info.operand_types[i] for i in positions), *info.result_types):
            if kind.is_float and kind.dtype != real:
                raise UnsupportedError(f"a gradient in {kind.dtype} and in {real}, by {info.name},")
            if not kind.is_float and kind.dtype != "bool" and real not in ("float32", "float64"):
                raise UnsupportedError(f"whole numbers that depend on a gradient in {real}")
        reads = tuple(
            _read(kind) if i in positions else () for i, kind in enumerate(info.operand_types)
        )
        given = [self._constant(n) for n in node.operands if n not in self.body.dependent]
        found = self.emission.build.emit_all(
            "on_gradient",
            *held,
            *given,
            apply=info.name,
            keywords=tuple(sorted(node.attributes.items())),
            reads=reads,
            returns=returns,
        )
        for position, target in zip(positions, found, strict=True):
            self.add(node.operands[position], target)

    def _constant(self, name: str) -> Value:
        """Return a value that a backward pass reads, as a constant to gradients."""
        value = self.body.values[name]
        if not value.type.is_float:
            return value
        if name not in self.constants:
            self.constants[name] = self.emission.build.emit("stop_gradient", value)
            self.emission.slopes.add(self.constants[name].name)
        return self.constants[name]


def _read(kind: TensorType) -> tuple[str | int, ...]:
    """Return how `on_gradient` spells the type of a gradient that an operator takes."""
    return ("" if kind.is_float else kind.dtype, *kind.shape)


def _dependents(nodes: Sequence[Node], names: set[str]) -> set[str]:
    """Return the values that depend on some, those with them."""
    found = set(names)
    for node in nodes:
        if any(name in found for name in node.operands):
            found.update(result.name for result in node.results)
    return found
