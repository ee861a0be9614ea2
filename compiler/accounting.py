"""Where the time and the traffic of an emitted program come from.

Every node of the program is owned by the operator of the model that caused it: its forward node,
the nodes of its gradient, and the collectives that bring its operands and return their gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.compiler.driver import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import local_bytes, node_seconds
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.passes.differentiate import Differentiate


@dataclass(frozen=True)
class Volume:
    """How often something is sent, and how much of it.

    Parameters
    ----------
    count : int
        Number of collectives in a step.
    bytes : float
        Bytes that one device sends for them, by a ring.
    """

    count: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(self.count + other.count, self.bytes + other.bytes)


Traffic = Mapping[str, Volume]  # by the name of the collective


@dataclass
class OperatorCost:
    """What one operator of the model costs in a step, forward and backward.

    Parameters
    ----------
    node : Node or None
        The operator; None for the optimizer and for sums of gradients.
    split_counts : tuple of tuple of int
        Slices of each dimension of each operand.
    strategy : Strategy or None
        The mesh axes of its factors; None where nothing was decided.
    seconds : float
        Predicted time of all nodes that it owns.
    communication : dict of str to Volume
        Collectives that it owns.
    """

    node: Node | None
    split_counts: SplitCounts = ()
    strategy: Strategy | None = None
    seconds: float = 0.0
    communication: dict[str, Volume] = field(default_factory=dict)


def sent_bytes(node: Node, program: Graph) -> float | None:
    """Return the bytes that one device sends for a node; None where the node sends nothing.

    A ring of n devices passes ``(n-1)/n`` of a buffer for a reduce-scatter or an all-to-all, twice
    that for an all-reduce, and n-1 slices for an all-gather.
    """
    operand = program.operand_values(node)[0] if node.operands else None
    if operand is None:
        return None
    info = operator_info(node.operator, [operand.type], node.attributes) if operand else None
    if not isinstance(info, Communication) or not info.is_collective:
        return None
    mesh = program.mesh or Mesh(())
    layout = operand.layout or Layout.replicated(operand.type.rank)
    size = local_bytes(operand.type, layout, mesh)
    members = mesh.extent(info.axes or mesh.names)
    passes = {
        "all_reduce": 2 * (members - 1) / members,
        "reduce_scatter": (members - 1) / members,
        "all_to_all": (members - 1) / members,
        "all_gather": members - 1,
    }
    return size * passes.get(node.operator, info.sent_share(mesh))


def traffic(program: Graph) -> dict[str, Volume]:
    """Return what a program sends in a step, by the name of the collective, sorted."""
    found: dict[str, Volume] = {}
    for node in program.nodes:
        _add_volume(found, node, program)
    return dict(sorted(found.items()))


def _add_volume(found: dict[str, Volume], node: Node, program: Graph) -> None:
    # Most nodes are no collectives; their operands need not be looked at.
    size = sent_bytes(node, program) if node.attributes.get("axes") is not None else None
    if size is not None:
        found[node.operator] = found.get(node.operator, Volume()) + Volume(1, size)


def split_counts(compiled: Compiled) -> dict[str, SplitCounts]:
    """Return the strategy of every operator in MindSpore's form, where strategies were decided."""
    if compiled.decisions is None:
        return {}
    table = {}
    for node in compiled.source.nodes:
        types = [value.type for value in compiled.source.operand_values(node)]
        info = operator_info(node.operator, types, node.attributes)
        strategy = compiled.decisions.strategies[node.name]
        table[node.name] = info.split_counts(strategy, compiled.mesh)
    return table


def operator_costs(compiled: Compiled, cluster: Cluster) -> list[OperatorCost]:
    """Return what each operator costs, in the order of the model, the optimizer last."""
    counts = split_counts(compiled)
    chosen = compiled.decisions.strategies if compiled.decisions is not None else {}
    costs = {
        node.name: OperatorCost(node, counts.get(node.name, ()), chosen.get(node.name))
        for node in compiled.source.nodes
    }
    optimizer = OperatorCost(None)
    owner = owners(compiled)
    for node in compiled.program.nodes:
        cost = costs.get(owner[node.name], optimizer)
        cost.seconds += node_seconds(node, compiled.program, cluster)
        _add_volume(cost.communication, node, compiled.program)
    return [*costs.values(), optimizer]


def owners(compiled: Compiled) -> dict[str, str]:
    """Return for each node of the program the operator that owns it; '' for the optimizer.

    The gradient of an operator has the scope of the operator, so differentiating the partitioned
    program with each scope replaced by its operator's name tells them apart.
    """
    forward = compiled.passes.record("differentiate").before
    operators = {node.name for node in compiled.source.nodes}
    known = _forward_owners(forward, operators)
    named = tuple(replace(node, scope=known[node.name]) for node in forward.nodes)
    whole = Differentiate().run(forward.with_nodes(named))
    scopes = {node.name: node.scope for node in whole.nodes}
    found: dict[str, str] = {}
    readers = compiled.program.uses
    for node in reversed(compiled.program.nodes):
        if node.name in scopes:
            found[node.name] = scopes[node.name]
        else:  # a step on the way of a redistribution, or the optimizer
            following = [found[reader.name] for reader, _ in readers[node.name]]
            found[node.name] = following[0] if following else ""
    return found


def _forward_owners(forward: Graph, operators: set[str]) -> dict[str, str]:
    """Return the owner of each forward node; what moves a tensor belongs to its first reader."""
    found: dict[str, str] = {}
    for node in reversed(forward.nodes):
        following = [found[reader.name] for reader, _ in forward.uses[node.name]]
        found[node.name] = node.name if node.name in operators else (following or [""])[0]
    return found
