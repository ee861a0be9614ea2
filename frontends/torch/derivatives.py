"""Operators that PyTorch has no derivative of, or composes of others with a wrong one."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from shardwright.frontends.torch.places import place
from shardwright.ir.errors import ModelError

# Operators whose backward pass raises an error in PyTorch.
_WITHOUT = ("aten.floor_divide.", "aten.heaviside.", "aten.nextafter.", "aten.remainder.Scalar_")
_WHOLE = (
    torch.ops.aten.multi_margin_loss.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
)


def refuse_without_derivative(program: ExportedProgram) -> None:
    """Refuse operators without a derivative between a parameter and the first output.

    PyTorch raises an error in the backward pass; here the parameter would silently stay as it is.

    Raises
    ------
    ModelError
        If there is one; names the line of the module.
    """
    signature, stored = program.graph_signature, program.state_dict
    parameters = signature.inputs_to_parameters.items()
    trained = {node for node, name in parameters if stored[name].requires_grad}
    outputs = pytree.tree_leaves(program.graph.output_node().args)
    wanted = set(signature.user_outputs[:1])
    first = [one for one in outputs if isinstance(one, fx.Node) and one.name in wanted]
    for node in _differentiated(first):
        if not str(node.target).startswith(_WITHOUT):
            continue
        names = {one.name for one in _differentiated(node.all_input_nodes)}
        if not names.isdisjoint(trained):
            name = str(node.target).split(".")[1]
            raise ModelError(
                f"`{name}` has no derivative in PyTorch, and a parameter is trained through it",
                place(node),
                "detach its operands; `torch.div` with `rounding_mode` has the gradient zero",
            )


@contextmanager
def whole_losses() -> Iterator[None]:
    """Keep losses whole that PyTorch composes of other operators whenever it traces them.

    Its composition of `multilabel_margin_loss` counts labels after the end, and that of
    `multi_margin_loss` has another gradient where the margin is met exactly.
    """
    taken = {}
    for operator in _WHOLE:
        kernels: dict[Any, Any] = operator.py_kernels
        taken[operator] = {key: kernels.pop(key) for key in list(kernels)}
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in taken.items():
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


def _differentiated(ends: Iterable[fx.Node]) -> Collection[fx.Node]:
    """Return the nodes that a gradient passes from other ones on, those with it."""
    found: set[fx.Node] = set()
    todo = [node for node in ends if _passes(node)]
    while todo:
        node = todo.pop()
        found.add(node)
        todo += [one for one in node.all_input_nodes if one not in found and _passes(one)]
    return found


def _passes(node: fx.Node) -> bool:
    """Return whether a gradient passes a node: a function with floating-point results."""
    if str(node.target).startswith("aten.detach"):
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.args[0] is False:
        return False  # what runs without gradients
    value: Any = node.meta.get("val")
    tensors = [one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]
    return any(one.is_floating_point() or one.is_complex() for one in tensors)
