"""What each operator of the model costs in an emitted program: seconds and traffic.

A node counts for the operator of its provenance: so an operator costs its own node, its gradient,
and the collectives that redistribute its operands and their gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.cost_model.roofline import node_axes, node_seconds
from shardwright.ir.graph import Graph, Node, value_bytes
from shardwright.ir.layout import Strategy, local_bytes
from shardwright.ir.liveness import accumulates, times_run
from shardwright.ir.mesh import Mesh
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.inserted import Transfer
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.info import SplitCounts, info_of, operator_info


@dataclass(frozen=True)
class Volume:
    """The traffic of some collectives in a step.

    Parameters
    ----------
    count : int
        Number of collectives.
    bytes : float
        Bytes that one device sends for them, by ring algorithms.
    """

    count: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(self.count + other.count, self.bytes + other.bytes)


Traffic = Mapping[str, Volume]  # by the name of the collective


@dataclass
class OperatorCost:
    """The cost of one operator of the model in a step, forward and backward.

    Parameters
    ----------
    node : Node or None
        The operator; None for the optimizer and the seed of the gradient.
    split_counts : tuple of tuple of int
        Slices of each dimension of each operand.
    strategy : Strategy or None
        The mesh axes of its factors; None where no strategy was decided.
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
    that for an all-reduce, and n-1 slices for an all-gather. An operator that passes parts round
    sends them in its turns.
    """
    operands = program.operand_values(node)
    if not operands:
        return None
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    mesh, operand = program.mesh or Mesh(()), operands[0]
    if isinstance(info, RingOperator):
        layouts = [value.known_layout for value in operands]
        return sum(turn.sent_bytes for turn in info.rounds(layouts, mesh))
    if isinstance(info, Transfer):
        return value_bytes(operand, mesh) if node_axes(node, program) else None
    if not isinstance(info, Communication) or not info.is_collective:
        return None
    if mesh.in_time and accumulates(node, mesh.in_time):
        return None
    layout = operand.known_layout
    size = local_bytes(operand.type, layout, mesh)
    members = max(map(len, info.groups), default=0) or mesh.extent(info.axes or mesh.names)
    passes = {
        "all_reduce": 2 * (members - 1) / members,
        "reduce_scatter": (members - 1) / members,
        "all_to_all": (members - 1) / members,
        "all_to_all_v": (members - 1) / members,
        "collective_scatter": (members - 1) / members,
        "all_gather": members - 1,
    }
    return size * passes.get(node.operator, info.sent_share(mesh))


def traffic(program: Graph) -> dict[str, Volume]:
    """Return the traffic of a step, by the name of the collective, sorted.

    With pipeline stages, that of the device group that sends most.
    """
    mesh = program.mesh or Mesh(())
    groups: list[dict[str, Volume]] = []
    for group in range(mesh.stages):
        volumes: dict[str, Volume] = {}
        for node, times in zip(program.nodes, times_run(program), strict=True):
            if mesh.is_in(_sender(node, program), group):
                _add_volume(volumes, node, program, times)
        groups.append(volumes)
    most = max(groups, key=lambda found: sum(volume.bytes for volume in found.values()))
    return dict(sorted(most.items()))


def _sender(node: Node, program: Graph) -> int | None:
    """Return the stage that runs a node, or sends what it transfers."""
    if node.operator != "transfer":
        return program.stage_of(node)
    layout = program.values[node.operands[0]].layout
    return None if layout is None else layout.stage


def _add_volume(volumes: dict[str, Volume], node: Node, program: Graph, times: int) -> None:
    # Few others have axes or cross stages: the operands of those need no look-up.
    moves = node.attributes.get("axes") is not None or node.operator == "transfer"
    size = sent_bytes(node, program) if moves else None
    if size is not None:
        volumes[node.operator] = volumes.get(node.operator, Volume()) + Volume(times, times * size)


def split_counts(compiled: Compiled) -> dict[str, SplitCounts]:
    """Return the strategies in MindSpore's form; empty where none were decided."""
    if compiled.decisions is None:
        return {}
    table = {}
    for node in compiled.source.nodes:
        info = info_of(compiled.source, node)
        strategy = compiled.decisions.strategies[node.name].without(compiled.mesh.in_time)
        table[node.name] = info.split_counts(strategy, compiled.mesh.of_ranks)
    return table


def operator_costs(compiled: Compiled, cluster: AnyCluster) -> list[OperatorCost]:
    """Return the cost of each operator, in the order of the model, the optimizer last."""
    counts = split_counts(compiled)
    chosen = compiled.decisions.strategies if compiled.decisions is not None else {}
    costs = {
        node.name: OperatorCost(node, counts.get(node.name, ()), chosen.get(node.name))
        for node in compiled.source.nodes
    }
    optimizer = OperatorCost(None)
    program = compiled.program
    for node, times in zip(program.nodes, times_run(program), strict=True):
        cost = costs.get(node.provenance.operator, optimizer)
        cost.seconds += times * node_seconds(node, program, cluster)
        _add_volume(cost.communication, node, program, times)
    return [*costs.values(), optimizer]
