"""Why every collective is in a program: which operator, which tensor, and what it is for.

A collective stands where a tensor does not lie as its reader takes it. Which case it is shows in
the tensor (a parameter, a result, a gradient), in its layout (partial or split), and in whether
the model or its gradient reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from shardwright.compiler.accounting import owners, sent_bytes
from shardwright.compiler.driver import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import node_axes, node_seconds
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph, Node
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class


@dataclass(frozen=True)
class Collective:
    """One collective of a program and what it is for.

    Parameters
    ----------
    node : Node
        The node of the program.
    operator : str
        The operator of the model that owns it; empty for the optimizer.
    tensor : str
        What is moved: a tensor of the model, or the gradient of one.
    axes : tuple of str
        Mesh axes over which it runs.
    nbytes : float
        Bytes that one device sends.
    seconds : float
        Predicted time.
    forward : bool
        Whether it is in the forward half of the step.
    move : str
        The change of layout that it is a step of.
    reason : str
        Why it is there, in one sentence.
    """

    node: Node
    operator: str
    tensor: str
    axes: tuple[str, ...]
    nbytes: float
    seconds: float
    forward: bool
    move: str
    reason: str


def collectives(compiled: Compiled, cluster: Cluster) -> list[Collective]:
    """Return the collectives of a compiled program, in its order, with their reasons.

    Parameters
    ----------
    compiled : Compiled
        What was compiled.
    cluster : Cluster
        For what, so that times are known.
    """
    program = compiled.program
    moves = _moves_of(compiled)
    forward = _forward_names(compiled, moves)
    explain = _Explanation(compiled.source, program, owners(compiled), forward, moves)
    found = []
    for node in program.nodes:
        nbytes = sent_bytes(node, program) if node_axes(node, program) else None
        if nbytes is None:
            continue
        tensor, reason = explain.tensor_and_reason(node)
        found.append(
            Collective(
                node,
                explain.owner[node.name],
                tensor,
                node_axes(node, program),
                nbytes,
                node_seconds(node, program, cluster),
                node.name in explain.forward,
                moves.get(node.name, node.name),
                reason,
            )
        )
    return found


def _moves_of(compiled: Compiled) -> dict[str, str]:
    """Return for each collective that a redistribution was lowered to the redistribution.

    The last one has its name; those before it are new since then, and feed each other only.
    """
    if not compiled.passes.ran("lower_redistributions"):
        return {}
    lowering = compiled.passes.record("lower_redistributions")
    before, after = lowering.before, lowering.graph
    found = {}
    for node in before.nodes:
        step = after.producers.get(node.name) if node.operator == "redistribute" else None
        while step is not None and (step.name == node.name or step.name not in before.values):
            found[step.name] = node.name
            step = after.producers.get(step.operands[0])
    return found


def _forward_names(compiled: Compiled, moves: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes of the program that only the forward half has."""
    before = compiled.passes.record("differentiate").before
    names = {node.name for node in before.nodes}
    steps = {step for step, move in moves.items() if move in names}
    return frozenset(names | steps)


@dataclass(frozen=True)
class _Explanation:
    """What is known when a collective is explained."""

    source: Graph
    program: Graph
    owner: Mapping[str, str]
    forward: frozenset[str]
    moves: Mapping[str, str]

    @cached_property
    def gradients(self) -> dict[str, str]:
        """The parameter of each gradient."""
        names = ((gradient_name(p.name), p.name) for p in self.source.parameters if p.trainable)
        return {gradient: name for gradient, name in names if gradient in self.program.producers}

    def tensor_and_reason(self, node: Node) -> tuple[str, str]:
        """Return what a collective moves, and why."""
        steps = self._steps(node)
        origin, forward = self._origin(node.operands[0]), node.name in self.forward
        if forward and self.program.values[node.operands[0]].layout is None:
            return origin, "the model itself asks for it"
        tensor = origin if forward or self._is_parameter(origin) else self._gradient(node, origin)
        return tensor, self._reason(steps, node, tensor, forward)

    def _steps(self, node: Node) -> list[Node]:
        """Return all collectives of the redistribution that one belongs to, in order."""
        whole, steps = self.moves.get(node.name), [node]
        if whole is None:
            return steps
        while (before := self.program.producers.get(steps[0].operands[0])) is not None:
            if self.moves.get(before.name) != whole:
                break
            steps.insert(0, before)
        while steps[-1].name != whole:
            after = [reader for reader, _ in self.program.uses[steps[-1].name]]
            if len(after) != 1 or self.moves.get(after[0].name) != whole:
                break
            steps.append(after[0])
        return steps

    def _reason(self, steps: list[Node], node: Node, tensor: str, forward: bool) -> str:
        if node.operator == "halo_exchange" and forward:
            return f"{self._reader(node)} reads {self._called(tensor)} beyond the edges of a slice"
        if node.operator in ("halo_exchange", "halo_sum"):
            return f"windows over the edges of slices each give a part of {self._called(tensor)}"
        start = self.program.values[steps[0].operands[0]]
        if any(step.operator in ("all_reduce", "reduce_scatter") for step in steps):
            kind = "sum" if start.layout is None else start.layout.reduction
            verb = "adds up" if kind == "sum" else f"takes the {kind} of"
            if forward:
                return f"{verb} {self._called(tensor)}{self._contracted(start.name)}"
            return f"{verb} each rank's part of {tensor}"
        if self._is_parameter(tensor):
            return self._parameter_reason(node, tensor, forward)
        if forward:
            return f"{self._reader(node)} reads {self._called(tensor)} {_way(steps)}"
        return f"{tensor} has to lie as its tensor does, {_way(steps)}"

    def _parameter_reason(self, node: Node, tensor: str, forward: bool) -> str:
        reader = self._reader(node)
        scope = reader.rpartition("/")[0].replace("/", ".") + "."
        own = f"its {tensor.removeprefix(scope)}" if tensor.startswith(scope) else tensor
        verb = "takes" if forward else "takes again"
        return f"{reader} {verb} {own}, which is stored split"

    def _contracted(self, value: str) -> str:
        """Name the factor over which an operator adds, and which is split."""
        producer, layout = self.program.producers.get(value), self.program.values[value].layout
        if producer is None or producer.strategy is None or layout is None:
            return ""
        partial = set(layout.partial)
        names = [name for name, axes in producer.strategy.assignment if partial.intersection(axes)]
        if not names:
            return ""
        if len(names) == 1:
            return f", whose factor {names[0]} is split"
        return f", whose factors {' and '.join(names)} are split"

    def _gradient(self, node: Node, origin: str) -> str:
        """Return whose gradient a collective moves."""
        producer = self.program.producers.get(origin)
        if producer is not None and producer.operator == "pack":
            unpacked = self._unpacked(producer)
            first = next(name for name in self._reached(unpacked[0]) if name in self.gradients)
            return f"{len(unpacked)} gradients at once, first that of {self.gradients[first]}"
        for name in (origin, *self._reached(node.name)):
            if name in self.gradients:
                return f"the gradient of {self.gradients[name]}"
        # The tensor between the operators whose gradients meet here.
        owners = [self.owner.get(reader.name, "") for reader in self._readers(node.name)]
        before = owners[0] if owners and owners[0] else self.owner.get(origin, "")
        return f"the gradient of {self._called(before)}"

    def _unpacked(self, pack: Node) -> list[str]:
        """Return what comes out of a fused reduction, in the order of what went in."""
        reduction = self.program.uses[pack.name][0][0]
        return [result.name for result in self.program.uses[reduction.name][0][0].results]

    def _reached(self, name: str) -> list[str]:
        """Return a value of the gradient and what is only moved, scaled or added up of it."""
        found = [name]
        for reader, position in self.program.uses[name]:
            if reader.operator == "pack":
                found += self._reached(self._unpacked(reader)[position])
            passes = reader.operator in ("identity", "scale", "cast", "add")
            if _moves(reader) or (passes and not self.owner.get(reader.name)):
                found += self._reached(reader.name)
        return found

    def _readers(self, name: str) -> list[Node]:
        """Return who reads a value once it has been moved."""
        found = []
        for reader, _ in self.program.uses[name]:
            found += self._readers(reader.name) if _moves(reader) else [reader]
        return found

    def _reader(self, node: Node) -> str:
        names = [self.owner.get(reader.name, "") for reader in self._readers(node.name)]
        distinct = list(dict.fromkeys(name for name in names if name))
        if not distinct:
            return "the result"
        others = f" (and {len(distinct) - 1} more)" if len(distinct) > 1 else ""
        return self._called(distinct[0]) + others

    def _origin(self, name: str) -> str:
        """Return the value that was moved, before any communication."""
        producer = self.program.producers.get(name)
        while producer is not None and _moves(producer):
            name = producer.operands[0]
            producer = self.program.producers.get(name)
        return name

    def _is_parameter(self, name: str) -> bool:
        return name in self.source.values and name not in self.source.producers

    def _called(self, name: str) -> str:
        """Return an operator of the model as a person knows it: its scope and its kind."""
        producer = self.source.producers.get(name)
        if producer is None or not producer.scope:
            return name
        return f"{producer.scope}/{producer.operator}"


def _moves(node: Node) -> bool:
    return issubclass(operator_class(node.operator), Communication)


def _way(steps: list[Node]) -> str:
    """Return how a reader wants what collectives bring."""
    last = steps[-1]
    if last.operator == "all_gather":
        gathered = {str(s.attributes["dimension"]) for s in steps if s.operator == "all_gather"}
        return f"whole in dimension {' and '.join(sorted(gathered))}"
    if last.operator == "all_to_all":
        to, old = last.attributes["split_dimension"], last.attributes["concat_dimension"]
        return f"split in dimension {to} instead of {old}"
    if last.operator == "collective_permute":
        return "in another order of the axes"
    return "in another way"
