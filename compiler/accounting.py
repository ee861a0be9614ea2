"""Where the time and the traffic of an emitted program come from.

A node counts for the operator of its provenance: the operator itself, its gradient, and the
collectives that bring its operands and return their gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.compiler.driver import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.roofline import local_bytes, node_seconds
from shardwright.ir.graph import Graph, Node
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import SplitCounts, operator_info


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
        The operator; None for the optimizer and the seed of the gradient.
    split_counts : tuple of tuple of int
        Slices of each dimension of each operand.
    strategy : Strategy or None
        The mesh axes of its factors; None where nothing was decided.
    seconds : float
        Predicted time of all its nodes.
    communication : dict of str to Volume
        Its collectives.
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
    for node in compiled.program.nodes:
        cost = costs.get(node.provenance.operator, optimizer)
        cost.seconds += node_seconds(node, compiled.program, cluster)
        _add_volume(cost.communication, node, compiled.program)
    return [*costs.values(), optimizer]
