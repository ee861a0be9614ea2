"""MindSpore's cost model: the objective that its strategy search minimises.

Formulas and constants are those of MindSpore's ``operator_costmodel`` and ``tensor_redistribution``
(2020 and 2025). Costs are bytes, weighed: ``alpha`` times what a device computes on plus ``beta``
times what it communicates. They rank strategies as MindSpore does; they are not seconds.

An operator's cost follows from its rule, with the exceptions named below:

================ ============================================================================
computation      the slices of all operands, and of results that are reduced over devices
forward          the slices of results that are reduced over devices
backward         the slices of operands that are parameters and not split over all devices
================ ============================================================================

What gradients compute on is known for some operators, and left out of the objective.

Knows no graph: the search says which operands are parameters, and adds costs up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf, prod
from typing import Literal, NamedTuple

from shardwright.cost_model.mindspore.conventions import conventions_of
from shardwright.cost_model.mindspore.redistribution import redistribution_volume
from shardwright.ir.errors import ClusterError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh, MeshAxis
from shardwright.ir.types import TensorType, item_bytes
from shardwright.operators.info import OperatorInfo

Era = Literal["r1.0", "2025"]


def mesh_of_binary_axes(devices: int) -> Mesh:
    """Return the mesh whose axes all have size 2: every device matrix of powers of two fits it.

    Raises
    ------
    ClusterError
        If `devices` is not a power of two.

    Examples
    --------
    >>> str(mesh_of_binary_axes(8))
    'd0=2 x d1=2 x d2=2'
    """
    if devices < 1 or devices & (devices - 1):
        raise ClusterError(
            f"there are {devices} devices, the `mindspore` profile takes a power of two",
            hint="use the `time` profile for other numbers of devices",
        )
    return Mesh(tuple(MeshAxis(f"d{i}", 2) for i in range(devices.bit_length() - 1)))


class OperatorVolume(NamedTuple):
    """Computation and communication of an operator under one strategy, in bytes on a device."""

    computation: float
    gradient_computation: float
    forward: float
    backward: float


@dataclass(frozen=True)
class MindSporeCosts:
    """The weights of the objective, and the conventions of an era.

    Parameters
    ----------
    era : str
        ``r1.0`` (2020): an operator is split over all devices, or whole on each. ``2025``: it may
        be split over fewer, the most significant axes of the mesh first.
    alpha, beta : float
        Weights of computation and communication.
    gamma : float
        Share of an operator's backward communication that is counted; the rest overlaps.
    threshold : float
        Communication of at most so many bytes costs `constant`.
    constant : float
        Cost of little communication.
    bias : float
        Added to communication above the threshold.
    elementwise_follow : bool
        Whether all consumers of a function of one tensor use the layout of its result.
    readers_agree : bool
        Whether all readers of a parameter use one layout, where they can.
    """

    era: Era = "2025"
    alpha: float = 1.0
    beta: float = 400.0
    gamma: float = 0.001
    threshold: float = 2048.0
    constant: float = 3072.0
    bias: float = 1024.0
    elementwise_follow: bool = False
    readers_agree: bool = True

    def strategies(self, info: OperatorInfo, mesh: Mesh) -> tuple[Strategy, ...]:
        """Return the strategies that MindSpore enumerates.

        An operator has a device matrix of its own, a number of slices for each factor, which maps
        to the ranks in the order of the factors: each factor has neighbouring mesh axes, after
        those of the factors before it. An axis that repeats the work comes first in r1.0, last in
        2025. Larger splits of leading factors come first.

        Where no strategy uses all devices, r1.0 has those that use the most, and the strategy that
        replicates the work. `conventions` has the exceptions.
        """
        by_samples = Strategy.of({f: mesh.names if f == "n" else () for f in info.rule.sizes})
        conventions = conventions_of(type(info))
        if conventions.by_samples_alone and by_samples in _strategies_from(info, mesh, 0):
            return (by_samples,)
        if self.era == "2025":
            return _strategies_from(info, mesh, 0)
        count = len(mesh.axes)
        by_start = (_strategies_from(info, mesh, start) for start in range(count + 1))
        ending = (
            tuple(s for s in found if _axes_used(s) == count - start)
            for start, found in enumerate(by_start)
        )
        most = next(found for found in ending if found)
        whole = Strategy()
        return most if conventions.never_replicated or whole in most else (*most, whole)

    def configurable(self, info: OperatorInfo, mesh: Mesh) -> tuple[Strategy, ...]:
        """Return the strategies that a user may pin: all, over any number of devices."""
        starts = range(len(mesh.axes) + 1) if self.era == "r1.0" else (0,)
        found = (_strategies_from(info, mesh, start) for start in starts)
        return tuple(dict.fromkeys(strategy for some in found for strategy in some))

    def operator_cost(
        self, info: OperatorInfo, strategy: Strategy, mesh: Mesh, is_parameter: Sequence[bool]
    ) -> float:
        """Return the objective's term of an operator.

        Parameters
        ----------
        info : OperatorInfo
            The operator.
        strategy : Strategy
            How it is split.
        mesh : Mesh
            The mesh.
        is_parameter : sequence of bool
            For each operand, whether it is a parameter that is trained.
        """
        volume = operator_volume(info, strategy, mesh, tuple(is_parameter))
        computation = volume.computation
        forward, total = volume.forward, volume.forward + volume.backward
        if _is_data_parallel(info, strategy, mesh):  # so that it is preferred among equals
            computation, forward, total = (
                cost - 1 if cost > 1 else cost for cost in (computation, forward, total)
            )
        communication = self._refined(forward) + self.gamma * (total - forward)
        return self.alpha * computation + self.beta * communication

    def redistribution_cost(
        self, tensor: TensorType, source: Layout, target: Layout, mesh: Mesh
    ) -> float:
        """Return the objective's term of the edge from a producer to a consumer.

        Parameters
        ----------
        tensor : TensorType
            Type of the tensor on the edge.
        source, target : Layout
            Layouts of the producer and of the consumer. Partial axes are ignored, because the
            producer's own cost holds the reduction.
        mesh : Mesh
            The mesh.
        """
        if not all(_divides(tensor, layout, mesh) for layout in (source, target)):
            return inf  # MindSpore knows no slices of different sizes
        volume = redistribution_volume(tensor, source.reduced(), target.reduced(), mesh)
        communication = self._refined(volume.forward) + self._refined(volume.backward)
        return self.alpha * volume.computation + self.beta * communication

    def _refined(self, communication: float) -> float:
        """Return the practical cost of some bytes: small messages cost about the same."""
        if communication <= 0:
            return 0.0
        if communication <= self.threshold:
            return self.constant
        return communication + self.bias


# Strategies


@lru_cache(maxsize=4096)
def _strategies_from(info: OperatorInfo, mesh: Mesh, start: int) -> tuple[Strategy, ...]:
    """Return the strategies whose axes are those of the mesh from `start` on, without a gap."""
    rule, factors = info.rule, _factor_order(info)
    rooms = [rule.sizes[f] if rule.kinds[f] not in ("whole", "halo") else 1 for f in factors]
    found = []
    for ends in _ends(rooms, mesh.shape, start):
        spans = zip(factors, pairwise((start, *ends)), strict=True)
        chosen = {factor: mesh.names[first:last] for factor, (first, last) in spans}
        strategy = Strategy.of({f: chosen[f] for f in rule.sizes})
        if _is_legal(info, strategy, mesh):
            found.append(strategy)
    return tuple(found)


def _ends(rooms: Sequence[int], sizes: Sequence[int], start: int) -> Iterator[tuple[int, ...]]:
    """Yield, for every way to deal out axes to factors in turn, where the axes of each end."""
    if not rooms:
        yield ()
        return
    for end in range(len(sizes), start - 1, -1):
        if rooms[0] % prod(sizes[start:end]) == 0:
            for rest in _ends(rooms[1:], sizes, end):
                yield (end, *rest)


def _axes_used(strategy: Strategy) -> int:
    return sum(len(axes) for _, axes in strategy.assignment)


def _is_legal(info: OperatorInfo, strategy: Strategy, mesh: Mesh) -> bool:
    try:
        info.check_strategy(strategy, mesh)
        info.rule.result_layouts(strategy, mesh)
    except StrategyError:
        return False
    return not any(strategy.axes.get(factor) for factor in info.halos)  # it does not price them


def _factor_order(info: OperatorInfo) -> tuple[str, ...]:
    """Return the factors in the order of MindSpore's device matrix.

    That is the order of the operands' dimensions; a product has rows, inner dimension and columns
    in this order even where its first operand is transposed.
    """
    last = conventions_of(type(info)).contraction_order
    if last and info.attributes["transpose_a"]:
        return (*(factor for factor in info.rule.sizes if factor not in last), *last)
    return tuple(info.rule.sizes)


# Costs of operators


@lru_cache(maxsize=1 << 18)
def operator_volume(
    info: OperatorInfo, strategy: Strategy, mesh: Mesh, is_parameter: tuple[bool, ...]
) -> OperatorVolume:
    """Return the bytes that an operator computes on and communicates, forward and backward."""
    taken, left = info.infer_tensor_layouts(strategy, mesh)
    reads = [_slice_bytes(t, a, mesh) for t, a in zip(info.operand_types, taken, strict=True)]
    writes = [_slice_bytes(t, a, mesh) for t, a in zip(info.result_types, left, strict=True)]
    reduced = sum(n for n, layout in zip(writes, left, strict=True) if layout.partial)
    trained = zip(is_parameter, reads, taken, strict=True)
    backward = sum(n for yes, n, layout in trained if yes and not _is_fully_split(layout, mesh))
    return OperatorVolume(
        _forward_computation(info, reads, writes, reduced),
        backward if conventions_of(type(info)).gradient_computes else 0.0,
        reduced,
        backward,
    )


def _forward_computation(
    info: OperatorInfo, reads: Sequence[float], writes: Sequence[float], reduced: float
) -> float:
    conventions = conventions_of(type(info))
    if conventions.is_reshape:
        # A reshape of slices, charged as the redistribution that MindSpore makes of it.
        return 0.0 if info.operand_types == info.result_types else 2 * reads[0]
    if conventions.charged_for_result:
        return writes[0]
    return sum(reads) + conventions.reduction_passes * reduced


def _slice_bytes(tensor: TensorType, layout: Layout, mesh: Mesh) -> float:
    return float(prod(layout.slice_shape(tensor.shape, mesh)) * item_bytes(tensor.dtype))


def _divides(tensor: TensorType, layout: Layout, mesh: Mesh) -> bool:
    """Return whether all slices have one size."""
    dimensions = zip(tensor.shape, layout.splits, strict=True)
    return all(size % mesh.extent(axes) == 0 for size, axes in dimensions)


def _is_fully_split(layout: Layout, mesh: Mesh) -> bool:
    return mesh.extent(layout.split_axes) == mesh.size


def _is_data_parallel(info: OperatorInfo, strategy: Strategy, mesh: Mesh) -> bool:
    """Return whether the first dimension of the first operand is split over all devices."""
    first = info.rule.operand_layouts(strategy)[:1]
    return bool(first and first[0].splits) and mesh.extent(first[0].splits[0]) == mesh.size
