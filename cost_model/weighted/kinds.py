"""The kinds of the nodes of a program: when each runs, and whether it is in line."""

from shardwright.cost_model.weighted.intervals import Kind, When
from shardwright.dataflow.deferrable import is_deferrable, parameter_tensors
from shardwright.dataflow.micro_batches import MicroBatches
from shardwright.ir.graph import Graph, Node
from shardwright.ir.liveness import Loop, loop_of
from shardwright.operators.communication.host import HostCopy
from shardwright.operators.info import operator_class


def kinds_of(program: Graph) -> list[Kind]:
    """Return the kind of every node of a program, lowered to collectives or not."""
    return program.analysed("kinds", lambda: _kinds_of(program))


def _kinds_of(program: Graph) -> list[Kind]:
    made = parameter_tensors(program.nodes, (p.name for p in program.parameters))
    loop = loop_of(program)
    if loop is None:
        return [Kind(_is_deferrable(n, made), when_of(n, made)) for n in program.nodes]
    outside = _Outside(program, made, loop)
    return [
        Kind(
            _is_deferrable(node, made),
            when_of(node, made) if loop.start <= i < loop.stop else outside.when(i, node),
        )
        for i, node in enumerate(program.nodes)
    ]


def _is_deferrable(node: Node, made_of_parameters: set[str]) -> bool:
    """Return whether a node may leave its place in line: sums of gradients are reduced before."""
    origin = node.provenance
    if issubclass(operator_class(node.operator), HostCopy):
        return True
    adds = origin.role == "accumulation" and origin.tensor in made_of_parameters
    return adds or is_deferrable(node, made_of_parameters)


def when_of(node: Node, made_of_parameters: set[str]) -> When:
    """Return the pass over a micro-batch in which a node runs.

    What is computed again from parameters alone may feed a gather, and so be early.
    """
    if issubclass(operator_class(node.operator), HostCopy):
        return "offload" if node.provenance.phase == "forward" else "either"
    if node.provenance.phase == "forward":
        return "forward"
    if node.provenance.role != "recompute":
        return "backward"
    if is_deferrable(node, made_of_parameters):
        return "either"
    local = not operator_class(node.operator).is_collective
    early = local and node.operands and made_of_parameters.issuperset(node.operands)
    return "either" if early else "backward"


class _Outside:
    """When the nodes outside of a loop run, as far as it follows from what they belong to."""

    def __init__(self, program: Graph, made: set[str], loop: Loop) -> None:
        self.made, self.loop = made, loop
        # Operators of the model that depend on parameters alone, or on nothing.
        self.early = {
            node.name
            for node in program.nodes[: loop.start]
            if node.provenance.role == "forward" and made.issuperset(node.operands)
        }

    def when(self, position: int, node: Node) -> When:
        """Return when a node runs."""
        origin = node.provenance
        if origin.role == "update":
            return "after"
        own = origin.role in ("forward", "backward")
        if not (origin.operator in self.early if own else origin.tensor in self.made):
            return "once"
        return "before" if origin.phase == "forward" else "after"


def can_divide(graph: Graph, micro: MicroBatches | None = None) -> bool:
    """Return whether all gathers of the forward pass end before the backward pass begins.

    An operator on activations must wait for each: not so for a parameter that the program returns,
    or writes to another one. In micro-batches, a parameter must be read in the loop, and only there
    with what depends on samples; operators on parameters alone run outside.
    """
    made = parameter_tensors(graph.nodes, (p.name for p in graph.parameters))
    split = {name for name in made if graph.values[name].type.rank}  # others are never gathered
    return split.isdisjoint(graph.kept()) and all(
        _is_read(node, graph, split) and _is_in_place(node, made, micro) for node in graph.nodes
    )


def _is_read(node: Node, graph: Graph, split: set[str]) -> bool:
    """Return whether an operator reads what a node makes, if that is made of parameters alone."""
    names = [result.name for result in node.results]
    made = bool(node.operands) and split.issuperset(names)
    return not made or any(graph.uses[name] for name in names)


def _is_in_place(node: Node, made: set[str], micro: MicroBatches | None) -> bool:
    """Return whether a node reads parameters before the loop, or with samples in the loop."""
    if micro is None or made.isdisjoint(node.operands):
        return True
    if micro.is_repeated(node.name):
        return not made.issuperset(node.operands)
    return micro.late.isdisjoint(result.name for result in node.results)
