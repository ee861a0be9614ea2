"""Which of MindSpore's operators the operators of a traced network belong to.

One of MindSpore's may be several here: what is listed of a program for MindSpore names it once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from shardwright.ir.graph import Node
from shardwright.tensor import Tensor, tensors_in
from shardwright.tracer import current_tracer, is_tracing


@dataclass(frozen=True, eq=False)
class Call:
    """One application of an operator of MindSpore.

    Parameters
    ----------
    name : str
        What MindSpore calls it; empty for what it has no operator for, which has no strategy.
    operands : tuple of str
        The values that it was applied to, in MindSpore's order.
    attributes : mapping
        What it was made with.
    arguments : tuple
        What it was applied to, with None for each tensor.
    """

    name: str
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Part:
    """The part of an operator that a rank computes.

    Parameters
    ----------
    operands : sequence of sequence of slice
        Which part of each operand that is a tensor it has.
    result : sequence of slice
        Which part of the result it makes.
    shapes : sequence of tuple of int
        The shapes of the whole operands, and of the whole result.
    """

    operands: Sequence[Sequence[slice]]
    result: Sequence[slice]
    shapes: Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Replaced:
    """MindSpore's operators in the place of one.

    Parameters
    ----------
    operands : sequence of str
        Names of the operands, for those of the operator that are tensors.
    nodes : sequence of Node
        What they are made of.
    calls : mapping of str to Call
        The operator of MindSpore that each node belongs to.
    constants : mapping of str to str
        The numbers among what they read, as MindSpore writes them.
    """

    operands: Sequence[str]
    nodes: Sequence[Node]
    calls: Mapping[str, Call]
    constants: Mapping[str, str]


_NOTED: ContextVar[dict[str, Call] | None] = ContextVar("noted calls", default=None)


@contextmanager
def noted_calls() -> Iterator[dict[str, Call]]:
    """Note the call that each node of a trace belongs to, by the name of the node."""
    noted: dict[str, Call] = {}
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)


@contextmanager
def called(
    name: str, arguments: Sequence[Any], attributes: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Let what is traced belong to one operator of MindSpore; the outermost of several counts."""
    noted = _NOTED.get()
    if noted is None or not is_tracing():
        yield
        return
    tracer = current_tracer()
    begin = len(tracer.nodes)
    yield
    values = (tracer.known(tensor) for tensor in tensors_in(tuple(arguments)))
    operands = tuple(value.name for value in values if value is not None)
    plain = tuple(None if isinstance(item, Tensor) else item for item in arguments)
    call = Call(name, operands, attributes or {}, plain)
    noted |= {node.name: call for node in tracer.nodes[begin:]}


def node_of(tensor: Tensor) -> Node | None:
    """Return the node of this trace that made a tensor; None of an input or a parameter."""
    tracer = current_tracer()
    name = tensor.value(tracer).name
    made = (node for node in tracer.nodes if name in {result.name for result in node.results})
    return next(made, None)


def maker(tensor: Tensor) -> str:
    """Return what MindSpore calls the operator that made a tensor of this trace, if it is known."""
    noted, node = _NOTED.get() or {}, node_of(tensor)
    return noted[node.name].name if node is not None and node.name in noted else ""
