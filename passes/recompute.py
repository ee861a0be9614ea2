"""Marking of operators that are recomputed, by the rules that are common in training."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat

from shardwright.dataflow.block_parts import ATTENTION, PRODUCTS, part_of_blocks
from shardwright.dataflow.placement import even_sizes, stages_of
from shardwright.dataflow.properties import WHOLE
from shardwright.dataflow.recompute_rules import CORE, RULES, Layers, layers_of, rule_in
from shardwright.dataflow.segments import block_of
from shardwright.ir.errors import StrategyError
from shardwright.ir.graph import Graph, Node
from shardwright.operators.info import operator_class
from shardwright.passes.base import Pass, register_pass

_SEARCHED = ("selective", "full")
_LIGHT = ("layernorm", "mla_up_proj", "moe_act")
"""Parts whose results are large for what they take to compute: of experts and latent attention.

What training software recommends for such models: DeepSeek-AI, "DeepSeek-V3 technical report",
2024, section 3.2.3; Megatron-Core's guide to mixtures of experts.
"""
Neighbours = Callable[[Graph, Node], Iterator[Node]]


@register_pass
@dataclass(frozen=True)
class Recompute(Pass):
    """Mark operators whose results are not saved for backward but computed again there.

    ``full``: all operators of repeated blocks (cells with a number in their path, such as
    ``blocks/0``) but those whose results are read outside: of each block only its input is saved.
    ``full:block=2``: so of the first 2 blocks of each pipeline stage. ``full:uniform=2``: of all
    blocks, 2 at a time: only the input of the first is saved.
    ``selective``: the core of attention, from the product of queries and keys to the operand of the
    product with the values. ``operators``: those of ``full`` but attention and, of the products of
    each block, every other one, from the first on; with `sums` also those whose result is added to
    another, which tensor ranks sum up. Parts of blocks, ``layernorm+moe_act``: what Megatron's
    ``--recompute-modules`` names so, found by the structure of the block. Operators that read
    parameters alone, such as casts of them, are not recomputed. Operators that are marked already
    stay marked, and what is recomputed is not saved in host memory.

    Before::

        a: f32[8, 16] = relu(x) in 'blocks/0'
        y: f32[8, 4] = matmul(a, w) in 'blocks/0'
        return y

    After::

        a: f32[8, 16] = relu(x) in 'blocks/0'
        y: f32[8, 4] = matmul(a, w) in 'blocks/0'
        recompute a
        return y

    Parameters
    ----------
    rule : str
        ``full``, alone or with a number of blocks, ``operators``, ``selective``, or parts of
        `block_parts.PARTS` and ``core_attn`` with a plus between them.
    sums : bool
        Whether ``operators`` saves products whose result is added to another.
    stages : int
        Stages between which the blocks are divided evenly, where the cells of the model say none.

    References
    ----------
    Chen et al., "Training deep nets with sublinear memory cost", 2016. Korthikanti et al.,
    "Reducing activation recomputation in large transformer models", 2022. Liang et al.,
    "TorchTitan", 2024: selective activation checkpointing by operator.
    """

    name = "recompute"
    requires = (WHOLE,)
    ensures = (WHOLE,)

    rule: str = "full"
    sums: bool = False
    stages: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", rule_in("rule", self.rule, RULES))

    def run(self, graph: Graph) -> Graph:
        """Return the program with its marks.

        Raises
        ------
        StrategyError
            If the program has no repeated block, no attention, or no such part.
        """
        layers = layers_of(self.rule)
        if self.rule == "selective":
            marked = _cores(graph)
        elif layers is not None:
            marked = _in_blocks(graph, self.rule, _places(graph, layers, self.stages))
        elif self.rule == "operators":
            marked = _in_blocks(graph, self.rule) - _worth_saving(graph, self.sums)
        else:
            marked = {name for part in self.rule.split("+") for name in _part(graph, part)}
        stored = {parameter.name for parameter in graph.parameters}
        marked = {
            node.name
            for node in graph.nodes
            if node.name in marked and not stored.issuperset(node.operands)
        }
        marked |= set(graph.recomputed)
        names = tuple(node.name for node in graph.nodes if node.name in marked)
        kept = tuple(name for name in graph.offloaded if name not in marked)
        return replace(graph, recomputed=names, offloaded=kept)


def recomputations(graph: Graph) -> dict[str, frozenset[str]]:
    """Return the operators that each level of recomputation marks that searches try, least first.

    ``none`` has those that are marked already. A rule that finds nothing to mark, or no more than
    another, is left out.

    Parameters
    ----------
    graph : Graph
        A whole program.
    """
    found = {"none": frozenset(graph.recomputed)}
    for rule in _SEARCHED:
        try:
            marked = frozenset(Recompute(rule).run(graph).recomputed)
        except StrategyError:  # the model has no attention, or no repeated block
            continue
        if marked not in found.values():
            found[rule] = marked
    return found


def light_parts(graph: Graph) -> str:
    """Return the rule of the light parts of a model with experts or latent attention; else empty.

    Parameters
    ----------
    graph : Graph
        A whole program.
    """
    parts = [part for part in _LIGHT if part_of_blocks(graph, part)]
    return "+".join(parts) if parts != [_LIGHT[0]] else ""


def _part(graph: Graph, part: str) -> set[str]:
    """Return the operators of a part of all blocks."""
    if part == CORE:
        return _cores(graph)
    found = part_of_blocks(graph, part) & _in_blocks(graph, part)
    if not found:
        raise StrategyError(
            f"`{part}` is recomputed, and no block of the model has such a part",
            f"graph {graph.name}",
            f"leave `{part}` out",
        )
    return found


def _in_blocks(graph: Graph, rule: str, places: Mapping[str, str] | None = None) -> set[str]:
    """Return the operators of repeated blocks whose results are read in their block alone.

    `places`: what each block is recomputed with, by default itself; empty where it is not.
    """
    own = {node.name: block_of(node.scope) for node in graph.nodes}
    if not any(own.values()):
        raise StrategyError(
            f"`{rule}` recomputes the operators of repeated blocks, and the model has none",
            f"graph {graph.name}",
            "leave `recompute` at `search`, or mark cells with `cell.recompute()`",
        )
    place = own if places is None else {name: places.get(of, "") for name, of in own.items()}
    kept = graph.kept()
    return {
        node.name
        for node in graph.nodes
        if node.operands
        and place[node.name]
        and not any(
            value.name in kept
            or any(place[n.name] != place[node.name] for n, _ in graph.uses[value.name])
            for value in node.results
        )
    }


def _places(graph: Graph, layers: Layers, stages: int) -> Mapping[str, str] | None:
    """Return what each block is recomputed with, of those that are; None for itself.

    Raises
    ------
    StrategyError
        If no stage has so many blocks, or one has none that are divided so.
    """
    if layers == Layers():
        return None
    found: dict[str, str] = {}
    for blocks in _blocks_of_stages(graph, stages):
        if layers.method == "block":
            found.update((block, block) for block in blocks[: layers.count])
            continue
        if len(blocks) % layers.count:
            raise StrategyError(
                f"`{layers.rule}` recomputes {layers.count} blocks at a time, and a pipeline stage "
                f"has {len(blocks)}",
                f"graph {graph.name}",
                f"use a divisor of {len(blocks)}, or `full:block={layers.count}`",
            )
        for number, block in enumerate(blocks):
            found[block] = blocks[number - number % layers.count]
    most = max(map(len, _blocks_of_stages(graph, stages)))
    if layers.count > most > 0:
        raise StrategyError(
            f"`{layers.rule}` recomputes the first {layers.count} blocks of each pipeline stage, "
            f"and the longest one has {most}",
            f"graph {graph.name}",
            "use fewer, or write `recompute=full` for all of them",
        )
    return found


def _blocks_of_stages(graph: Graph, stages: int) -> list[list[str]]:
    """Return the repeated blocks of each stage: of the cells of the model, or evenly."""
    given = stages_of(graph)
    stage: dict[str, int] = {}
    for node in graph.nodes:
        if block := block_of(node.scope):
            stage.setdefault(block, given.get(node.name, 0))
    if not graph.cuts:
        sizes = even_sizes(len(stage), stages)
        of_blocks = chain(*(repeat(number, size) for number, size in enumerate(sizes)))
        stage = dict(zip(stage, of_blocks, strict=True))
    count = max(stage.values(), default=0) + 1
    return [[block for block, at in stage.items() if at == number] for number in range(count)]


def _worth_saving(graph: Graph, sums: bool) -> set[str]:
    """Return attention and the products of repeated blocks that the rule of operators saves."""
    found: set[str] = set()
    products: Counter[str] = Counter()
    for node in graph.nodes:
        if node.operator in PRODUCTS:
            block = block_of(node.scope)
            products[block] += 1
            is_summed = any(r.operator == "add" for r, _ in graph.uses[node.name])
            if products[block] % 2 or (sums and is_summed):
                found.add(node.name)
        elif node.operator == ATTENTION:
            found.add(node.name)
    return found


def _cores(graph: Graph) -> set[str]:
    """Return the operators of all cores of attention."""
    softmaxes = [node for node in graph.nodes if node.operator == "softmax"]
    cores = [core for node in softmaxes if (core := _core(graph, node))]
    if not cores and not any(node.operator == ATTENTION for node in graph.nodes):
        raise StrategyError(
            "`selective` recomputes the core of attention, and the model has no attention",
            f"graph {graph.name}",
            "leave `recompute` at `search`, or mark cells with `cell.recompute()`",
        )
    return {name for core in cores for name in core}


def _core(graph: Graph, softmax: Node) -> set[str]:
    """Return the operators from scores to weights around a softmax; none if it is no attention."""
    before, after = {softmax.name}, {softmax.name}
    scores = list(_until_products(graph, softmax, before, _producers))
    products = list(_until_products(graph, softmax, after, _readers))
    if not scores or not products:
        return set()
    return before | after | {node.name for node in scores}


def _producers(graph: Graph, node: Node) -> Iterator[Node]:
    return (graph.producers[name] for name in node.operands if name in graph.producers)


def _readers(graph: Graph, node: Node) -> Iterator[Node]:
    return (reader for value in node.results for reader, _ in graph.uses[value.name])


def _until_products(
    graph: Graph, start: Node, passed: set[str], neighbours: Neighbours
) -> Iterator[Node]:
    """Yield the products of activations around a node; collect the operators on the way."""
    rest, elements = [start], start.results[0].type.elements
    while rest:
        for node in neighbours(graph, rest.pop()):
            if node.name in passed:
                continue
            if node.operator in PRODUCTS:
                if all(name in graph.producers for name in node.operands):
                    yield node
            elif _is_elementwise(node, elements):
                passed.add(node.name)
                rest.append(node)


def _is_elementwise(node: Node, elements: int) -> bool:
    """Return whether an operator makes as many elements as there are scores, one by one."""
    info = operator_class(node.operator)
    return (
        bool(node.operands)
        and node.results[0].type.elements == elements
        and node.operator != "softmax"
        and (info.is_view or len(node.results) == 1)
    )
