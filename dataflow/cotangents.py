"""Data flow of gradients: which values carry a cotangent, and which operands receive one.

The pass `gradient`, the search and the partition all follow this module.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shardwright.ir.errors import PassError, ShardwrightWarning
from shardwright.ir.graph import Graph, Node, Value
from shardwright.ir.reachability import live
from shardwright.ir.types import TensorType
from shardwright.ir.units import first_names
from shardwright.operators.builder import Builder
from shardwright.operators.info import Linearization, OperatorInfo, info_of, operator_class


def gradient_name(parameter: str) -> str:
    """Return the name of the gradient of a parameter in every program."""
    return f"{parameter}.grad"


@dataclass(frozen=True)
class CotangentFlow:
    """The flow of cotangents in a program.

    Parameters
    ----------
    values : frozenset of str
        Values that carry a cotangent: a trainable parameter reaches them and they reach the loss,
        both through differentiable operands.
    operands : mapping of str to tuple of bool
        For each node whether each operand receives a cotangent from it.
    """

    values: frozenset[str]
    operands: Mapping[str, tuple[bool, ...]]

    def enters(self, node: Node) -> bool:
        """Return whether any operand of a node receives a cotangent from it."""
        return any(self.operands[node.name])


def cotangent_flow(graph: Graph) -> CotangentFlow:
    """Return the flow of cotangents from the first output, the loss.

    No cotangent flows to an operand without a gradient (the operand of ``sign``, the labels of a
    loss), nor to integers.

    Parameters
    ----------
    graph : Graph
        A forward program, partitioned or whole.
    """
    return graph.analysed("cotangents", lambda: _cotangent_flow(graph))


def _cotangent_flow(graph: Graph) -> CotangentFlow:
    relevant = live(graph.nodes, graph.outputs[:1]).values
    reached = {p.name for p in graph.parameters if p.trainable and p.value.type.is_float}
    entering: dict[str, tuple[bool, ...]] = {}
    for node in graph.nodes:
        flags = tuple([name in reached for name in node.operands])
        if any(flags) and any(result.name in relevant for result in node.results):
            pairs = zip(flags, _differentiable(graph, node), strict=True)
            flags = tuple([flag and differentiable for flag, differentiable in pairs])
        entering[node.name] = flags
        if any(flags):
            reached.update(result.name for result in node.results if result.type.is_float)
    carrying = {graph.outputs[0]} & reached
    for node in reversed(graph.nodes):
        if any(result.name in carrying for result in node.results):
            entered = zip(node.operands, entering[node.name], strict=True)
            carrying.update(name for name, flag in entered if flag)
        else:
            entering[node.name] = (False,) * len(node.operands)
    return CotangentFlow(frozenset(carrying), entering)


def untrained_parameters(graph: Graph) -> tuple[str, ...]:
    """Return the trainable parameters without a gradient, and so without an update, in order.

    The loss depends on them not at all, or only through operands without a gradient, such as the
    operand of ``stop_gradient`` or ``round``.
    """
    carrying = cotangent_flow(graph).values
    return tuple(p.name for p in graph.parameters if p.trainable and p.name not in carrying)


def _differentiable(graph: Graph, node: Node) -> tuple[bool, ...]:
    if operator_class(node.operator).passes_cotangent:
        return (True,)
    return differentiable_operands(info_of(graph, node))


@lru_cache(maxsize=65536)
def differentiable_operands(info: OperatorInfo) -> tuple[bool, ...]:
    """Return for each operand of an operator whether it has a gradient.

    The gradient itself is emitted, for whole tensors.
    """
    build = Builder()

    def values(kind: str, types: tuple[TensorType, ...]) -> list[Value]:
        return [build.input(Value(f"{kind}.{i}", each)) for i, each in enumerate(types)]

    operands = values("operand", info.operand_types)
    results, cotangents = (values(kind, info.result_types) for kind in ("result", "cotangent"))
    gradients = build.gradients(info, Linearization(operands, results, cotangents))
    pairs = zip(operands, gradients, strict=True)
    return tuple(value.type.is_float and found is not None for value, found in pairs)


def check_trained(graph: Graph) -> None:
    """Refuse a forward program that trains nothing; warn of parameters that get no update.

    Raises
    ------
    PassError
        If there are trainable parameters, and the loss depends on none of them.
    """
    idle = untrained_parameters(graph)
    if idle and len(idle) == sum(parameter.trainable for parameter in graph.parameters):
        raise PassError(
            f"none of the {len(idle)} trainable parameters would be updated: the loss depends on "
            f"`{idle[0]}`{' and the others' if len(idle) > 1 else ''} by no operators that have a "
            f"gradient",
            hint="declare parameters that are not trained with `requires_grad=False`",
        )
    warn_of_idle(idle, "no gradient reaches them")


def warn_of_idle(parameters: Sequence[str], reason: str) -> None:
    """Warn of trainable parameters that get no update, and say why."""
    if not parameters:
        return
    warnings.warn(
        f"trainable parameters get no update, {reason}: {first_names(parameters)}",
        ShardwrightWarning,
        stacklevel=2,
    )
