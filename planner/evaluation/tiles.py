"""Programs of repeated layers: emitted with few of them, and made whole from these.

A large model repeats its layers, and a plan gives most of them the same decisions. So the model
goes through the passes without most of its equal layers, and they are put into the program
afterwards, as copies of what a layer became. The result is the program of the whole model, but for
names that passes make.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph, Node, renamed
from shardwright.planner.evaluation.lengthening import NotRepeatedError, check_repeats, lengthened
from shardwright.planner.evaluation.repeats import KEPT, Kept, Layers, Overrides, equal_layers

_FEWEST = 3  # layers of a stretch: its ends, and one to leave out
_WORTHWHILE = 0.7  # share of the values that stays at most; else the model is emitted whole


@dataclass(frozen=True)
class Shortened:
    """A model without some of its equal layers.

    Parameters
    ----------
    whole : Graph
        The whole model.
    graph : Graph
        The model with few layers.
    decisions : Decisions
        Its decisions.
    levels : tuple of tuple of Layers
        The equal layers of each stretch (`repeats.equal_layers`), of which the first and the last
        stay: those inside of others first, since layers of a period may be equal, too.
    """

    whole: Graph
    graph: Graph
    decisions: Decisions
    levels: tuple[tuple[Layers, ...], ...]

    def lengthened(self, program: Graph) -> Graph:
        """Return the program of the whole model.

        Parameters
        ----------
        program : Graph
            What passes made of the model with few layers; its nodes have provenance.

        Raises
        ------
        NotRepeatedError
            If it does not repeat as the model does.
        """
        program = self._with_own_names(program)
        for stretches in self.levels:
            program = lengthened(self.whole, program, stretches)
        return program

    def check_repeats(self, program: Graph) -> None:
        """Raise an error if a program of few layers does not repeat as the model does."""
        for stretches in self.levels:
            check_repeats(self.whole, program, stretches)

    def decided(self, decisions: Decisions) -> Decisions:
        """Return decisions about the whole model without the layers that are not in the graph.

        Raises
        ------
        NotRepeatedError
            If those of equal layers differ.
        """
        found = decisions.about(lambda name: () if name in self._gone else (name,))
        if self.extended(found) != decisions:
            raise NotRepeatedError
        return found

    def extended(self, decisions: Decisions) -> Decisions:
        """Return decisions about the whole model: of all equal layers as of the first of them.

        Raises
        ------
        NotRepeatedError
            If those of the first and the last differ, as where columns and rows are split in turns.
        """
        for stretches in self.levels:
            names: dict[str, list[str]] = {}
            for first, *layers, last in stretches:
                if self._of(decisions, first, last) != self._of(decisions, last, last):
                    raise NotRepeatedError
                for layer in layers:
                    for one, other in zip(first, layer, strict=True):
                        names.setdefault(one, [one]).append(other)
            decisions = _about(decisions, names)
        return decisions

    def _of(self, decisions: Decisions, layer: Sequence[str], last: Sequence[str]) -> Decisions:
        """Return the decisions about the values of a layer, by their names in the last one.

        What only one operator reads there has no layout that its readers share.
        """
        named = dict(zip(layer, last, strict=True))
        found = decisions.about(lambda name: (named[name],) if name in named else ())
        uses, shared = self.whole.uses, found.shared_layouts
        return replace(
            found, shared_layouts={x: layout for x, layout in shared.items() if len(uses[x]) > 1}
        )

    @cached_property
    def _gone(self) -> set[str]:
        return self.whole.values.keys() - self.graph.values.keys()

    def _with_own_names(self, program: Graph) -> Graph:
        """Return the program with other names where passes took those of layers left out."""
        names = {name: f"{name}.made" for name in program.values if name in self._gone}
        return replace(
            program,
            nodes=tuple(_defining(renamed(node, names), names) for node in program.nodes),
            outputs=tuple(names.get(name, name) for name in program.outputs),
            updates=tuple((p, names.get(new, new)) for p, new in program.updates),
        )


def _about(decisions: Decisions, names: Mapping[str, Sequence[str]]) -> Decisions:
    return decisions.about(lambda name: names.get(name, (name,)))


def _defining(node: Node, names: Mapping[str, str]) -> Node:
    """Return a node that defines values, and redistributes others to them, by their other names."""
    origin = node.provenance
    if origin.target in names:
        node = replace(node, provenance=replace(origin, target=names[origin.target]))
    if not any(result.name in names for result in node.results):
        return node
    results = tuple(replace(r, name=names.get(r.name, r.name)) for r in node.results)
    return replace(node, results=results)


def shortened(
    graph: Graph,
    decisions: Decisions,
    overrides: Overrides | None = None,
    kept: Kept = KEPT,
) -> Shortened | None:
    """Return a model with few of its equal layers; None where too little repeats.

    Parameters
    ----------
    graph : Graph
        The model, in canonical form.
    decisions : Decisions
        The decisions of a plan for it.
    overrides : mapping, optional
        Settings of the optimizer for single parameters, by name.
    kept : (int, int)
        Layers that stay at the ends of equal ones. If they are fewer than passes may need, the
        program may turn out not to repeat.
    """
    levels, few = list[tuple[Layers, ...]](), graph
    while True:
        stretches = equal_layers(few, decisions, overrides or {}, kept)
        for outer in chain(*levels):
            stretches = tuple(_in_both_ends(stretches, outer))
        shorter = without(few, stretches) if stretches else None
        if shorter is None:
            break
        few, levels = shorter, [stretches, *levels]
    if len(few.values) > _WORTHWHILE * len(graph.values):
        return None
    stay = few.values
    decisions = decisions.about(lambda name: (name,) if name in stay else ())
    return Shortened(graph, few, decisions, tuple(levels))


def _in_both_ends(stretches: Iterable[Layers], outer: Layers) -> Iterator[Layers]:
    """Yield stretches outside of some layers, or as long in the last of them as in the first."""
    second, within = dict(zip(outer[0], outer[-1], strict=True)), set(outer[-1])
    of_last = [set(layers) for layers in stretches if within.issuperset(chain(*layers))]
    for layers in stretches:
        if second.keys() >= {*chain(*layers)}:
            both = {layer: tuple(second.get(name, "") for name in layer) for layer in layers}
            for ends in of_last:
                equal = {layer: other for layer, other in both.items() if other in ends}
                if len(equal) >= _FEWEST:
                    yield from (tuple(equal), tuple(equal.values()))
        elif {*second, *within}.isdisjoint(chain(*layers)):
            yield layers


def without(graph: Graph, stretches: Iterable[Layers]) -> Graph | None:
    """Return a model without the inner layers of stretches; None where others read them all.

    What reads the last of these reads the first layer of the stretch, which is equal, instead.
    """
    gone = {name for layers in stretches for layer in layers[1:-1] for name in layer}
    behind = {a: b for layers in stretches for a, b in zip(layers[-2], layers[0], strict=True)}
    nodes = tuple(renamed(node, behind) for node in graph.nodes if node.name not in gone)
    if any(name in gone for node in nodes for name in node.operands):
        return None
    return replace(
        graph,
        parameters=tuple(p for p in graph.parameters if p.name not in gone),
        nodes=nodes,
        updates=tuple((p, new) for p, new in graph.updates if p not in gone),
        recomputed=tuple(name for name in graph.recomputed if name not in gone),
        cuts=tuple(name for name in graph.cuts if name not in gone),
        regathered=tuple(name for name in graph.regathered if name not in gone),
        offloaded=tuple(name for name in graph.offloaded if name not in gone),
        shared_layouts=tuple(pair for pair in graph.shared_layouts if pair[0] not in gone),
    )
