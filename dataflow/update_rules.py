"""Which rule updates which parameter of a program, where one optimizer has several.

`muon` updates the matrices between embeddings and heads: parameters of two dimensions, and stacks
of matrices such as experts, that products alone read, where another product by a parameter follows.
AdamW updates the others. `adam8bit` updates tensors that blocks divide, where it saves enough.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph, Node, Value
from shardwright.operators.info import info_of, operator_class
from shardwright.operators.models.optimizer import FALLBACKS, RULE, Optimizer
from shardwright.operators.models.update_steps import can_update, state_values

VECTORS = "vectors"
"""Stands for the parameters with fewer than two dimensions."""
_COPIES = ("cast", "convert", "identity", "mirror")
Overrides = dict[str, dict[str, Attribute]]


def with_rules(optimizer: Optimizer, graph: Graph) -> Optimizer:
    """Return an optimizer that names the rule of every parameter that its own does not update.

    Overrides by patterns of names become those of parameters.

    Parameters
    ----------
    optimizer : Optimizer
        The optimizer.
    graph : Graph
        The forward program that it trains.

    Raises
    ------
    OptionError
        If a pattern matches no trained parameter, or a rule cannot update one that the user gives
        it.
    """
    trained = {p.name: p.value for p in graph.parameters if p.trainable and p.value.type.is_float}
    overrides = _expanded(optimizer, trained)
    if optimizer.kind in FALLBACKS:
        (fallback,) = FALLBACKS[optimizer.kind]
        hidden = set(hidden_matrices(graph)) if optimizer.kind == "muon" else set(trained)
        for name, value in trained.items():
            own = overrides.get(name, {})
            if RULE not in own and not (name in hidden and can_update(optimizer.kind, value.type)):
                overrides[name] = {RULE: fallback, **_known(own, optimizer.kind, fallback)}
    if overrides == optimizer.overrides:
        return optimizer
    return replace(optimizer, overrides=overrides)


def rules_within(optimizer: Optimizer, graph: Graph) -> Optimizer:
    """Return an optimizer with the overrides of the parameters of a part of a program alone."""
    names = {parameter.name for parameter in graph.parameters}
    own = {name: found for name, found in optimizer.overrides.items() if name in names}
    return optimizer if own == optimizer.overrides else replace(optimizer, overrides=own)


def state_bytes(optimizer: Optimizer, graph: Graph) -> int:
    """Return the bytes of the optimizer states of a whole program."""
    rules = with_rules(optimizer, graph)
    trained = (p.value for p in graph.parameters if p.trainable and p.value.type.is_float)
    states = (value for own in trained for _, value in state_values(rules, own, None))
    return sum(value.type.nbytes for value in states)


def mean_state_bytes(optimizer: Optimizer, graph: Graph) -> float:
    """Return the bytes of the optimizer states of a trained element, in the mean of a program."""
    trained = sum(p.value.type.elements for p in graph.parameters if p.trainable)
    return state_bytes(optimizer, graph) / max(trained, 1)


def _known(own: Mapping[str, Attribute], kind: str, fallback: str) -> Mapping[str, Attribute]:
    """Return those settings of a parameter that the rule has which updates it."""
    other = operator_class(f"{fallback}_update").defaults
    return {name: value for name, value in own.items() if kind != "muon" or name in other}


def _expanded(optimizer: Optimizer, trained: Mapping[str, Value]) -> Overrides:
    """Return the overrides by names of parameters."""
    found: Overrides = {}
    names = {name for name in optimizer.overrides if name in trained}
    for pattern, own in optimizer.overrides.items():
        if pattern in names:
            continue
        matched = [n for n, value in trained.items() if _matches(pattern, n, value)]
        is_pattern = pattern == VECTORS or not set("*?[").isdisjoint(pattern)
        if not matched and is_pattern:
            raise OptionError(
                f"`{pattern}` of the optimizer matches no parameter that is trained",
                hint=f"the first is `{next(iter(trained), 'none')}`",
            )
        for name in matched if is_pattern else [pattern]:
            found[name] = {**found.get(name, {}), **own}
    for name in names:
        found[name] = {**found.get(name, {}), **optimizer.overrides[name]}
    return {name: found[name] for name in (*trained, *found) if name in found}


def _matches(pattern: str, name: str, value: Value) -> bool:
    return value.type.rank < 2 if pattern == VECTORS else fnmatchcase(name, pattern)


def hidden_matrices(graph: Graph) -> list[str]:
    """Return the matrices between embeddings and heads, in the order of the parameters.

    A matrix is read by products alone, itself, transposed or in another element type; on every way
    from there to the loss is a product by another parameter, or it would be a head.
    """
    copies = _copies(graph)
    products = {n.name: of for n in graph.nodes if (of := _multiplied(graph, n, copies))}
    followed = _followed(graph, products)
    hidden: dict[str, bool] = {}
    for node in graph.nodes:
        for i, operand in enumerate(node.operands):
            name = copies.get(operand)
            if name is None or all(r.name in copies for r in node.results):
                continue
            inside = any(result.name in followed for result in node.results)
            reads = name in products.get(node.name, ()) and _is_matrix(graph, node, i, name)
            hidden[name] = hidden.get(name, True) and inside and reads
    return [p.name for p in graph.parameters if hidden.get(p.name)]


def _copies(graph: Graph) -> dict[str, str]:
    """Return the parameter that each value is a copy of, or the transposed matrix."""
    found = {p.name: p.name for p in graph.parameters if p.trainable}
    for node in graph.nodes:
        turned = node.operator == "transpose" and node.results[0].type.rank == 2
        if node.operands and (node.operator in _COPIES or turned) and node.operands[0] in found:
            found[node.name] = found[node.operands[0]]
    return found


def _multiplied(graph: Graph, node: Node, copies: Mapping[str, str]) -> tuple[str, ...]:
    """Return the parameters that a product reads beside activations."""
    read = tuple(copies[name] for name in node.operands if name in copies)
    if not read or len(read) == len(node.operands):
        return ()
    return read if info_of(graph, node).product_flops else ()


def _followed(graph: Graph, products: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the values on which a product by a parameter depends."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if node.name in products or any(result.name in found for result in node.results):
            found.update(node.operands)
    return found


def _is_matrix(graph: Graph, node: Node, position: int, parameter: str) -> bool:
    """Return whether a product reads a parameter as matrices: further dimensions are of a batch."""
    rank = graph.values[parameter].type.rank
    if rank <= 2:
        return rank == 2
    rule = info_of(graph, node).rule
    others = {f for i, dims in enumerate(rule.operands) if i != position for f in _flat(dims)}
    left = {factor for dims in rule.results for factor in _flat(dims)}
    *leading, rows, columns = rule.operands[position]
    batch = set(_flat(leading))
    ends = set(_flat((rows, columns)))
    return batch <= others & left and any(rule.kinds[factor] == "sum" for factor in ends)


def _flat(dims: object) -> Iterator[str]:
    """Yield the factors of some dimensions."""
    for factors in dims:  # type: ignore[attr-defined]
        yield from factors
