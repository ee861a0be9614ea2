"""Hooks of gradients: of tensors, parameters and modules.

A hook of a tensor acts on the sum of the gradients of all that read it, before it was registered,
too. It is traced when it is registered, on a mark of the gradient, and every reader is given the
tensor with the hook afterwards. Those of parameters stand before the forward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import getitem
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.export import ExportedProgram

from shardwright.frontends.torch.autograd.marks import Gradients, fit, refused
from shardwright.frontends.torch.gradients import GRADIENT
from shardwright.frontends.torch.places import line_of_function, place
from shardwright.frontends.torch.private import (
    accumulation_hooks_of,
    hooks_of,
    legacy_hooks,
    writes_to,
)
from shardwright.ir.errors import ModelError

Hook = Callable[..., Any]


@contextmanager
def traced_hooks(module: torch.nn.Module, gradients: Gradients) -> Iterator[None]:
    """Trace hooks of gradients that the module has, or registers, until the end."""
    tensor_hooks = _TensorHooks(gradients)
    for name, part in module.named_modules():
        if old := legacy_hooks(part):
            raise ModelError(
                f"`{name or 'the module'}` has a backward hook of the old kind",
                line_of_function(old[0]),
                hint="use `register_full_backward_hook`",
            )
    hooked = _hooked_parameters(module)
    gradients.has_parameter_hooks = bool(hooked)

    def before(root: torch.nn.Module, *_: Any) -> None:
        for name, hooks in hooked.items():
            tensor_hooks.register_all(root.get_parameter(name), hooks)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.Tensor, "register_hook", tensor_hooks.registered))
        stack.enter_context(
            patch.object(torch.nn.modules.module, "BackwardHook", partial(_ModuleHooks, gradients))
        )
        if hooked:
            handle = module.register_forward_pre_hook(before, prepend=True)
            stack.callback(handle.remove)
        yield


def _hooked_parameters(module: torch.nn.Module) -> dict[str, list[Hook]]:
    """Return the hooks of the gradient of each parameter that has some."""
    found = {}
    for name, parameter in module.named_parameters():
        hooks = [*hooks_of(parameter)]
        hooks += [_accumulated(hook, name) for hook in accumulation_hooks_of(parameter)]
        if hooks and parameter.requires_grad:
            found[name] = hooks
    return found


def _accumulated(hook: Hook, name: str) -> Hook:
    """Return a hook of a parameter with its gradient as one of the gradient."""

    def of_gradient(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        before = writes_to(parameter)
        parameter.grad = gradient.clone()
        hook(parameter)
        found, parameter.grad = parameter.grad, None
        if writes_to(parameter) != before:
            raise ModelError(
                f"a hook writes to the parameter `{name}` after its gradient is accumulated",
                line_of_function(hook),
                hint="let the optimizer of the plan write to it, and the hook change the gradient",
            )
        if found is None:
            raise ModelError(
                f"a hook takes the gradient of the parameter `{name}` away",
                line_of_function(hook),
                hint="let it change the gradient, and the optimizer of the plan use it",
            )
        return found

    of_gradient.takes_tensor = True  # type: ignore[attr-defined]
    return of_gradient


class _Handle:
    """What registers a hook returns: it can be removed while the module runs."""

    def __init__(self, gradients: Gradients, number: int) -> None:
        self.gradients, self.number = gradients, number

    def remove(self) -> None:
        self.gradients.removed.add(self.number)

    def __enter__(self) -> "_Handle":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class _TensorHooks:
    """Traces hooks of tensors."""

    def __init__(self, gradients: Gradients) -> None:
        self.gradients = gradients

    @property
    def registered(self) -> Callable[[torch.Tensor, Hook], _Handle]:
        """The method of tensors that registers a hook."""

        def register_hook(tensor: torch.Tensor, hook: Hook) -> _Handle:
            if not tensor.requires_grad:
                raise RuntimeError(
                    "cannot register a hook on a tensor that doesn't require gradient"
                )
            if isinstance(tensor, torch.nn.Parameter):
                raise refused(
                    "the module registers a hook of a parameter whenever it runs, which PyTorch "
                    "keeps for the next time",
                    "register it once, when the module is made",
                )
            return self._register(tensor, hook)

        return register_hook

    def register_all(self, tensor: torch.Tensor, hooks: Sequence[Hook]) -> None:
        """Register hooks of a parameter."""
        for hook in hooks:
            self._register(tensor, hook)

    def _register(self, tensor: torch.Tensor, hook: Hook) -> _Handle:
        number, mark = self.gradients.mark(tensor)
        if getattr(hook, "__module__", "") == torch.autograd.graph.__name__:
            return _Handle(self.gradients, number)  # those of several gradients only observe
        takes_tensor = getattr(hook, "takes_tensor", False)
        with torch.no_grad():
            found = hook(tensor, mark) if takes_tensor else hook(mark)
            gradient = fit(mark if found is None else found, tensor, "a hook")
        torch.ops.shardwright.hooked([tensor], [number], [gradient])
        return _Handle(self.gradients, number)


class _ModuleHooks:
    """What stands for the hooks of a module around one of its calls.

    It has the methods of `torch.utils.hooks.BackwardHook`.
    """

    def __init__(
        self, gradients: Gradients, module: torch.nn.Module, hooks: Any, pre_hooks: Any
    ) -> None:
        self.gradients = gradients
        self.module, self.hooks, self.pre_hooks = module, list(hooks), list(pre_hooks)
        self.inputs: list[torch.Tensor | None] | None = None

    def setup_input_hook(self, args: Any) -> Any:
        tensors = _tensors(args)
        if not _are_trained(tensors):
            return args
        made = torch.ops.shardwright.boundary(list(tensors.values()))
        inner = dict(zip(tensors, made, strict=True))
        trained = {i for i, tensor in tensors.items() if tensor.requires_grad}
        self.inputs = [inner[i] if i in trained else None for i in range(len(args))]
        items = [inner[i] if i in trained else one for i, one in enumerate(args)]
        return type(args)(items)

    def setup_output_hook(self, result: Any) -> Any:
        items = result if isinstance(result, (tuple, list)) else (result,)
        tensors = {i: t for i, t in _tensors(items).items() if t.requires_grad}
        if not _are_trained(tensors):
            return result
        marks = {i: self.gradients.mark(tensor) for i, tensor in tensors.items()}
        passed = tuple(marks[i][1] if i in marks else None for i in range(len(items)))
        with torch.no_grad():
            for hook in self.pre_hooks:
                passed = _returned(hook(self.module, passed), passed, self.module)
        self._of_inputs(passed)
        made = self.gradients.given(
            [*tensors.values()],
            [number for number, _ in marks.values()],
            [*tensors.values()],
            [passed[i] for i in tensors],
            f"a backward hook of `{type(self.module).__name__}`",
        )
        outer = dict(zip(tensors, made, strict=True))
        found = [outer.get(i, one) for i, one in enumerate(items)]
        return type(result)(found) if isinstance(result, (tuple, list)) else found[0]

    def _of_inputs(self, passed: tuple[Any, ...]) -> None:
        """Trace hooks of the gradients of the inputs."""
        if self.inputs is None or not self.hooks:
            return
        marks = [one if one is None else self.gradients.mark(one) for one in self.inputs]
        found: tuple[Any, ...] = tuple(mark and mark[1] for mark in marks)
        what = f"a backward hook of `{type(self.module).__name__}`"
        with torch.no_grad():
            for hook in self.hooks:
                found = _returned(hook(self.module, found, passed), found, self.module)
            pairs = zip(found, self.inputs, strict=True)
            fitted = [fit(g, t, what) for g, t in pairs if t is not None]
        tensors = [one for one in self.inputs if one is not None]
        numbers = [mark[0] for mark in marks if mark is not None]
        torch.ops.shardwright.hooked(tensors, numbers, fitted)


def _tensors(items: Any) -> dict[int, torch.Tensor]:
    return {i: one for i, one in enumerate(items) if isinstance(one, torch.Tensor)}


def _are_trained(tensors: dict[int, torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())


def _returned(made: Any, before: tuple[Any, ...], module: torch.nn.Module) -> tuple[Any, ...]:
    """Return the gradients that a hook of a module returns."""
    if made is None:
        return before
    found = tuple(made) if isinstance(made, (tuple, list)) else (made,)
    if len(found) != len(before):
        raise refused(
            f"a backward hook of `{type(module).__name__}` returns {len(found)} gradients, "
            f"expected {len(before)}",
            "return one for each, or None",
        )
    return found


# Exported graphs


def give_hooked(program: ExportedProgram, removed: set[int]) -> None:
    """Let all that reads a tensor with a hook read one whose gradient the hook has changed.

    Raises
    ------
    ModelError
        If a hook is registered where gradients are off, or reads random numbers of the module.
    """
    whole = program.graph
    for module in program.graph_module.modules():
        graph = module.graph if isinstance(module, fx.GraphModule) else whole
        inner = [node for node in graph.nodes if _is_hook(node)] if graph is not whole else []
        if inner:
            raise ModelError(
                "a hook of a tensor is registered where gradients are off",
                place(inner[0]),
                "register it where they are on",
            )
    hooks = [node for node in whole.nodes if _is_hook(node)]
    _refuse_late(whole, hooks, removed)
    for node in hooks:
        if not removed.intersection(node.args[1]):
            _give(whole, node, hooks)
    for node in hooks:
        whole.erase_node(node)


def _refuse_late(graph: fx.Graph, hooks: Sequence[fx.Node], removed: set[int]) -> None:
    """Refuse hooks that gradients of the forward pass and those of training do not both meet."""
    places = {node: number for number, node in enumerate(graph.nodes)}
    gradients = [node for node in graph.nodes if str(node.target).startswith(GRADIENT)]
    for hook in hooks if gradients else ():
        is_removed = bool(removed.intersection(hook.args[1]))
        tensors = {one for one in hook.args[0] if isinstance(one, fx.Node)}
        for node in gradients:
            is_before = places[node] < places[hook]
            passes = tensors & _before(node.args[0]) and _before(tensors) & {*node.args[1]}
            if passes and is_before is not is_removed:
                raise ModelError(
                    "a hook of a tensor is registered after a gradient through the tensor is "
                    "computed, or removed before training",
                    place(hook),
                    "register it before, and keep it",
                )


def _before(ends: Iterable[fx.Node]) -> set[fx.Node]:
    """Return nodes, and all that they depend on."""
    found, todo = set(ends), [*ends]
    while todo:
        new = {*todo.pop().all_input_nodes} - found
        found |= new
        todo += new
    return found


def _is_hook(node: fx.Node) -> bool:
    return str(node.target) == "shardwright.hooked.default"


def _give(graph: fx.Graph, hook: fx.Node, hooks: Sequence[fx.Node]) -> None:
    tensors, marks, gradients = hook.args
    assert isinstance(tensors, (list, tuple))
    places = {node: number for number, node in enumerate(graph.nodes)}
    after = max((one for one in tensors if isinstance(one, fx.Node)), key=places.__getitem__)
    needed = _needed(gradients, places, places[after])
    after = _behind_inputs(after)
    copies: dict[fx.Node, fx.Node] = {}
    for node in needed:
        with graph.inserting_after(after):
            after = copies[node] = graph.node_copy(node, lambda one: copies.get(one, one))
    with graph.inserting_after(after):
        found = [copies.get(one, one) for one in gradients]
        own = graph.call_function(
            torch.ops.shardwright.own_gradient.default, (tensors, marks, tensors, found)
        )
    own.meta = {**hook.meta, "val": [one.meta["val"] for one in tensors]}
    kept = {own, *copies.values(), *hooks}
    for i, tensor in reversed(list(enumerate(tensors))):
        with graph.inserting_after(own):
            given = graph.call_function(getitem, (own, i))
        given.meta = dict(tensor.meta)
        tensor.replace_all_uses_with(given, lambda user: user not in kept)
    hook.args = ([], [], [])
    for node in reversed(needed):
        if not node.users:
            graph.erase_node(node)
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            is_mark = str(node.target).startswith("shardwright.cotangent")
            what = "the gradient of another tensor" if is_mark else "random numbers of the module"
            raise ModelError(
                f"a hook reads {what}, which cannot be imported",
                place(hook),
                "let it read its own gradient, and what is not random",
            )


def _behind_inputs(node: fx.Node) -> fx.Node:
    """Return the last input of a graph, if a node is one."""
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node


def _needed(gradients: Any, places: dict[fx.Node, int], after: int) -> list[fx.Node]:
    """Return what gradients are computed by behind a place of a graph, in order."""
    found: set[fx.Node] = set()
    todo = [one for one in gradients if isinstance(one, fx.Node)]
    while todo:
        node = todo.pop()
        if places[node] > after and node not in found and node.op != "placeholder":
            found.add(node)
            todo += node.all_input_nodes
    return sorted(found, key=places.__getitem__)
