"""Gradients that a module computes in its forward pass, by `torch.autograd.grad`.

An export cannot trace the engine of autograd. While a module is exported, a call of
`torch.autograd.grad` is an operator instead, which `converters.own` differentiates in our
IR. PyTorch computes the gradient too, on tensors without elements: it knows what requires a
gradient, what is not used, and raises its own errors.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import getitem
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shardwright.frontends.torch.places import line_of_call
from shardwright.frontends.torch.private import accumulation_hooks_of, untraced
from shardwright.ir.errors import ModelError

GRADIENT = "shardwright.gradient"
_LEAF = "shardwright.leaf_.default"
_OWN = "shardwright.own_gradient.default"

# Operators that exports have and PyTorch never runs.
_LIBRARY = torch.library.Library("shardwright", "FRAGMENT")
_LIBRARY.define(
    "gradient(Tensor[] outputs, Tensor[] inputs, Tensor[] cotangents, bool again, bool zeros=False)"
    " -> Tensor[]"
)
_LIBRARY.define("leaf_(Tensor(a!) x) -> ()")
_LIBRARY.define("stopped(Tensor x) -> Tensor")

# Operators that return the tensor that they are given where nothing is to be done.
_SAME = {
    f"aten.{name}"
    for name in (
        *("to", "type_as", "contiguous", "dropout", "alpha_dropout", "feature_dropout"),
        *("feature_alpha_dropout", "flatten", "real", "conj", "resolve_conj", "resolve_neg"),
        *("positive", "atleast_1d", "atleast_2d", "atleast_3d"),
    )
}


@contextmanager
def traced_gradients(module: torch.nn.Module) -> Iterator[None]:
    """Trace what a module asks of autograd, until the end of the context.

    What is saved for backward is kept as it is: PyTorch would compute checkpoints again, in the
    trace of the forward pass.
    """
    saved: Any = torch.autograd.graph.saved_tensors_hooks
    with (
        patch.object(saved, "__enter__", _entered),
        patch.object(saved, "__exit__", lambda hooks, *error: None),
        _Gradients(any(accumulation_hooks_of(one) for one in module.parameters())),
    ):
        yield


def _entered(hooks: Any) -> None:
    kind = type(hooks)
    if kind is torch.autograd.graph.saved_tensors_hooks or kind.__module__.split(".")[0] != "torch":
        raise ModelError(
            "`saved_tensors_hooks` may change what the backward pass reads, which cannot be "
            "imported",
            line_of_call(),
            "let a plan recompute or offload, or write the change of the gradient as a "
            "`torch.autograd.Function`",
        )


class _Gradients(TorchFunctionMode):  # type: ignore[misc]
    """Answers what a module asks of autograd.

    Parameters
    ----------
    accumulates : bool
        Whether a parameter has hooks that run when its gradient is accumulated.
    """

    def __init__(self, accumulates: bool) -> None:
        super().__init__()
        self._accumulates = accumulates
        self._handlers: list[tuple[Any, Callable[..., Any]]] = [
            (torch.autograd.grad, self._grad),
            (Tensor.requires_grad_, _required),
            (Tensor.requires_grad.__set__, _required),
            (torch.autograd.backward, _refused_backward),
            (Tensor.backward, _refused_backward),
            (functional.gaussian_nll_loss, _gaussian),
        ]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, or what stands for it."""
        for known, handler in self._handlers:
            if func == known:
                return handler(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _grad(
        self,
        func: Callable[..., Any],
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        only_inputs: bool = True,
        allow_unused: bool | None = None,
        is_grads_batched: bool = False,
        materialize_grads: bool = False,
    ) -> Any:
        """Emit the operator for a call of `torch.autograd.grad`."""
        if is_grads_batched:
            rows = [
                self._grad(
                    func,
                    outputs,
                    inputs,
                    row,
                    create_graph=create_graph,
                    allow_unused=allow_unused,
                    materialize_grads=materialize_grads,
                )
                for row in zip(*_values(grad_outputs), strict=True)
            ]
            columns = zip(*rows, strict=True)
            return tuple(None if None in each else torch.stack(each) for each in columns)
        ends, points = _tensors(outputs), _tensors(list(_values(inputs)))
        factors = _factors(ends, grad_outputs)
        if self._accumulates and any(isinstance(one, torch.nn.Parameter) for one in points):
            raise ModelError(
                "`torch.autograd.grad` by a parameter, in a module with hooks of accumulated "
                "gradients, which it does not run",
                line_of_call(),
                "use `register_hook` instead of `register_post_accumulate_grad_hook`",
            )
        with untraced():
            is_partial = materialize_grads if allow_unused is None else allow_unused
            how = {"create_graph": create_graph, "allow_unused": is_partial}
            found = func(ends, points, factors, retain_graph=True, **how)
        used = [point for point, one in zip(points, found, strict=True) if one is not None]
        if used:
            made = torch.ops.shardwright.gradient(ends, used, factors, create_graph)
            traced = iter(made if create_graph else [one.detach() for one in made])
            found = tuple(None if one is None else next(traced) for one in found)
        if materialize_grads:
            pairs = zip(points, found, strict=True)
            found = tuple(torch.zeros_like(x) if one is None else one for x, one in pairs)
        return dict(zip(inputs, found, strict=True)) if isinstance(inputs, dict) else found


def _values(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _tensors(given: Any) -> list[Tensor]:
    """Return tensors as a list; refuse the edges of graphs.

    Raises
    ------
    ModelError
        If one is no tensor.
    """
    found = [given] if isinstance(given, Tensor) else list(given)
    other = next((one for one in found if not isinstance(one, Tensor)), None)
    if other is not None:
        raise ModelError(
            f"`torch.autograd.grad` of a {type(other).__name__} cannot be imported",
            line_of_call(),
            "pass tensors",
        )
    return found


def _factors(ends: Sequence[Tensor], given: Any) -> list[Tensor]:
    """Return the cotangents: ones where none is given."""
    factors = [given] if given is None or isinstance(given, Tensor) else list(given)
    if given is None:
        factors = [None] * len(ends)
    if len(factors) != len(ends):
        raise ModelError(
            f"`torch.autograd.grad` has {len(ends)} outputs and {len(factors)} `grad_outputs`",
            line_of_call(),
            "pass one for each output",
        )
    for end, factor in zip(ends, factors, strict=True):
        if factor is None and end.numel() != 1:
            raise ModelError(
                f"`torch.autograd.grad` of a tensor of shape {tuple(end.shape)} needs "
                "`grad_outputs`",
                line_of_call(),
                "pass a tensor of that shape, or the sum of the elements",
            )
    pairs = zip(ends, factors, strict=True)
    return [torch.ones_like(end) if factor is None else factor for end, factor in pairs]


def _like(
    outputs: list[Tensor],
    inputs: list[Tensor],
    cotangents: list[Tensor],
    again: bool,
    zeros: bool = False,
) -> list[Tensor]:
    return [torch.empty_like(one, requires_grad=False) for one in inputs]


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[0], *inputs[1], *inputs[2])
    ctx.sizes = [len(part) for part in inputs[:3]]


def _used(ctx: Any, cotangents: Any) -> Any:
    """Return zeros: PyTorch learns that second gradients are there, and computes none."""
    zeros = iter([torch.zeros_like(one) for one in ctx.saved_tensors])
    return *([next(zeros) for _ in range(size)] for size in ctx.sizes), None, None


def _of_samples(
    info: Any,
    axes: Any,
    outputs: list[Tensor],
    inputs: list[Tensor],
    cotangents: list[Tensor],
    again: bool,
    zeros: bool = False,
) -> Any:
    """Return the gradients of all samples: none depends on the inputs of another one."""
    size, sides = info.batch_size, zip(outputs, axes[0], cotangents, axes[2], strict=True)
    ends, factors = [], []
    for output, axis, cotangent, other in sides:
        ends.append(output.expand(size, *output.shape) if axis is None else output)
        moved = cotangent.expand(size, *cotangent.shape) if other is None else cotangent
        factors.append(moved.movedim(other or 0, axis or 0))
    assert None not in axes[1]  # `frontends.torch.transforms` lets all differ
    return torch.ops.shardwright.gradient(ends, inputs, factors, again, zeros), axes[1]


torch.library.register_fake("shardwright::gradient", _like, lib=_LIBRARY)
torch.library.register_autograd("shardwright::gradient", _used, setup_context=_kept, lib=_LIBRARY)
torch.library.register_vmap("shardwright::gradient", _of_samples, lib=_LIBRARY)
torch.library.register_fake("shardwright::stopped", torch.empty_like, lib=_LIBRARY)
torch.library.register_vmap(
    "shardwright::stopped",
    lambda info, axes, x: (torch.ops.shardwright.stopped(x), axes[0]),
    lib=_LIBRARY,
)
_LIBRARY.impl("leaf_", lambda x: None, "CompositeExplicitAutograd")


def _required(func: Callable[..., Any], x: Tensor, requires_grad: bool = True) -> Any:
    """Mark from where on gradients reach a tensor: not through what was computed before."""
    if isinstance(x, torch.nn.Parameter) and x.requires_grad != requires_grad:
        raise ModelError(
            "the module changes whether a parameter requires a gradient whenever it runs",
            line_of_call(),
            "change it before, when the module is made",
        )
    if requires_grad and not x.requires_grad:
        torch.ops.shardwright.leaf_(x)
    return func(x, requires_grad)


def _refused_backward(func: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    raise ModelError(
        "`backward` inside of the module adds to the `grad` of parameters, which cannot be "
        "imported",
        line_of_call(),
        "use `torch.autograd.grad`",
    )


def _gaussian(
    func: Callable[..., Any],
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Bound the variance here: an export forgets that its gradient passes the bound."""
    if isinstance(var, Tensor):
        var = var + (var.clamp(min=eps) - var).detach()
    return func(input, target, var, full=full, eps=0.0, reduction=reduction)


# The exported graph


def separate_leaves(program: ExportedProgram) -> None:
    """Let what reads a tensor after its `requires_grad_` read another node than what did before."""
    for module in program.graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        graph, copy = module.graph, torch.ops.aten.clone.default
        places = {node: number for number, node in enumerate(graph.nodes)}
        for node in [one for one in graph.nodes if str(one.target) == _LEAF]:
            (before,) = node.args
            with graph.inserting_after(node):
                leaf = graph.call_function(copy, (before,))
            leaf.meta = {**before.meta, **{k: v for k, v in node.meta.items() if k != "val"}}
            for user in [one for one in before.users if places.get(one, -1) > places[node]]:
                user.replace_input_with(before, leaf)
            before.users[node] = None  # exports may forget a reader without results
            graph.erase_node(node)


def by_tensors(program: ExportedProgram) -> None:
    """Let gradients be by tensors themselves: what returns them unchanged, and hooks, are after.

    A gradient by a tensor is what its hooks return, as in PyTorch.
    """
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if str(node.target).startswith(GRADIENT):
                    node.update_arg(1, [_first(point) for point in node.args[1]])


def differentiated(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that gradients are computed by."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if str(node.target).startswith(GRADIENT):
            found.update(node.args[1])
    return found


def _first(node: fx.Node) -> fx.Node:
    """Return the node of a tensor that others return unchanged, or with hooks."""
    before = _before(node)
    while before is not None:
        node, before = before, _before(before)
    return node


def _before(node: fx.Node) -> fx.Node | None:
    """Return the node of the same tensor, before a hook or an operator that does nothing."""
    if node.target is getitem:
        made, place = node.args
        if str(made.target) == _OWN and made.args[0][place] in made.args[2]:
            return made.args[0][place]
        return None
    if str(node.target).rpartition(".")[0] not in _SAME or not isinstance(node.args[0], fx.Node):
        return None
    ours, other = node.meta.get("val"), node.args[0].meta.get("val")
    if not isinstance(ours, Tensor) or not isinstance(other, Tensor):
        return None
    if (ours.dtype, ours.shape, ours.stride()) != (other.dtype, other.shape, other.stride()):
        return None
    is_copy = node.kwargs.get("copy") or (len(node.args) > 2 and node.args[2] is True)
    return None if is_copy else node.args[0]
