"""Why every collective is in a program: its operator, its tensor and its purpose.

Its provenance tells the operator, the tensor and the part of the step; the layout of the tensor
tells whether slices are gathered or partial values reduced.
"""

from dataclasses import dataclass
from functools import cached_property

from shardwright.compiler.plans.accounting import sent_bytes
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.roofline import node_axes, node_seconds
from shardwright.ir.graph import Graph, Node
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import operator_class
from shardwright.operators.windows.halo_exchange import OverHalo


@dataclass(frozen=True)
class Collective:
    """One collective of a program, and its purpose.

    Parameters
    ----------
    node : Node
        The node of the program.
    operator : str
        The operator of the model that it belongs to.
    tensor : str
        The tensor that is sent: one of the model, or the gradient of one.
    axes : tuple of str
        Mesh axes over which it runs.
    nbytes : float
        Bytes that one device sends.
    seconds : float
        Predicted time.
    forward : bool
        Whether it belongs to the forward phase of the step.
    move : str
        The redistribution that it is a step of.
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


def collectives(compiled: Compiled, cluster: AnyCluster) -> list[Collective]:
    """Return the collectives of a compiled program, in its order, with their reasons.

    Parameters
    ----------
    compiled : Compiled
        The compiled model.
    cluster : Cluster or MixedCluster
        The cluster that times are predicted for.
    """
    program = compiled.program
    explain = _Explanation(compiled.source, program)
    reasons = []
    for node in program.nodes:
        nbytes = sent_bytes(node, program) if node_axes(node, program) else None
        if nbytes is None:
            continue
        tensor = explain.tensor(node)
        reasons.append(
            Collective(
                node,
                node.provenance.operator,
                tensor,
                node_axes(node, program),
                nbytes,
                node_seconds(node, program, cluster),
                node.provenance.phase == "forward",
                node.provenance.target or node.name,
                explain.reason(node, tensor),
            )
        )
    return reasons


def _move(node: Node) -> tuple[str, str]:
    """Return a key that the steps of one redistribution share."""
    return node.provenance.role, node.provenance.target or node.name


@dataclass(frozen=True)
class _Explanation:
    """Explains the collectives of a program; `source` is the model."""

    source: Graph
    program: Graph

    @cached_property
    def moves(self) -> dict[tuple[str, str], list[Node]]:
        """The steps of every redistribution, in order."""
        steps: dict[tuple[str, str], list[Node]] = {}
        for node in self.program.nodes:
            steps.setdefault(_move(node), []).append(node)
        return steps

    def tensor(self, node: Node) -> str:
        """Return the tensor that a collective sends."""
        provenance = node.provenance
        if issubclass(operator_class(node.operator), RingOperator):
            return self.program.copied_tensor(node.operands[-1])
        if provenance.role == "forward":
            return self.program.copied_tensor(node.operands[0])
        if provenance.role == "fusion":
            count = len(self.program.producers[node.operands[0]].operands)
            return f"{count} gradients at once, first that of {self._called(provenance.tensor)}"
        if provenance.role == "gradient_redistribution":
            return f"the gradient of {self._called(provenance.tensor)}"
        return provenance.tensor

    def reason(self, node: Node, tensor: str) -> str:
        """Return why a collective sends a tensor."""
        if issubclass(operator_class(node.operator), RingOperator):
            own = self._called(node.provenance.operator)
            return f"the ranks of {own} pass parts round while they compute (time of both)"
        if node.provenance.role == "forward":
            return "the model itself asks for it"
        if node.operator == "transfer":
            return self._crossing(node, tensor)
        forward, steps = node.provenance.phase == "forward", self.moves[_move(node)]
        if node.operator == "halo_exchange" and forward:
            return f"{self._reader(node)} reads {self._called(tensor)} beyond the edges of a slice"
        if issubclass(operator_class(node.operator), OverHalo):
            return f"windows over the edges of slices each give a part of {self._called(tensor)}"
        start = self.program.values[steps[0].operands[0]]
        if any(operator_class(step.operator).reduces for step in steps):
            kind = "sum" if start.layout is None else start.layout.reduction
            verb = "adds up" if kind == "sum" else f"takes the {kind} of"
            if forward:
                return f"{verb} {self._called(tensor)}{self._contracted(start.name)}"
            return f"{verb} each rank's part of {tensor}"
        if self._is_stored(tensor):
            return self._storage_reason(node, tensor, forward)
        if forward:
            return f"{self._reader(node)} reads {self._called(tensor)} {_way(steps)}"
        return f"{tensor} takes the layout of its tensor, {_way(steps)}"

    def _crossing(self, node: Node, tensor: str) -> str:
        """Return why a tensor goes to another pipeline stage."""
        stage = self.program.stage_of(node)
        place = "every stage" if stage is None else f"stage {stage}"
        if node.provenance.phase == "forward":
            return f"{self._reader(node)} in {place} reads {self._called(tensor)}"
        return f"{self._called(tensor) or 'the scale of the loss'} is needed in {place}"

    def _storage_reason(self, node: Node, tensor: str, forward: bool) -> str:
        reader = self._reader(node)
        scope = reader.rpartition("/")[0].replace("/", ".") + "."
        own = f"its {tensor.removeprefix(scope)}" if tensor.startswith(scope) else tensor
        verb = "takes" if forward else "takes again"
        return f"{reader} {verb} {own}, which is stored split"

    def _contracted(self, value: str) -> str:
        """Name the split factors over which an operator adds."""
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

    def _readers(self, name: str) -> list[Node]:
        """Return the nodes that read a value after all its redistributions."""
        readers = []
        for reader, _ in self.program.uses[name]:
            readers += self._readers(reader.name) if _moves(reader) else [reader]
        return readers

    def _reader(self, node: Node) -> str:
        names = [reader.provenance.operator for reader in self._readers(node.name)]
        distinct = list(dict.fromkeys(name for name in names if name))
        if not distinct:
            return "the result"
        others = f" (and {len(distinct) - 1} more)" if len(distinct) > 1 else ""
        return self._called(distinct[0]) + others

    def _is_stored(self, name: str) -> bool:
        """Return whether a tensor of the model is a parameter or an input."""
        return name in self.source.values and name not in self.source.producers

    def _called(self, name: str) -> str:
        """Return an operator of the model as the user knows it: its scope and its kind."""
        producer = self.source.producers.get(name)
        if producer is None or not producer.scope:
            return name
        return f"{producer.scope}/{producer.operator}"


def _moves(node: Node) -> bool:
    return issubclass(operator_class(node.operator), Communication)


def _way(steps: list[Node]) -> str:
    """Return the layout that collectives make, as a part of a sentence."""
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
