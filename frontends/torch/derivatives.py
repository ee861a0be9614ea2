"""Operators that PyTorch has no derivative of, or composes of others with a wrong one."""

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from shardwright.frontends.torch.places import place
from shardwright.frontends.torch.private import HigherOrderOperator, tree_leaves
from shardwright.ir.errors import ModelError

# Operators whose backward pass raises an error in PyTorch.
_WITHOUT = ("aten.floor_divide.", "aten.heaviside.", "aten.nextafter.", "aten.remainder.Scalar_")


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
    outputs = tree_leaves(program.graph.output_node().args)
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


# Losses that PyTorch composes of other operators whenever it traces them again. Its composition of
# `multilabel_margin_loss` counts labels after the end, and that of `multi_margin_loss` has another
# gradient where the margin is met exactly.
torch.library.define(
    "shardwright::multi_margin_loss",
    "(Tensor x, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, "
    "int reduction=1) -> Tensor",
)
torch.library.define(
    "shardwright::multilabel_margin_loss", "(Tensor x, Tensor target, int reduction=1) -> Tensor"
)


def _margins(
    x: torch.Tensor,
    target: torch.Tensor,
    p: float = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    return x.new_empty(() if reduction else target.shape)


def _label_margins(x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    return x.new_empty(() if reduction else x.shape[:-1])


torch.library.register_fake("shardwright::multi_margin_loss", _margins)
torch.library.register_fake("shardwright::multilabel_margin_loss", _label_margins)
_WHOLE = {
    "aten.multi_margin_loss.default": torch.ops.shardwright.multi_margin_loss.default,
    "aten.multilabel_margin_loss.default": torch.ops.shardwright.multilabel_margin_loss.default,
}


def keep_losses(graph: fx.Graph) -> None:
    """Let a graph have operators of ours for losses that PyTorch would compose of others."""
    for node in graph.nodes:
        node.target = _WHOLE.get(str(node.target), node.target)


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
    if isinstance(node.target, HigherOrderOperator) and node.args[0] is False:
        return False  # what runs without gradients
    value: Any = node.meta.get("val")
    tensors = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
    return any(one.is_floating_point() or one.is_complex() for one in tensors)
