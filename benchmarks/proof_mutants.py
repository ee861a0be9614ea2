"""Mutants of programs: one small change each, of every kind that a compiler could make."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from shardwright.ir.errors import ShardwrightError
from shardwright.ir.graph import Graph, Node, Value, renamed
from shardwright.ir.layout import Layout
from shardwright.operators.communication.collectives import Communication
from shardwright.operators.info import operator_class, operator_info

Mutants = Iterator[Graph]
OTHERS = {
    "add": ("sub", "mul", "maximum"),
    "sub": ("add",),
    "mul": ("add", "sub"),
    "maximum": ("minimum",),
    "relu": ("tanh", "identity", "neg"),
    "tanh": ("relu", "sigmoid"),
    "gelu": ("relu", "tanh"),
    "exp": ("tanh", "neg"),
    "neg": ("identity",),
    "reduce_sum": ("reduce_mean", "reduce_max"),
    "reduce_mean": ("reduce_sum",),
    "all_gather": ("local_slice", "all_reduce", "mirror"),
    "local_slice": ("all_gather", "to_partial", "mirror"),
    "all_reduce": ("reduce_scatter", "mirror", "to_partial"),
    "reduce_scatter": ("all_reduce", "local_slice", "all_gather"),
    "to_partial": ("local_slice", "mirror"),
    "sgd_update": ("add",),
}


def inferred(graph: Graph) -> Graph:
    """Return the graph with types and layouts of results inferred anew, as far as they can be."""
    values = {v.name: v for v in (*graph.inputs, *(p.value for p in graph.parameters))}
    nodes = []
    for node in graph.nodes:
        results = node.results
        try:
            operands = [values[name] for name in node.operands]
            results = _inferred_results(graph, node, operands)
        except (ShardwrightError, LookupError, ValueError, TypeError, ArithmeticError):
            pass
        values.update((result.name, result) for result in results)
        nodes.append(replace(node, results=results))
    return graph.with_nodes(tuple(nodes))


def _inferred_results(graph: Graph, node: Node, operands: list[Value]) -> tuple[Value, ...]:
    info = operator_info(node.operator, [v.type for v in operands], node.attributes)
    layouts: list[Any] = [r.layout for r in node.results]
    if graph.mesh is not None:
        taken = [v.layout for v in operands if v.layout is not None]
        wanted = [layout.reduced() for layout in layouts]
        try:
            layouts = list(info.infer_layouts(taken, graph.mesh, wanted)[1])
        except ShardwrightError:
            layouts = list(info.infer_layouts(taken, graph.mesh)[1])
    pairs = zip(node.results, info.result_types, layouts, strict=True)
    return tuple(replace(r, type=kind, layout=layout) for r, kind, layout in pairs)


def mutants(graph: Graph, random: np.random.Generator) -> Iterator[tuple[str, Graph]]:
    """Give random mutants of a program without end: the kind of each, and the program."""
    kinds: dict[str, Callable[[Graph, np.random.Generator], Graph | None]] = {
        "collective deleted": _deleted,
        "collective doubled": _doubled,
        "collective inserted": _inserted,
        "collective altered": _altered_collective,
        "number altered": _number,
        "switch altered": _switch,
        "operands swapped": _swapped,
        "operand replaced": _other_operand,
        "operator replaced": _other_operator,
        "result replaced": _other_result,
        "update altered": _update,
        "layout altered": _layout,
        "leaf altered": _leaf,
        "order altered": _order,
    }
    while True:
        kind = str(random.choice(list(kinds)))
        found = kinds[kind](graph, random)
        if found is None:
            continue
        if random.random() < 0.5:
            found = inferred(found)
        if found != graph:
            yield kind, found


def _pick(random: np.random.Generator, items: list[Any]) -> Any:
    return items[int(random.integers(len(items)))] if items else None


def _collectives(graph: Graph) -> list[Node]:
    return [n for n in graph if issubclass(operator_class(n.operator), Communication)]


def _with(graph: Graph, old: Node, *new: Node) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += new if node is old else (node,)
    return graph.with_nodes(tuple(nodes))


def _redirected(graph: Graph, names: dict[str, str]) -> Graph:
    return replace(
        graph,
        nodes=tuple(renamed(node, names) for node in graph.nodes),
        outputs=tuple(names.get(name, name) for name in graph.outputs),
        updates=tuple((name, names.get(new, new)) for name, new in graph.updates),
    )


def _deleted(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [*_collectives(graph), *(n for n in graph if n.operator == "scale")])
    if node is None:
        return None
    if node.name.endswith(".grad"):  # keep the name
        return _with(graph, node, replace(node, operator="identity", attributes={}))
    return _redirected(_with(graph, node), {node.name: node.operands[0]})


def _after(graph: Graph, value: str, node: Node) -> Graph:
    """Return the graph with a node that takes the place of a value for all that read it."""
    changed = _redirected(graph, {value: node.name})
    at = next((i for i, n in enumerate(graph.nodes) if value in [r.name for r in n.results]), -1)
    nodes = list(changed.nodes)
    nodes.insert(at + 1, node)
    return changed.with_nodes(tuple(nodes))


def _doubled(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [n for n in graph if len(n.results) == 1 and len(n.operands) == 1])
    if node is None:
        return None
    result = replace(node.results[0], name=f"{node.name}.again")
    return _after(graph, node.name, replace(node, operands=(node.name,), results=(result,)))


def _inserted(graph: Graph, random: np.random.Generator) -> Graph | None:
    assert graph.mesh is not None
    value = _pick(random, list(graph.values.values()))
    axes = _axes(graph, random)
    dimension = int(random.integers(max(value.type.rank, 1)))
    operator = str(random.choice([*_SHAPES, "broadcast", "neighbor_exchange", "reduce"]))
    attributes: dict[str, Any] = {"axes": axes}
    if operator in ("all_gather", "local_slice", "reduce_scatter"):
        attributes["dimension"] = dimension
    if operator == "all_to_all":
        other = int(random.integers(max(value.type.rank, 1)))
        attributes |= {"split_dimension": dimension, "concat_dimension": other}
    if operator == "collective_permute":
        order = tuple(random.permutation(list(axes)).tolist())
        attributes |= {"previous": order, "dimension": dimension}
    result = Value(f"{value.name}.inserted", value.type, value.layout)
    node = Node(operator, (value.name,), (result,), attributes)
    return inferred(_after(graph, value.name, node))


_SHAPES = (
    *("all_reduce", "all_gather", "local_slice", "reduce_scatter", "all_to_all"),
    *("collective_permute", "to_partial", "mirror"),
)


def _axes(graph: Graph, random: np.random.Generator) -> tuple[str, ...]:
    assert graph.mesh is not None
    names = graph.mesh.names
    orders = [p for n in range(1, len(names) + 1) for p in permutations(names, n)]
    return _pick(random, orders)


def _altered_collective(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, _collectives(graph))
    if node is None:
        return None
    attributes = dict(node.attributes)
    keys = [k for k in attributes if k != "fusion"]
    key = _pick(random, [*keys, "reduction"] if node.operator == "all_reduce" else keys)
    value = attributes.get(key)
    if key in ("axes", "previous"):
        attributes[key] = _axes(graph, random)
        if node.operator == "collective_permute" and random.random() < 0.5:
            attributes["axes"], attributes["previous"] = (
                attributes["previous"],
                attributes["axes"],
            )
    elif key == "reduction":
        attributes[key] = str(random.choice(["sum", "max", "min"]))
    elif isinstance(value, int):
        attributes[key] = value + int(random.choice([-1, 1]))
    if node.operator == "all_to_all" and random.random() < 0.3:
        attributes["split_dimension"] = attributes["concat_dimension"]
    return _with(graph, node, replace(node, attributes=attributes))


def _numbers(node: Node) -> list[str]:
    return [k for k, v in node.attributes.items() if isinstance(v, int | float)]


def _number(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [n for n in graph if _numbers(n)])
    if node is None:
        return None
    key = _pick(random, _numbers(node))
    value = node.attributes[key]
    new: Any
    if isinstance(value, bool):
        new = not value
    elif isinstance(value, int):
        new = value + int(random.choice([-1, 1]))
    else:
        new = value * float(random.choice([0.5, 2.0, -1.0, 1.5])) + (0.25 if value == 0 else 0.0)
    return _with(graph, node, replace(node, attributes={**node.attributes, key: new}))


def _switch(graph: Graph, random: np.random.Generator) -> Graph | None:
    """Alter a text or a tuple: a key, a permutation, a shape."""
    kinds = (str, tuple)
    nodes = [n for n in graph if any(isinstance(v, kinds) and v for v in n.attributes.values())]
    node = _pick(random, nodes)
    if node is None:
        return None
    keys = [k for k, v in node.attributes.items() if isinstance(v, kinds) and v]
    key = _pick(random, keys)
    value = node.attributes[key]
    if isinstance(value, str):
        new: Any = value + "x" if key == "key" else value
    elif isinstance(value[0], int) and random.random() < 0.5:
        at = int(random.integers(len(value)))
        new = (*value[:at], value[at] + int(random.choice([-1, 1])), *value[at + 1 :])
    else:
        new = tuple(value[i] for i in random.permutation(len(value)))
    return _with(graph, node, replace(node, attributes={**node.attributes, key: new}))


def _swapped(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [n for n in graph if len(set(n.operands)) > 1])
    if node is None:
        return None
    i, j = random.choice(len(node.operands), 2, replace=False)
    operands = list(node.operands)
    operands[i], operands[j] = operands[j], operands[i]
    return _with(graph, node, replace(node, operands=tuple(operands)))


def _alike(graph: Graph, name: str, before: Node | None) -> list[str]:
    """Return the values of the type and layout of another, known before a node."""
    value = graph.values[name]
    known = [*graph.inputs, *(p.value for p in graph.parameters)]
    for node in graph.nodes:
        if node is before:
            break
        known += node.results
    same = [v for v in known if (v.type, v.layout) == (value.type, value.layout)]
    return [v.name for v in same if v.name != name]


def _other_operand(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [n for n in graph if n.operands])
    at = int(random.integers(len(node.operands)))
    other = _pick(random, _alike(graph, node.operands[at], node))
    if other is None:
        return None
    operands = (*node.operands[:at], other, *node.operands[at + 1 :])
    return _with(graph, node, replace(node, operands=operands))


def _other_operator(graph: Graph, random: np.random.Generator) -> Graph | None:
    node = _pick(random, [n for n in graph if n.operator in OTHERS])
    if node is None:
        return None
    operator = str(random.choice(OTHERS[node.operator]))
    known = operator_class(operator).defaults
    attributes = {k: v for k, v in node.attributes.items() if k in known}
    operands = node.operands[:2] if operator == "add" else node.operands
    return _with(
        graph, node, replace(node, operator=operator, attributes=attributes, operands=operands)
    )


def _other_result(graph: Graph, random: np.random.Generator) -> Graph | None:
    """Exchange two results of one node for all that read them."""
    node = _pick(random, [n for n in graph if len(n.results) > 1])
    if node is None:
        return None
    i, j = random.choice(len(node.results), 2, replace=False)
    results = list(node.results)
    results[i], results[j] = (
        replace(results[i], name=results[j].name),
        replace(results[j], name=results[i].name),
    )
    return _with(graph, node, replace(node, results=tuple(results)))


def _update(graph: Graph, random: np.random.Generator) -> Graph | None:
    updates = list(graph.updates)
    at = int(random.integers(len(updates)))
    name, new = updates[at]
    choice = int(random.integers(4))
    if choice == 0:
        del updates[at]
    elif choice == 1:
        updates[at] = (name, name)
    elif choice == 2:
        other = _pick(random, _alike(graph, new, None))
        updates[at] = (name, other or name)
    else:
        value = graph.values[new]
        same = [i for i, (_, n) in enumerate(updates) if graph.values[n].type == value.type]
        other_at = _pick(random, same)
        updates[at], updates[other_at] = (name, updates[other_at][1]), (updates[other_at][0], new)
    return replace(graph, updates=tuple(updates))


def _layout(graph: Graph, random: np.random.Generator) -> Graph | None:
    """Alter the layout of a value: an axis dropped, added, moved or in another place."""
    assert graph.mesh is not None
    value = _pick(random, list(graph.values.values()))
    assert value.layout is not None
    axes = _axes(graph, random)[:1]
    splits = [tuple(a for a in s if a not in axes) for s in value.layout.splits]
    partial = tuple(a for a in value.layout.partial if a not in axes)
    if splits and random.random() < 0.6:
        at = int(random.integers(len(splits)))
        splits[at] = (*splits[at], *axes) if random.random() < 0.5 else (*axes, *splits[at])
    elif random.random() < 0.5:
        partial = graph.mesh.ordered((*partial, *axes))
    layout = Layout(tuple(splits), partial, value.layout.reduction if partial else "sum")
    return _retyped(graph, replace(value, layout=layout))


def _retyped(graph: Graph, new: Value) -> Graph:
    """Return the graph with a value in the place of that of its name."""

    def one(value: Value) -> Value:
        return new if value.name == new.name else value

    return replace(
        graph,
        inputs=tuple(map(one, graph.inputs)),
        parameters=tuple(replace(p, value=one(p.value)) for p in graph.parameters),
        nodes=tuple(replace(n, results=tuple(map(one, n.results))) for n in graph.nodes),
    )


def _leaf(graph: Graph, random: np.random.Generator) -> Graph | None:
    """Alter how a parameter begins, or exchange outputs, inputs or parameters."""
    choice = int(random.integers(3))
    if choice == 0:
        at = int(random.integers(len(graph.parameters)))
        parameter = graph.parameters[at]
        initializer = str(random.choice(["ones", "zeros", "normal(0.3)"]))
        changed = replace(
            parameter, attributes={**parameter.attributes, "initializer": initializer}
        )
        parameters = (*graph.parameters[:at], changed, *graph.parameters[at + 1 :])
        return replace(graph, parameters=parameters)
    if choice == 1:
        other = _pick(random, _alike(graph, graph.outputs[0], None))
        return other and replace(graph, outputs=(other, *graph.outputs[1:]))
    value = _pick(random, [*graph.inputs, *(p.value for p in graph.parameters)])
    leaves = {v.name for v in graph.inputs} | {p.name for p in graph.parameters}
    other = _pick(random, [n for n in _alike(graph, value.name, graph.nodes[0]) if n in leaves])
    if other is None:
        return None
    names = {value.name: other, other: value.name}
    return graph.with_nodes(tuple(renamed(node, names) for node in graph.nodes))


def _order(graph: Graph, random: np.random.Generator) -> Graph | None:
    """Read a value that is computed one operator earlier or later."""
    node = _pick(random, [n for n in graph if n.operands])
    at = int(random.integers(len(node.operands)))
    producer = graph.producers.get(node.operands[at])
    if producer is None or not producer.operands:
        return None
    other = _pick(random, list(producer.operands))
    operands = (*node.operands[:at], other, *node.operands[at + 1 :])
    return _with(graph, node, replace(node, operands=operands))
