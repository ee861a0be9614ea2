"""Properties of programs: what passes require and ensure.

The vocabulary is closed, and every property is a predicate on the graph, so that the pass manager
can check it before and after each pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwright.dataflow.cotangents import gradient_name, untrained_parameters
from shardwright.ir.errors import IRError
from shardwright.ir.graph import Graph, Value
from shardwright.ir.liveness import check_loop
from shardwright.ir.reachability import live

Violation = str | None


@dataclass(frozen=True)
class Property:
    """A property of a program.

    Parameters
    ----------
    name : str
        Its name: ``partitioned``.
    meaning : str
        What holds, in one sentence.
    violation : callable
        Returns how a graph violates it; None if it does not.
    """

    name: str
    meaning: str
    violation: Callable[[Graph], Violation]


def _stored(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    yield from (parameter.value for parameter in graph.parameters)


def _not_whole(graph: Graph) -> Violation:
    for value in graph.values.values():
        if value.layout is not None:
            return f"`{value.name}` has a layout"
    for node in graph.nodes:
        if node.strategy is not None:
            return f"`{node.name}` has a strategy"
    for name in graph.regathered:
        return f"`{name}` is marked as regathered, which is decided with its layout"
    return None


def _not_annotated(graph: Graph) -> Violation:
    if graph.mesh is None:
        return "it has no mesh"
    for value in _stored(graph):
        if value.layout is None:
            return f"`{value.name}` has no layout"
    for node in graph.nodes:
        if node.strategy is None:
            return f"`{node.name}` has no strategy"
        if any(result.layout is not None for result in node.results):
            return f"`{node.name}` has a layout already"
    return None


def _not_partitioned(graph: Graph) -> Violation:
    if graph.mesh is None:
        return "it has no mesh"
    for value in graph.values.values():
        if value.layout is None:
            return f"`{value.name}` has no layout"
    return None


def _not_uniform(graph: Graph) -> Violation:
    values = list(graph.values.values())
    for value in values:
        if (value.layout is None) != (values[0].layout is None):
            some, other = (value, values[0]) if value.layout else (values[0], value)
            return f"`{some.name}` has a layout and `{other.name}` has none"
    return None


def _gradients(graph: Graph) -> Iterator[str]:
    names = (gradient_name(parameter.name) for parameter in graph.parameters)
    return (name for name in names if name in graph.values)


def _not_forward(graph: Graph) -> Violation:
    for name in _gradients(graph):
        return f"`{name}` is a gradient"
    return None


def _not_differentiated(graph: Graph) -> Violation:
    if any(True for _ in _gradients(graph)):
        return None
    trainable = [parameter.name for parameter in graph.parameters if parameter.trainable]
    if not graph.outputs or set(trainable) <= set(untrained_parameters(graph)):
        return None  # the loss depends on no parameter
    return f"there is no gradient `{gradient_name(trainable[0])}`"


def _not_updated(graph: Graph) -> Violation:
    updated = {name for name, _ in graph.updates}
    for parameter in graph.parameters:
        if gradient_name(parameter.name) in graph.values and parameter.name not in updated:
            return f"`{parameter.name}` has a gradient and no update"
    return None


def _without(operator: str) -> Callable[[Graph], Violation]:
    def violation(graph: Graph) -> Violation:
        for node in graph.nodes:
            if node.operator == operator:
                return f"`{node.name}` is a `{operator}`"
        return None

    return violation


def _not_live(graph: Graph) -> Violation:
    nodes, values = live(graph.nodes, graph.kept())
    if len(nodes) == len(graph):
        return None
    dead = next(n for n in graph.nodes if values.isdisjoint(r.name for r in n.results))
    return f"nothing depends on `{dead.name}`"


def _not_scheduled(graph: Graph) -> Violation:
    try:
        check_loop(graph)
    except IRError as error:
        return error.what
    return None


WHOLE = Property("whole", "No tensor has a layout, no operator a strategy.", _not_whole)
ANNOTATED = Property(
    "annotated",
    "Every operator has a strategy, every input and parameter a layout, and no result has one.",
    _not_annotated,
)
PARTITIONED = Property("partitioned", "Every tensor has a layout.", _not_partitioned)
UNIFORM = Property("uniform", "Every tensor has a layout, or none has.", _not_uniform)
FORWARD = Property("forward", "No parameter has a gradient.", _not_forward)
DIFFERENTIATED = Property(
    "differentiated",
    "The parameters that the loss depends on have gradients.",
    _not_differentiated,
)
LOWERED = Property("lowered", "There is no `redistribute`.", _without("redistribute"))
UPDATED = Property("updated", "Every parameter with a gradient has an update.", _not_updated)
UNMIRRORED = Property("unmirrored", "There is no `mirror`.", _without("mirror"))
SCHEDULED = Property(
    "scheduled",
    "The passes over micro-batches can run one after the other.",
    _not_scheduled,
)
LIVE = Property("live", "An output or an update depends on every node.", _not_live)

PROPERTIES = (
    WHOLE,
    ANNOTATED,
    PARTITIONED,
    UNIFORM,
    FORWARD,
    DIFFERENTIATED,
    LOWERED,
    UPDATED,
    UNMIRRORED,
    SCHEDULED,
    LIVE,
)
