"""What MindSpore lists of a compiled cell: layouts of parameters, operators of the graph."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from shardwright.compiler.plans.accounting import split_counts
from shardwright.compiler.plans.compiled import Compiled
from shardwright.dataflow.cotangents import gradient_name
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType
from shardwright.mindspore.calls import Call, Part, Replaced
from shardwright.operators.halo import Halo
from shardwright.operators.info import SplitCounts
from shardwright.operators.models.random import block_index
from shardwright.ops.names import name_of

_MESSAGES = {
    "all_gather": "AllGather",
    "all_reduce": "AllReduce",
    "all_to_all": "AlltoAll",
    "local_slice": "StridedSlice",  # what MindSpore takes a slice with
    "reduce_scatter": "ReduceScatter",
}
_RUNS, _EXCHANGE = "halo_exchange", "NeighborExchangeV2"
ParameterLayout = tuple[list[int], list[int], list[int], int, bool, str]


def parameter_layouts(
    program: Graph, mesh: Mesh, divides: bool = False
) -> dict[str, ParameterLayout]:
    """Return the layout of each input and parameter of a program on a mesh.

    It is MindSpore's tuple: the sizes of the arrangement of devices, for each dimension the axis
    that splits it, counted from the last one (-1 for none), the shape of a slice, 0, True, and the
    group of ranks among which the optimizer divides the slice further: their number and the first
    group. Axes of the mesh that follow each other are one where they split one dimension, or none.

    Parameters
    ----------
    program : Graph
        The program.
    mesh : Mesh
        The ranks.
    divides : bool
        Whether the optimizer divides parameters; then what is read is listed, not what is stored.
    """
    weights = [p.value for p in program.parameters if p.role == "weight"]
    listed = {}
    for value in (*program.inputs, *weights):
        if value.layout is not None:
            read, axes = _gathered(value, program) if divides else (value.layout, ())
            ranks = mesh.group(0, axes) if axes else ()
            group = f"{len(ranks)}-{'_'.join(map(str, ranks))}" if ranks else ""
            listed[value.name] = (*_layout(read, value.type.shape, mesh), group)
    return listed


def _gathered(value: Value, program: Graph) -> tuple[Layout, tuple[str, ...]]:
    """Return the layout in which a value is read, and the axes over which it is gathered first."""
    axes: list[str] = []
    readers = program.uses.get(value.name, ())
    while gather := next((n for n, _ in readers if n.operator == "all_gather"), None):
        axes += cast(tuple[str, ...], gather.attributes["axes"])
        value = gather.results[0]
        readers = program.uses.get(value.name, ())
    assert value.layout is not None
    return value.layout, tuple(axes)


def _layout(
    layout: Layout, shape: tuple[int, ...], mesh: Mesh
) -> tuple[list[int], list[int], list[int], int, bool]:
    counts = [mesh.extent(axes) for axes in layout.splits]
    runs = _runs(layout, mesh)
    arrangement = [mesh.extent(axes) for axes, _ in runs] or [1]
    last = {dimension: i for i, (_, dimension) in enumerate(reversed(runs))}
    axes = [last[d] if count > 1 else -1 for d, count in enumerate(counts)]
    slices = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
    return arrangement, axes, slices, 0, True


def _runs(layout: Layout, mesh: Mesh) -> list[tuple[list[str], int]]:
    """Return the axes of a mesh, major to minor, those in a row that split one dimension as one.

    With them is the dimension, or -1. Where a dimension is split by axes that are apart, or in
    another order, those that split it are behind all others.
    """
    dimensions = {axis: d for d, axes in enumerate(layout.splits) for axis in axes}
    runs: list[tuple[list[str], int]] = []
    for axis in (axis for axis in mesh.names if mesh.sizes[axis] > 1):
        dimension = dimensions.get(axis, -1)
        if not runs or runs[-1][1] != dimension:
            runs.append(([], dimension))
        runs[-1][0].append(axis)
    split = [([a for a in axes if mesh.sizes[a] > 1], d) for d, axes in enumerate(layout.splits)]
    if all(run in runs for run in split if run[0]):
        return runs
    others = [axis for axis in mesh.names if axis not in dimensions]
    return [run for run in ((others, -1), *split) if mesh.extent(run[0]) > 1]


@dataclass(frozen=True)
class CompiledAlone(Compiled):
    """A program that is compiled for ranks that are not there.

    Parameters
    ----------
    calls : mapping of str to Call
        The operator of MindSpore that each operator of the network belongs to, by its name.
    rank : int
        The rank whose messages are listed.
    written : Graph, optional
        The network as it is written: with operators that are equal to others.
    returned : object
        What the network returns: symbols, in tuples.
    """

    calls: Mapping[str, Call] = field(default_factory=dict)
    rank: int = 0
    written: Graph | None = None
    returned: Any = None


def operator_count(found: CompiledAlone, lists: Collection[str]) -> int:
    """Return how many operators MindSpore's search would choose strategies for.

    They are those of the network as it is written, but for reshapes of what is reshaped, and one
    through which inputs come.

    Parameters
    ----------
    found : CompiledAlone
        The program.
    lists : collection of str
        Scopes of lists of equal cells, of which the operators of one cell count.
    """
    assert found.written is not None
    nodes, counts = found.written.producers, Counter[tuple[str, str]]()
    for own in _by_call(found.written.nodes, found.calls):
        first, call = own[0], found.calls.get(own[0].name)
        source = nodes.get(first.operands[0]) if first.operands else None
        again = source is not None and first.operator == source.operator == "reshape"
        if not again and (call is None or call.name):
            place = next((path for path in lists if first.scope.startswith(f"{path}/")), "")
            index = first.scope.removeprefix(f"{place}/").partition("/")[0] if place else ""
            counts[place, index] += 1
    most = {place: max(n for key, n in counts.items() if key[0] == place) for place, _ in counts}
    return sum(most.values()) + bool(found.written.inputs)


def strategies(found: CompiledAlone) -> dict[str, list[list[int]]]:
    """Return the slices of the operands of each of MindSpore's operators.

    One that is several here has those with which its operands are read; where one of them is read
    by no operator of its own, what it is made of is listed.
    """
    counts, nodes = split_counts(found), found.source.nodes
    listed: dict[str, list[list[int]]] = {}
    for own in _by_call(nodes, found.calls) if counts else ():
        call = found.calls.get(own[0].name)
        if call is not None and not call.name:
            continue
        read = {
            operand: [*parts]
            for node in reversed(own)
            for operand, parts in zip(node.operands, counts[node.name], strict=True)
        }
        if call is not None and len(own) > 1 and read.keys() >= {*call.operands}:
            listed[f"Default/{call.name}-op{len(listed)}"] = [read[name] for name in call.operands]
            continue
        for node in own:
            name = call.name if call and len(own) == 1 else name_of(node.operator)
            listed[f"Default/{name}-op{len(listed)}"] = as_listed(node, counts[node.name])
    return listed


def as_listed(node: Node, counts: SplitCounts) -> list[list[int]]:
    """Return the slices of the operands of an operator, as MindSpore's operator has them.

    Its `OneHot` has those of the result, with whole vectors, and of both values.
    """
    slices = [list(each) for each in counts]
    return [[*slices[0], 1], [], []] if node.operator == "one_hot" else slices


def _by_call(nodes: Sequence[Node], calls: Mapping[str, Call]) -> list[list[Node]]:
    """Return nodes in order, those of one call together where the last of them stands."""
    groups: dict[object, list[Node]] = {}
    runs: dict[str, str] = {}
    for node in nodes:
        key = _call(node, calls) or node.name
        if node.operator == _RUNS:  # along one dimension behind the other
            key = runs.get(node.operands[0], node.name)
            runs[node.results[0].name] = key
        groups[key] = [*groups.pop(key, ()), node]
    return [*groups.values()]


def _exchanged(nodes: Sequence[Node], found: CompiledAlone) -> dict[str, str]:
    """Return what is listed of MindSpore's exchange of rows and columns of images.

    It is how many of them the rank sends and receives: at the top, the bottom, left and right; or
    nothing, where these are runs along other dimensions, or of more than neighbours.
    """
    sent, received, mesh = [0] * 4, [0] * 4, found.mesh
    for node in nodes:
        own = node.attributes
        axes, at = cast(tuple[str, ...], own["axes"]), 2 * cast(int, own["dimension"]) - 4
        names = (each.name for each in fields(Halo))
        halo = Halo(**{name: cast(int, own[name]) for name in names})
        extents, place = [mesh.sizes[axis] for axis in axes], mesh.index(found.rank, axes)
        if at not in (0, 2) or halo.margins(extents) is None:
            return {}
        for i, other in ((at, place - 1), (at + 1, place + 1)):
            if 0 <= other < mesh.extent(axes):
                sent[i] = _read(halo, extents, other, place)
                received[i] = _read(halo, extents, place, other)
    return {"send_lens": str(sent), "recv_lens": str(received)}


def _read(halo: Halo, extents: Sequence[int], reader: int, owner: int) -> int:
    """Return how many elements one slice reads of another."""
    pieces = halo.pieces(extents, reader)
    return sum(piece.length for piece in pieces if piece.owner == owner)


def _call(node: Node, calls: Mapping[str, Call]) -> Call | None:
    """Return the call that a node computes, or a part of it; None for communication."""
    return calls.get(node.provenance.operator) if node.provenance.role == "forward" else None


def fused_gradients(program: Graph) -> dict[str, int]:
    """Return the number of the fused all-reduce of each parameter whose gradient is in one."""
    found = {}
    for parameter in program.parameters:
        reduced = program.producers.get(gradient_name(parameter.name))
        if reduced is not None and reduced.provenance.role == "fusion":
            reduced = program.producers[reduced.operands[0]]
        fusion = reduced.attributes.get("fusion") if reduced is not None else None
        if isinstance(fusion, int) and fusion:
            found[parameter.name] = fusion
    return found


class _Listing:
    """Operators under MindSpore's names, and what values are called by them."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self._seen: Counter[str] = Counter()

    def add(
        self, kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any], made: Iterable[str]
    ) -> str:
        """List an operator, which makes values, and return its name."""
        name = f"{kind}-{self._seen[kind]}"
        self._seen[kind] += 1
        self.nodes[name] = {"inputs": [*inputs], "attrs": attributes}
        self.names |= dict.fromkeys(made, name)
        return name

    def read(self, value: str, call: Call | None) -> str:
        """Return what a value is called that an operator reads; MindSpore slices its constants."""
        if call and value in call.operands and value.rpartition("_")[0] == "constant":
            return self.add("_GetTensorSlice", [value], {}, ())
        return self.names.get(value, value)

    def replace(self, replaced: Replaced, names: Sequence[str], made: Iterable[str]) -> None:
        """List operators in the place of one that reads and makes values of these names."""
        known = {**dict(zip(replaced.operands, names, strict=True)), **replaced.constants}
        name = ""
        for group in _by_call(replaced.nodes, replaced.calls):
            call = replaced.calls[group[0].name]
            tensors = iter(call.operands)
            items = [next(tensors) if item is None else item for item in call.arguments]
            inputs = [known.get(item, item) if isinstance(item, str) else item for item in items]
            name = self.add(call.name, inputs, call.attributes, ())
            known |= {result.name: name for node in group for result in node.results}
        self.names |= dict.fromkeys(made, name)


Replacing = Callable[[Call, Part, Sequence[TensorType]], Replaced | None]


def graph_info(found: CompiledAlone, replacing: Replacing) -> dict[str, dict[str, Any]]:
    """Return the operators of a program by graph, which is one: names, attributes and operands.

    They are the operators that every rank runs, under MindSpore's names where there is one: the
    first product is ``MatMul-0``. Those that one of MindSpore's is made of are listed as it, unless
    others, such as communication, read results in between. Operands are operators or parameters.

    Parameters
    ----------
    found : CompiledAlone
        The program.
    replacing : callable
        Returns what MindSpore has in the place of one that is split, which is listed then.
    """
    nodes = found.program.nodes
    places = {node.name: i for i, node in enumerate(nodes)}
    apart = set()
    for group in _by_call(nodes, found.calls):
        between = nodes[places[group[0].name] : places[group[-1].name]]
        if (call := _call(group[0], found.calls)) and not _is_read_after(group, between):
            apart.add(id(call))
    calls = {n: call for n, call in found.calls.items() if call.name and id(call) not in apart}
    listing = _Listing()
    for group in _by_call(nodes, calls):
        call, operator = _call(group[0], calls), group[0].operator
        made = dict.fromkeys(result.name for node in group for result in node.results)
        operands = [operand for node in group for operand in node.operands if operand not in made]
        if call and (own := _replaced(call, group[-1].results[0], operands, found, replacing)):
            replacement, values = own
            listing.replace(replacement, [listing.read(value, call) for value in values], made)
            continue
        lengths = _exchanged(group, found) if operator == _RUNS else {}
        message = _EXCHANGE if lengths else _MESSAGES.get(operator) or name_of(operator)
        attributes = {key: value for node in group for key, value in node.attributes.items()}
        if operator in ("all_reduce", "reduce_scatter"):
            attributes["op"] = attributes.get("reduction", "sum")
        attributes |= {**(call.attributes if call else {}), **_seeds(group, found)}
        inputs = [listing.read(operand, call) for operand in operands]
        listing.add(call.name if call else message, inputs, lengths or attributes, made)
    return {"@graph_0": listing.nodes}


def _replaced(
    call: Call, result: Value, read: Sequence[str], found: CompiledAlone, replacing: Replacing
) -> tuple[Replaced, list[str]] | None:
    """Return what MindSpore has in the place of an operator, and which values it reads."""
    program = found.program
    by_source = {program.copied_tensor(name): program.values[name] for name in read}
    values = [by_source[name] for name in call.operands if name in by_source]
    is_split = all(value.layout is not None for value in (*values, result))
    if not values or not is_split or len(values) != call.arguments.count(None):
        return None
    shapes = [value.type.shape for value in (*values, result)]
    part = Part([_region(value, found) for value in values], _region(result, found), shapes)
    own = replacing(call, part, [value.type for value in values])
    return None if own is None else (own, [value.name for value in values])


def _seeds(nodes: Sequence[Node], found: CompiledAlone) -> dict[str, int]:
    """Return the seeds of the first block of random numbers that the rank draws."""
    drawn = next((node for node in nodes if node.attributes.get("blocks")), None)
    if drawn is None:
        return {}
    result, blocks = drawn.results[0], cast(tuple[int, ...], drawn.attributes["blocks"])
    first = [slice(part.start, part.start + 1) for part in _region(result, found)]
    number = int(block_index(result.type.shape, blocks, first)[0].item())
    own = found.calls[drawn.provenance.operator].attributes
    return {name: own[name] + number for name in ("seed", "seed2") if name in own}


def _region(value: Value, found: CompiledAlone) -> list[slice]:
    """Return which part of a value the rank has."""
    assert value.layout is not None
    region = []
    for size, axes in zip(value.type.shape, value.layout.splits, strict=True):
        part = -(-size // found.mesh.extent(axes))
        begin = part * found.mesh.index(found.rank, axes)
        region.append(slice(begin, min(begin + part, size)))
    return region


def _is_read_after(group: Sequence[Node], between: Sequence[Node]) -> bool:
    """Return whether no other node before the last of a group reads what the group makes."""
    own = {node.name for node in group}
    made = {result.name for node in group for result in node.results}
    return all(made.isdisjoint(node.operands) for node in between if node.name not in own)
