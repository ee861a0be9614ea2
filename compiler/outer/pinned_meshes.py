"""Meshes whose axes can make the slices that a user gives operators and inputs.

A strategy gives each factor of an operator a number of slices, and takes axes of a mesh whose sizes
multiply to it. Where the default mesh has no such axes, another one of the same devices may.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, product
from operator import mul

from shardwright.compiler.outer.meshes import mesh_of_options
from shardwright.compiler.stages.places import devices_of_stage
from shardwright.cost_model.pipelines.mixed import AnyCluster, MixedCluster
from shardwright.cost_model.redistribution.planner import MOST_AXES
from shardwright.ir.graph import Graph
from shardwright.operators.info import SplitCounts, info_of
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import UNPARTITIONED, CompileOptions
from shardwright.search.named_plan import divisors

Sizes = tuple[int, ...]


def slices_of(
    graph: Graph, pins: Mapping[str, SplitCounts], result_pins: Mapping[str, SplitCounts]
) -> list[Sizes]:
    """Return the slices of the factors of each operator that has pins, each set once.

    Factors are in the order of the operands, as in MindSpore's device matrix. Pins that contradict
    themselves are left out: they are refused later.
    """
    found: dict[Sizes, None] = {}
    for node in graph.nodes:
        rule = info_of(graph, node).rule
        for of, dims in ((pins, rule.operands), (result_pins, rule.results)):
            counts = of.get(node.name)
            if counts is None or [*map(len, counts)] != [*map(len, dims)]:
                continue
            pairs = zip(chain.from_iterable(dims), chain.from_iterable(counts), strict=True)
            slices: dict[tuple[str, ...], int] = {}
            if all(slices.setdefault(factors, count) == count for factors, count in pairs):
                found[tuple(count for count in slices.values() if count > 1)] = None
    return [*found]


def can_slice(mesh: Sequence[int], slices: Sequence[int]) -> bool:
    """Return whether axes of a mesh, each for one factor, make the slices of all factors.

    Examples
    --------
    >>> can_slice((2, 8), (2, 4)), can_slice((2, 2, 4), (4, 4))
    (False, True)
    """
    if not slices:
        return True
    wanted, *others = slices
    if wanted == 1:
        return can_slice(mesh, others)
    return any(
        wanted % size == 0
        and can_slice((*mesh[:place], *mesh[place + 1 :]), (wanted // size, *others))
        for place, size in enumerate(mesh)
        if size > 1
    )


def shapes_of(levels: Sequence[int], most: int = MOST_AXES) -> Iterator[Sizes]:
    """Yield the shapes of meshes of at most some axes, each of which is within a level.

    Examples
    --------
    >>> [*shapes_of((2, 4), 3)]
    [(2, 4), (2, 2, 2)]
    """
    for cuts in product(*map(_factorizations, levels)):
        shape = tuple(chain.from_iterable(cuts))
        if len(shape) <= most:
            yield shape


def _factorizations(number: int) -> list[Sizes]:
    """Return every way to write a number as a product of factors above 1, in every order."""
    if number == 1:
        return [()]
    factors = divisors(number)[:0:-1]
    return [(one, *rest) for one in factors for rest in _factorizations(number // one)]


def in_order(mesh: Sequence[int], slices: Sequence[int]) -> bool:
    """Return whether axes in a row make the slices of the first factor, the next ones of the next.

    MindSpore numbers ranks so: those of the last factor that is split are neighbours.

    Examples
    --------
    >>> in_order((2, 2, 4), (4, 4)), in_order((2, 4, 2), (4, 4))
    (True, False)
    """
    return {*accumulate(slices, mul)} <= {1, *accumulate(mesh, mul)}


def mesh_of_pins(
    graph: Graph,
    cluster: AnyCluster,
    devices: int,
    options: CompileOptions,
    inputs: Sequence[Sizes] = (),
) -> str | None:
    """Return the shape of a mesh for the pins of the options, where the default one has none.

    It has as few axes as can be. None says that the default mesh does, or that no other would.

    Parameters
    ----------
    graph : Graph
        The program of one device.
    cluster : Cluster or MixedCluster
        The devices.
    devices : int
        Number of ranks.
    options : CompileOptions
        The options of the compilation.
    inputs : sequence of tuple of int
        The slices of the dimensions of inputs, which take axes in order.
    """
    is_decided = options.plan is not None or options.stages == SEARCHED
    if isinstance(cluster, MixedCluster) or is_decided or options.mode in UNPARTITIONED:
        return None
    each = devices_of_stage(cluster, devices, options)
    wanted = slices_of(graph, options.pins, options.result_pins)

    def is_able(shape: Sizes) -> bool:
        of_operators = all(can_slice(shape, slices) for slices in wanted)
        return of_operators and all(in_order(shape, slices) for slices in inputs)

    if is_able(mesh_of_options(cluster, devices, options).shape):
        return None
    shapes = shapes_of([*reversed(cluster.for_devices(each))])
    found = min(
        filter(is_able, shapes),
        key=lambda shape: (len(shape), -sum(in_order(shape, slices) for slices in wanted)),
        default=None,
    )
    return None if found is None else "x".join(map(str, found))
