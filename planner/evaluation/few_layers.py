"""A model with few layers of each kind, for what is asked of its layers alone.

Where kinds of layers follow each other in no period, as in hybrids of attention and state spaces,
little is equal to what stands a fixed distance before it. What a layer becomes depends on itself
and on its neighbours: so few layers tell of all, if every kind is among them with all pairs of
neighbours that it has.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwright.dataflow.segments import block_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node
from shardwright.ir.mesh import Mesh
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.repeats import Overrides, keys_of
from shardwright.planner.evaluation.tiles import without

_Between = tuple[int, int, int]  # the kinds of a layer before, of a layer, and of the one behind it


@dataclass(frozen=True)
class FewLayers:
    """A model with few layers of each kind.

    Parameters
    ----------
    graph : Graph
        The model with few layers.
    standing : mapping of str to (tuple of str)
        For each layer of the whole model those of the few that have its kind, and its neighbours'.
    """

    graph: Graph
    standing: Mapping[str, tuple[str, ...]]

    def check_alike(self, program: Graph) -> None:
        """Raise an error if layers that stand for one became different ones.

        Parameters
        ----------
        program : Graph
            What passes made of the model with few layers.

        Raises
        ------
        NotRepeatedError
            If they did.
        """
        made: dict[str, list[Hashable]] = {}
        for node in program.nodes:
            results = tuple((result.type, result.layout) for result in node.results)
            what = node.operator, results, node.provenance.role, node.provenance.phase
            made.setdefault(block_of(node.scope), []).append(what)
        for names in set(self.standing.values()):
            if any(made.get(one) != made.get(other) for one, other in pairwise(names)):
                raise NotRepeatedError


@dataclass(frozen=True)
class _Layer:
    """A layer: its values and its own parameters, in equal order for equal layers, and its kind."""

    name: str
    values: tuple[str, ...]
    kind: Hashable


def few_layers(graph: Graph, overrides: Overrides) -> FewLayers | None:
    """Return a model with few layers of each kind; None if none can be left out.

    Parameters
    ----------
    graph : Graph
        The model, in canonical form.
    overrides : mapping
        Settings of the optimizer for single parameters, by name.
    """
    layers = _layers(graph, overrides)
    numbers: dict[Hashable, int] = {}
    kinds = [numbers.setdefault(layer.kind, len(numbers)) for layer in layers]
    kept = _kept(kinds, _read_afar(graph, layers))
    if len(kept) == len(layers):
        return None
    gaps = ((one, other) for one, other in pairwise(kept) if other > one + 1)
    stretches = [tuple(layer.values for layer in layers[a : b + 1]) for a, b in gaps]
    few = without(graph, stretches)
    if few is None:
        return None
    between, own = _between(kinds), dict[_Between, list[str]]()
    for place in kept:
        own.setdefault(between[place], []).append(layers[place].name)
    standing = {layer.name: tuple(own[where]) for layer, where in zip(layers, between, strict=True)}
    return FewLayers(few, standing)


def _layers(graph: Graph, overrides: Overrides) -> list[_Layer]:
    """Return the layers of a model, in order."""
    keys = keys_of(graph, graph.nodes, Decisions(Mesh(()), {}, {}), overrides)
    stored = {parameter.name for parameter in graph.parameters}
    nodes: dict[str, list[tuple[int, Node]]] = {}
    for key, node in zip(keys, graph.nodes, strict=True):
        if block := block_of(node.scope):
            nodes.setdefault(block, []).append((key, node))
    found = list[_Layer]()
    before: dict[str, int] = {}
    for name, own in nodes.items():
        made = [result.name for _, node in own for result in node.results]
        read = dict.fromkeys(x for _, node in own for x in node.operands if x in stored)
        slots = {value: i for i, value in enumerate((*made, *read))}
        kind = tuple(
            (key, *(_source(operand, slots, before) for operand in node.operands))
            for key, node in own
        )
        found.append(_Layer(name, tuple(slots), kind))
        before = slots
    return found


def _source(operand: str, slots: Mapping[str, int], before: Mapping[str, int]) -> Hashable:
    """Return where an operand is from: of this layer, of the one before, or by its name."""
    if operand in slots:
        return 0, slots[operand]
    return (-1, before[operand]) if operand in before else operand


def _read_afar(graph: Graph, layers: Sequence[_Layer]) -> set[int]:
    """Return the layers of which something else than the next layer reads values, by number."""
    owner = {value: i for i, layer in enumerate(layers) for value in layer.values}
    numbers = {layer.name: i for i, layer in enumerate(layers)}
    found = {owner[name] for name in graph.outputs if name in owner}
    for node in graph.nodes:
        reader = numbers.get(block_of(node.scope))
        for name in node.operands:
            if name in owner and (reader is None or reader - owner[name] not in (0, 1)):
                found.add(owner[name])
    for parameter, new in graph.updates:
        if owner.get(parameter) != owner.get(new):
            found |= {owner[name] for name in (parameter, new) if name in owner}
    return found


def _between(kinds: Sequence[int]) -> list[_Between]:
    """Return each kind with those of its neighbours; -1 where there is none."""
    return list(zip((-1, *kinds[:-1]), kinds, (*kinds[1:], -1), strict=True))


def _kept(kinds: Sequence[int], needed: set[int]) -> list[int]:
    """Return the layers that stay, by number.

    What lies between two places with the same kind before, and the same behind, may be left out:
    all that stays has the neighbours that it had.
    """
    between, kept = _between(kinds), list(range(len(kinds)))
    count = Counter(between)
    # Two of a kind stay between the same neighbours: a program tells whether both become the same.
    spare = Counter({where: n - min(n, 2) for where, n in count.items()})
    begin = 1
    while begin < len(kept):
        ends = kinds[kept[begin - 1]], kinds[kept[begin]]
        for end in range(len(kept) - 1, begin, -1):
            gone = kept[begin:end]
            if ends != (kinds[kept[end - 1]], kinds[kept[end]]) or needed.intersection(gone):
                continue
            lost = Counter(between[place] for place in gone)
            if all(spare[where] >= n for where, n in lost.items()):
                spare -= lost
                del kept[begin:end]
                break
        begin += 1
    return kept
