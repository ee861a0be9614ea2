"""The roofline time of single operators: the maximum of compute time and memory time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.cluster import Cluster
from shardwright.cost_model.efficiency.attained import ALIGNED
from shardwright.cost_model.efficiency.rings import ring_seconds, ring_work
from shardwright.cost_model.efficiency.work import (
    Work,
    alignment_of,
    kind_of,
    peak_of,
    products_of,
    scores_of,
    work_seconds,
)
from shardwright.cost_model.pipelines.mixed import AnyCluster, groups_on
from shardwright.cost_model.redistribution.exchange import Choices, choices_sent
from shardwright.cost_model.redistribution.moves import is_packed
from shardwright.cost_model.redistribution.prices import ExchangePrices, NodePrices
from shardwright.cost_model.redistribution.seconds import move_seconds, packing_seconds
from shardwright.dataflow.kinds import kinds_of
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout, local_bytes
from shardwright.ir.liveness import accumulates_over, times_run
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType, item_bytes
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.communication.inserted import Transfer
from shardwright.operators.communication.rings import RingOperator
from shardwright.operators.indexing.slicing import Split
from shardwright.operators.info import OperatorInfo, info_of, operator_class, operator_info
from shardwright.operators.linear.quantized import QuantizedProduct
from shardwright.operators.models.recipes import CASTS
from shardwright.operators.products import type_of_products
from shardwright.operators.reduction.reduce import ReduceSum
from shardwright.operators.windows.convolution import ConvolutionFamily
from shardwright.operators.windows.halo_exchange import OverHalo
from shardwright.operators.workspace import WithWorkspace

Floats = NDArray[np.float64]


def _largest_share(tensors: Sequence[tuple[TensorType, Layout]], mesh: Mesh) -> float:
    """Return the largest fraction of an operator's work on one rank."""
    shares: dict[tuple[str, ...], float] = {}
    for tensor, layout in tensors:
        for size, axes in zip(tensor.shape, layout.splits, strict=True):
            if axes:  # a space and its windows may have different shares
                share = -(-size // mesh.extent(axes)) / size
                shares[axes] = max(share, shares.get(axes, 0.0))
    counted: set[str] = set()
    total = _filled_share(tensors, mesh)
    # Heads of queries may be split over more axes than the heads of keys that they share.
    for axes in sorted(shares, key=len, reverse=True):
        if not counted.issuperset(axes):
            total *= shares[axes]
            counted.update(axes)
    return total


def _filled_share(tensors: Sequence[tuple[TensorType, Layout]], mesh: Mesh) -> float:
    """Return the share of a rank's part of the work that is on filled entries."""
    marked = ((tensor, layout) for tensor, layout in tensors if tensor.ragged is not None)
    shapes = ((tensor, layout.slice_shape(tensor.shape, mesh)) for tensor, layout in marked)
    return next((tensor.filled_elements(shape) / prod(shape) for tensor, shape in shapes), 1.0)


def operator_seconds(
    info: OperatorInfo,
    operands: Sequence[Layout],
    results: Sequence[Layout],
    mesh: Mesh,
    cluster: Cluster,
) -> float:
    """Return the seconds of a computing operator on one rank.

    The roofline: ``max(flops / peak, bytes / memory bandwidth) + launch``, and what a head in
    chunks moves between its products; with figures of what the device attains, or of a software, by
    class and shape (`efficiency.work`). Views cost nothing, and neither do sums over dimensions of
    which a rank has one element.

    Parameters
    ----------
    info : OperatorInfo
        The operator.
    operands, results : sequence of Layout
        Layouts of its operands and results.
    mesh, cluster
        The mesh and the cluster.
    """
    if takes_nothing(info, operands, results, mesh):
        return 0.0
    if isinstance(info, RingOperator):
        return ring_seconds(ring_work(info, operands, mesh), mesh, cluster)
    device = cluster.device
    if device.efficiency is not None or cluster.software is not None:
        return work_seconds(operator_work(info, operands, results, mesh), cluster)
    _, flops, moved = _flops_and_bytes(info, operands, results, mesh)
    compute = flops / peak_of(type_of_products(info), _recipe(info), device)
    between, launches = _between(info, operands, mesh)
    seconds = max(compute, moved / device.memory_bandwidth) + launches * device.launch_seconds
    return seconds + between / device.memory_bandwidth


def _between(info: OperatorInfo, operands: Sequence[Layout], mesh: Mesh) -> tuple[float, int]:
    """Return the bytes of tensors that an operator makes and reads itself, and its launches."""
    if not isinstance(info, WithWorkspace):
        return 0.0, 1
    types = zip(info.operand_types, operands, strict=True)
    shapes = [layout.slice_shape(kind.shape, mesh) for kind, layout in types]
    return info.bytes_between(shapes), info.launches(shapes)


def takes_nothing(
    info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout], mesh: Mesh
) -> bool:
    """Return whether an operator takes no time on a rank: a view, or a sum of single elements.

    Parts with whole rows are views. In a micro-batch of one sample the gradient of what is
    broadcast over samples is no sum.

    Parameters
    ----------
    info, operands, results, mesh
        As of `operator_seconds`.
    """
    if not isinstance(info, ReduceSum):
        return info.is_view or (isinstance(info, Split) and info.has_rows)
    taken = prod(operands[0].slice_shape(info.operand_types[0].shape, mesh))
    return taken == prod(results[0].slice_shape(info.result_types[0].shape, mesh))


def _flops_and_bytes(
    info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout], mesh: Mesh
) -> tuple[list[tuple[TensorType, Layout]], float, float]:
    """Return the tensors of an operator, the flops of a rank, and the bytes that it moves."""
    tensors = [*zip(info.operand_types, operands, strict=True)]
    tensors += [*zip(info.result_types, results, strict=True)]
    moved = sum(local_bytes(tensor, layout, mesh) for tensor, layout in tensors)
    if isinstance(info, QuantizedProduct):
        shapes = [layout.slice_shape(tensor.shape, mesh) for tensor, layout in tensors]
        moved -= info.narrower_by(shapes)
    flops = info.flops * _largest_share(tensors, mesh) * info.imbalance(operands, mesh)
    return tensors, flops, moved


def _recipe(info: OperatorInfo) -> str:
    """Return the recipe of low precision by which an operator computes; empty without one."""
    return info.recipe.name if isinstance(info, QuantizedProduct) else ""


def operator_work(
    info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout], mesh: Mesh
) -> Work:
    """Return the work of a computing operator on one rank, without the rates of a device."""
    tensors, flops, moved = _flops_and_bytes(info, operands, results, mesh)
    kind, dtype = kind_of(info), type_of_products(info)
    if kind not in ("product", "attention", "convolution"):
        return Work(kind, dtype, flops, moved, operator=info.name)
    shapes = [layout.slice_shape(tensor.shape, mesh) for tensor, layout in tensors]
    if isinstance(info, ConvolutionFamily):
        copied = info.copied_elements(shapes) * item_bytes(info.operand_types[0].dtype)
        return Work(kind, dtype, flops, moved, operator=info.name, copied=copied)
    products = products_of(info, flops, shapes)
    scores, item = scores_of(info, products), item_bytes(info.operand_types[0].dtype)
    is_short = kind == "product" and item == 2
    alignment = alignment_of(shapes) if is_short else ALIGNED
    between, launches = _between(info, operands, mesh)
    recipe = _recipe(info)
    item = 0 if recipe else item  # then `moved` has what the product reads
    found = Work(kind, dtype, flops, moved, products, scores, item, info.name)
    found = replace(found, between=between, launches=launches, alignment=alignment)
    if isinstance(info, QuantizedProduct):
        casts = tuple((way, *info.casts(way, shapes)) for way in CASTS)
        found = replace(found, recipe=recipe, casts=casts)
    return found


def computing_nodes(program: Graph) -> Iterator[tuple[Node, Work]]:
    """Yield the nodes of a partitioned program that compute, each with its work on one rank."""
    mesh, values = program.mesh or Mesh(()), program.values
    for node in program.nodes:
        info = info_of(program, node)
        if not (info.is_view or isinstance(info, Communication | RingOperator)):
            operands = [values[name].known_layout for name in node.operands]
            work = operator_work(info, operands, [v.known_layout for v in node.results], mesh)
            yield node, work


def node_axes(node: Node, graph: Graph) -> tuple[str, ...]:
    """Return the mesh axes that a node communicates over; empty if it does not communicate.

    In a hand-written program a communication operator without axes spans all ranks. An axis that is
    run in time has no links.
    """
    if node.operator == "transfer" and graph.mesh is not None:
        return graph.mesh.of_stages if crosses_groups(node, graph) else ()
    if not operator_class(node.operator).is_collective:
        return ()
    axes = node.attributes.get("axes")
    if isinstance(axes, tuple) and axes:
        in_time = graph.mesh.in_time if graph.mesh is not None else ()
        return tuple(str(axis) for axis in axes if axis not in in_time)
    bare = node.results[0].layout is None
    return graph.mesh.names if graph.mesh is not None and bare else ()


def crosses_groups(node: Node, graph: Graph) -> bool:
    """Return whether a transfer moves a tensor from one device group to another."""
    source = graph.values[node.operands[0]].layout
    target = node.results[0].layout
    return source is not None and target is not None and _moves(source, target, graph.mesh)


def _moves(source: Layout, target: Layout, mesh: Mesh | None) -> bool:
    if source.stage is None or mesh is None or mesh.stages == 1:
        return False
    return target.stage is None or not mesh.is_in(target.stage, mesh.stage_map.group(source.stage))


def node_seconds(node: Node, graph: Graph, cluster: AnyCluster) -> float:
    """Return the seconds of one node of a partitioned program, on the devices of its stage.

    A graph without a mesh runs on one device.
    """
    mesh = graph.mesh or Mesh(())
    prices = second_prices(mesh, groups_on(cluster, mesh).of_node(node, graph))
    return node_cost(node, graph.operand_values(node), mesh, prices)


@dataclass(frozen=True)
class SecondPrices:
    """The prices of a cluster in seconds, each computed once."""

    mesh: Mesh
    cluster: Cluster
    known: dict[object, float] = field(default_factory=dict, compare=False)
    moves: dict[object, Floats] = field(default_factory=dict, compare=False)

    def operator_cost(
        self, info: OperatorInfo, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> float:
        """Return the seconds of a computing operator; see `operator_seconds`."""
        key = (info, tuple(operands), tuple(results))
        known = self.known.get(key)
        if known is None:
            known = operator_seconds(info, operands, results, self.mesh, self.cluster)
            self.known[key] = known
        return known

    def move_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the seconds of a communication operator; see `move_seconds`."""
        key = (operator, axes, local_bytes.tobytes())
        if key not in self.moves:
            self.moves[key] = move_seconds(operator, axes, local_bytes, self.mesh, self.cluster)
        return self.moves[key].copy()

    def exchange_costs(
        self, axes: tuple[str, ...], local_bytes: Floats, choices: Choices
    ) -> Floats:
        """Return the seconds of an all-to-all of the rows of experts."""
        return move_seconds("all_to_all", axes, local_bytes, self.mesh, self.cluster, choices)

    def packing_costs(self, operator: str, axes: tuple[str, ...], local_bytes: Floats) -> Floats:
        """Return the further seconds of one whose parts are copied."""
        return packing_seconds(operator, axes, local_bytes, self.mesh, self.cluster)


@lru_cache(maxsize=32)
def second_prices(mesh: Mesh, cluster: Cluster) -> SecondPrices:
    """Return the prices of a cluster in seconds, the same object in every call."""
    return SecondPrices(mesh, cluster)


def node_costs(graph: Graph, mesh: Mesh, prices: NodePrices | Sequence[NodePrices]) -> list[float]:
    """Return the cost of every node of a program; those of a kind are priced once.

    Parameters
    ----------
    graph : Graph
        The program.
    mesh : Mesh
        Its mesh.
    prices : NodePrices or sequence of NodePrices
        The prices, or those of each node.
    """
    kinds, values = kinds_of(graph), graph.values

    def cost(position: int, of: NodePrices) -> float:
        node = graph.nodes[position]
        return node_cost(node, [values[name] for name in node.operands], mesh, of)

    if not isinstance(prices, Sequence):
        costs = [cost(first, prices) for first in kinds.firsts]
        return [costs[kind] for kind in kinds.of_nodes]
    known: dict[tuple[int, int], float] = {}
    for kind, of in zip(kinds.of_nodes, prices, strict=True):
        if (kind, id(of)) not in known:
            known[kind, id(of)] = cost(kinds.firsts[kind], of)
    return [known[kind, id(of)] for kind, of in zip(kinds.of_nodes, prices, strict=True)]


def seconds_of_nodes(graph: Graph, cluster: Cluster) -> list[float]:
    """Return the seconds of every node of a program, run once; without a mesh on one device."""
    mesh = graph.mesh or Mesh(())
    return graph.analysed(
        ("seconds", cluster), lambda: node_costs(graph, mesh, second_prices(mesh, cluster))
    )


def node_cost(node: Node, operands: Sequence[Value], mesh: Mesh, prices: NodePrices) -> float:
    """Return the cost of one node on a mesh, given its operands.

    A halo exchange copies the slice and the run, and sends the margins. Over an axis that is run in
    time, an all-reduce adds to an accumulator and an all-gather writes the part of a pass.
    """
    info = operator_info(node.operator, [value.type for value in operands], node.attributes)
    taken = [value.known_layout for value in operands]
    left = [value.known_layout for value in node.results]
    bare = node.results[0].layout is None
    return placed_cost(info, taken, left, mesh, prices, bare=bare)


def placed_cost(
    info: OperatorInfo,
    taken: Sequence[Layout],
    left: Sequence[Layout],
    mesh: Mesh,
    prices: NodePrices,
    *,
    bare: bool = False,
) -> float:
    """Return the cost of an operator on operands and with results in some layouts.

    `bare` says that the values have none; see `node_cost`.
    """
    if not isinstance(info, Communication):
        return prices.operator_cost(info, taken, left)
    if info.is_free:
        return 0.0
    if mesh.in_time and accumulates_over(info.name, info.stated, mesh.in_time):
        return _accumulation_cost(info, taken[0], mesh, prices)
    size = local_bytes(info.operand_types[0], taken[0], mesh)
    if isinstance(info, Transfer):
        return _transfer_cost(taken[0], left[0], size, mesh, prices)
    axes = info.axes or (mesh.names if bare and info.is_collective else ())
    if info.groups and info.is_collective:
        return _group_cost(info, axes, size, mesh, prices)
    choices = choices_sent(info, taken[0], left[0], mesh)
    if choices is not None and isinstance(prices, ExchangePrices):
        return float(prices.exchange_costs(axes, np.array([size]), choices)[0])
    if not isinstance(info, OverHalo):
        return _move_cost(info, axes, size, prices)
    copied = (size + local_bytes(info.result_types[0], left[0], mesh)) / 2  # read and written
    cost = float(prices.move_costs("local_copy", (), np.array([copied]))[0])
    sent = np.array([size * info.sent_share(mesh)])
    if sent[0]:
        cost += float(prices.move_costs(info.name, axes, sent)[0])
    return cost


def _move_cost(
    info: Communication, axes: tuple[str, ...], size: float, prices: NodePrices
) -> float:
    """Return the cost of a communication operator whose operand has so many bytes on a rank."""
    sizes = np.array([size])
    cost = float(prices.move_costs(info.name, axes, sizes)[0])
    if is_packed(info.name, info.attributes):
        cost += float(prices.packing_costs(info.name, axes, sizes)[0])
    return cost


def _group_cost(
    info: Communication, axes: tuple[str, ...], size: float, mesh: Mesh, prices: NodePrices
) -> float:
    """Return the cost over groups of ranks of a hand-written program: that of the greatest.

    Groups may have any ranks, so they use the slowest links of the axes.
    """
    assert isinstance(prices, SecondPrices)
    level = max((mesh.axis(axis).level for axis in axes), default=0)
    group = Mesh((MeshAxis("group", max(map(len, info.groups)), level),))
    moved = second_prices(group, prices.cluster)
    return _move_cost(info, group.names, size, moved)


def _transfer_cost(
    source: Layout, target: Layout, size: float, mesh: Mesh, prices: NodePrices
) -> float:
    """Return the cost of a transfer between stages: a message, or a broadcast to every stage.

    What is on every stage, or goes to a stage of the same device group, does not move.
    """
    if not _moves(source, target, mesh):
        return 0.0
    operator = "broadcast" if target.stage is None else "transfer"
    return float(prices.move_costs(operator, mesh.of_stages, np.array([size]))[0])


def _accumulation_cost(info: OperatorInfo, taken: Layout, mesh: Mesh, prices: NodePrices) -> float:
    """Return the cost of adding the part of a pass, or of writing it to its place."""
    tensor = info.operand_types[0]
    if info.reduces:
        addition = operator_info("add", (tensor, tensor), {})
        return prices.operator_cost(addition, (taken, taken), (taken,))
    size = np.array([local_bytes(tensor, taken, mesh)])
    return float(prices.move_costs("local_copy", (), size)[0])


def program_seconds(graph: Graph, cluster: Cluster) -> float:
    """Return the sum of the seconds of all nodes: the time of a serial step.

    A node in a loop over micro-batches counts once for each pass.
    """
    pairs = zip(seconds_of_nodes(graph, cluster), times_run(graph), strict=True)
    return sum(times * seconds for seconds, times in pairs)
