"""Mixtures whose tokens go to slots of experts by products with masks of ones and zeros.

Such a mask has a one for each token, expert and slot that belong together (Lepikhin et al., 2020).
The products with it are priced as what they are; a sentence says what they cost.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from shardwright.frontends.common.mixtures.probes import Run, UnknownError, choices
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.info import Array, info_of

_FAR = 40  # operators after a choice in which a mask of its slots is made
_PRODUCTS = ("einsum", "matmul", "grouped_matmul")


def masked_mixtures(graph: Graph, data: Mapping[str, Array]) -> Iterator[str]:
    """Yield a sentence for each layer that sends tokens by products with masks."""
    for node in graph.nodes:
        if node.operator not in ("top_k", "argmax"):
            continue
        sizes = sizes_of(graph, node)
        after = _after(graph, [result.name for result in node.results], _FAR)
        masks = [value for value in after if _is_mask(graph, data, node, value, sizes)]
        read = {reader.name: reader for mask in masks for reader, _ in graph.uses[mask.name]}
        sent = [one for one in read.values() if one.operator in _PRODUCTS]
        sent = [one for one in sent if not _makes_mask(one, masks)]
        if len(sent) > 1:
            tokens, _, count = sizes
            slots = masks[0].type.elements // tokens
            yield _sentence(graph, node, sent, (slots, tokens * count))


def sizes_of(graph: Graph, choice: Node) -> tuple[int, int, int]:
    """Return how many tokens, experts, and choices of each token there are."""
    chosen, experts = choice.results[-1].type, graph.values[choice.operands[0]].type.shape[-1]
    count = chosen.shape[-1] if choice.operator == "top_k" else 1
    return chosen.elements // count, experts, count


def _sentence(graph: Graph, node: Node, sent: list[Node], rows: tuple[int, int]) -> str:
    names = {one.name for one in sent}
    later = _after(graph, [result.name for one in sent for result in one.results], _FAR, names)
    made = (graph.producers[value.name] for value in later)
    experts = {one.name: one for one in made if one.operator in _PRODUCTS}
    moving, needed = (sum(_flops(graph, one) for one in part) for part in (sent, experts.values()))
    where = f" in `{node.scope}`" if node.scope else ""
    times = f", {moving / needed:.2g} times the operations of the experts" if needed else ""
    return (
        f"tokens go to slots of experts by products with masks{where}{times}; experts compute "
        f"{rows[0]} rows for {rows[1]} choices"
    )


def _flops(graph: Graph, node: Node) -> float:
    return info_of(graph, node).flops


def _after(graph: Graph, names: Iterable[str], steps: int, ends: Iterable[str] = ()) -> list[Value]:
    """Return the values that follow from others, so many steps far, not those of some nodes."""
    found, last, stop = dict[str, Value](), list(names), set(ends)
    for _ in range(steps):
        made = [one for name in last for one, _ in graph.uses.get(name, ()) if one.name not in stop]
        values = [result for one in made for result in one.results if result.name not in found]
        found |= {value.name: value for value in values}
        last = [value.name for value in values]
    return list(found.values())


def _makes_mask(node: Node, masks: list[Value]) -> bool:
    return any(result.name == mask.name for result in node.results for mask in masks)


def _is_mask(
    graph: Graph,
    data: Mapping[str, Array],
    node: Node,
    value: Value,
    sizes: tuple[int, int, int],
) -> bool:
    """Return whether a value has, for random choices, a slot of its own for each that is kept."""
    tokens, experts, count = sizes
    slots, rest = divmod(value.type.elements, tokens * experts)
    read = [one for one, _ in graph.uses.get(value.name, ()) if one.operator in _PRODUCTS]
    if rest or slots < 2 or not value.type.is_float or not read:
        return False
    random = np.random.default_rng(0)
    given = {node.results[-1].name: choices(tokens, experts, count)[0]}
    for name in (node.operands[0], node.name):  # scores, and weights of choices
        if name not in given:
            given[name] = random.uniform(0.1, 1.0, size=graph.values[name].type.elements)
    try:
        shaped = {name: x.reshape(graph.values[name].type.shape) for name, x in given.items()}
        found = Run(graph, data, shaped)
        full = found.value(value.name).reshape(tokens, -1) != 0
    except UnknownError:
        return False
    return 0 < full.sum() <= tokens * count and full.sum(axis=0).max() <= 1
