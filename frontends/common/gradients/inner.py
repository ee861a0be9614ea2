"""Gradients inside of a program: by values of it, as more values of it."""

from collections.abc import Collection, Mapping, Sequence

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.gradients.compositions import COMPOSITIONS
from shardwright.frontends.common.gradients.slopes import SLOPES
from shardwright.frontends.common.gradients.terms import Term
from shardwright.ir.graph import Node, Value
from shardwright.operators.builder import Builder
from shardwright.operators.info import (
    Gradients,
    Linearization,
    OperatorInfo,
    operator_class,
    operator_info,
)


def emit_gradients(
    build: Builder,
    outputs: Sequence[Value],
    cotangents: Sequence[Value],
    inputs: Sequence[Value],
    *,
    again: bool,
    slopes: Collection[str] = (),
    once: Mapping[str, str] | None = None,
) -> list[Value | None]:
    """Emit the gradient of outputs by inputs, all of them values of a growing program.

    Parameters
    ----------
    build : Builder
        Holds the program, of whole tensors.
    outputs, cotangents : sequence of Value
        What is differentiated, and the factors of its elements, in the same shapes.
    inputs : sequence of Value
        What it is differentiated by: any values.
    again : bool
        Whether the gradients may be differentiated themselves. They are then composed of operators
        that have a gradient.
    slopes : collection of str
        Constants to gradients that given gradients read, which a second gradient lacks.
    once : mapping of str to str, optional
        Values without a second gradient, and what they are of.

    Returns
    -------
    list of Value or None
        The gradient by each input; zeros where only operators without a gradient, such as `sign`,
        are between, and None where no output depends on the input.

    Raises
    ------
    UnsupportedError
        If the gradient of an operator cannot be differentiated.
    """
    backward = _Backward(build, again, _varying(build, slopes) if again else (), once or {})
    totals: dict[str, Value] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        backward.contribute(totals, output.name, cotangent)
    read = _read(build.nodes, [output.name for output in outputs])
    backward.through(tuple(build.nodes), totals, {value.name for value in inputs})
    found: list[Value | None] = []
    for value in inputs:
        total = totals.get(value.name)
        if total is None and value.name in read:
            total = _zeros(build, value)
        found.append(total)
    return found


class _Backward:
    """The backward pass over a part of a program, which extends it."""

    def __init__(
        self, build: Builder, again: bool, slopes: Collection[str], once: Mapping[str, str]
    ) -> None:
        self.build, self.again, self.slopes, self.once = build, again, slopes, once
        parameters = [parameter.value for parameter in build.parameters]
        results = [result for node in build.nodes for result in node.results]
        self.values = {value.name: value for value in (*build.inputs, *parameters, *results)}

    def contribute(self, totals: dict[str, Value], name: str, cotangent: Value) -> None:
        """Add to the total cotangent of a value."""
        total = totals.get(name)
        totals[name] = cotangent if total is None else self.build.emit("add", total, cotangent)

    def through(
        self, nodes: Sequence[Node], totals: dict[str, Value], sources: Collection[str]
    ) -> None:
        """Add the cotangents of what lies between sources and the values that have a total."""
        reached = _reached(nodes, sources)
        for node in reversed(nodes):
            if not any(result.name in totals for result in node.results):
                continue
            if reached.isdisjoint(node.operands):
                continue
            operands = [self.values[name] for name in node.operands]
            gradients = self._gradients(node, operands, totals)
            for operand, gradient in zip(operands, gradients, strict=True):
                if gradient is not None and operand.name in reached and operand.type.is_float:
                    self.contribute(totals, operand.name, gradient)

    def _gradients(
        self, node: Node, operands: Sequence[Value], totals: Mapping[str, Value]
    ) -> Gradients:
        """Emit the gradients by the operands of a node."""
        build, emitted = self.build, len(self.build.nodes)
        if any(name in self.slopes for name in node.operands):
            raise UnsupportedError(
                "the second gradient of a function or a hook with a gradient of its own"
            )
        if self.again and (what := self.once.get(node.name)):
            raise UnsupportedError(
                f"the second gradient of `{what}`, of which PyTorch leaves parts out silently,"
            )
        info = operator_info(node.operator, [v.type for v in operands], node.attributes)
        cotangents = [totals.get(r.name) or _zeros(build, r) for r in node.results]
        if self.again and node.operator in COMPOSITIONS:
            return self._composed(info, operands, cotangents)
        if self.again and node.operator in SLOPES:
            slope = SLOPES[node.operator]
            dy, x, y = (Term(build, v) for v in (cotangents[0], operands[0], node.results[0]))
            return [slope(info, dy, x, y).value]
        found = info.gradient(build, Linearization(operands, node.results, cotangents))
        if self.again:
            for one in build.nodes[emitted:]:
                if _lacks_gradient(one):
                    raise UnsupportedError(f"the second gradient of the operator `{info.name}`")
        return found

    def _composed(
        self, info: OperatorInfo, operands: Sequence[Value], cotangents: Sequence[Value]
    ) -> Gradients:
        """Emit the operator as a composition of others, and the gradients of those."""
        begin = len(self.build.nodes)
        # Operands of their own: one value may be several operands.
        own = [self.build.emit("identity", value) for value in operands]
        results = COMPOSITIONS[info.name](info, [Term(self.build, value) for value in own])
        nodes = tuple(self.build.nodes[begin + len(own) :])
        for node in self.build.nodes[begin:]:
            self.values.update({result.name: result for result in node.results})
        totals: dict[str, Value] = {}
        for result, cotangent in zip(results, cotangents, strict=True):
            self.contribute(totals, result.value.name, cotangent)
        self.through(nodes, totals, {value.name for value in own})
        return [totals.get(value.name) for value in own]


def _reached(nodes: Sequence[Node], sources: Collection[str]) -> set[str]:
    """Return the floating-point values that depend on sources, and the sources."""
    reached = set(sources)
    for node in nodes:
        if not reached.isdisjoint(node.operands):
            reached.update(result.name for result in node.results if result.type.is_float)
    return reached


def _read(nodes: Sequence[Node], ends: Sequence[str]) -> set[str]:
    """Return the values that some values depend on, other than as constants to gradients."""
    read = set(ends)
    for node in reversed(nodes):
        is_read = any(result.name in read for result in node.results)
        if is_read and not operator_class(node.operator).stops_gradient:
            read.update(node.operands)
    return read


def _varying(build: Builder, names: Collection[str]) -> set[str]:
    """Return the values, of some, that depend on inputs or on trained parameters."""
    if not names:
        return set()
    found = {value.name for value in build.inputs}
    found |= {parameter.name for parameter in build.parameters if parameter.trainable}
    for node in build.nodes:
        if not found.isdisjoint(node.operands):
            found.update(result.name for result in node.results)
    return found & set(names)


def _zeros(build: Builder, value: Value) -> Value:
    return build.emit("fill", shape=value.type.shape, dtype=value.type.dtype, value=0.0)


def _lacks_gradient(node: Node) -> bool:
    """Return whether an operator is a part of a gradient that cannot be differentiated again."""
    is_plain = operator_class(node.operator).gradient is OperatorInfo.gradient
    return is_plain and node.operator.endswith("_gradient")
