"""Functions whose backward pass the module gives: `torch.autograd.Function`, in a trace.

PyTorch calls the forward pass of a function, whoever holds its `apply`. In a trace it calls one
with the gradients of the backward pass, which runs on marks of the gradients of the results.
Checkpoints that PyTorch makes as such functions run what they are given.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from shardwright.frontends.torch.autograd.marks import Gradients, refused
from shardwright.frontends.torch.private import in_functorch, set_grad_enabled

Pass = Callable[..., Any]
_GRADIENT_NODE = torch.Tensor.grad_fn.__get__


class _Context(FunctionCtx):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    """What a function keeps for its backward pass."""

    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[torch.Tensor, ...] = ()
    dirty_tensors: tuple[torch.Tensor, ...] = ()
    materialize_grads = True

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.to_save)


class _GradientMode(TorchFunctionMode):  # type: ignore[misc]
    """Whether gradients are on, as the trace has it; and what a trace does not see.

    PyTorch turns gradients off around the forward pass of a function. A tensor's `data` is the
    tensor, as a constant to gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_on = torch.is_grad_enabled()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), keywords: Any = None
    ) -> Any:
        if function is set_grad_enabled:
            self.is_on = args[0]
        if function == torch.Tensor.data.__get__:
            return args[0].detach()
        if function == torch.Tensor.data.__set__:
            raise refused("the module sets `data` of a tensor", "let it use another tensor")
        found = function(*args, **(keywords or {}))
        return _Node(found) if function == _GRADIENT_NODE and found is not None else found


class _Node:
    """A node of the graph of autograd, which takes no hooks."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook"):
            raise refused(
                "a hook of a node of autograd (`grad_fn`) cannot be imported",
                "register one of a tensor or of a module",
            )
        return getattr(self._node, name)


@contextmanager
def traced_functions(gradients: Gradients) -> Iterator[None]:
    """Let functions of the module be traced with their backward pass, until the end."""
    with _GradientMode() as mode, ExitStack() as stack:
        functions = [one for one in _subclasses(Function) if not _is_of_pytorch(one)]
        traced = [(one, _traced(one, gradients, mode)) for one in functions]
        traced.append((CheckpointFunction, _checkpointed(gradients, mode)))
        for function, forward in traced:
            new = {"forward": forward, "backward": _zeros}
            if _is_split(function):
                new["setup_context"] = _kept
            for name, method in new.items():
                stack.enter_context(patch.object(function, name, staticmethod(method)))

        def made(function: Any) -> None:
            if _is_of_pytorch(function):
                return
            forward = _traced(function, gradients, mode)
            if _is_split(function):
                function.setup_context = staticmethod(_kept)
            function.forward, function.backward = staticmethod(forward), staticmethod(_zeros)

        stack.enter_context(patch.object(Function, "__init_subclass__", classmethod(made)))
        yield


def _is_split(function: Any) -> bool:
    """Return whether a function keeps what its backward pass needs by a method of its own."""
    return function.setup_context is not Function.setup_context


def _kept(context: Any, args: Sequence[Any], *_: Any) -> None:
    """Keep what is trained: the function has run its backward pass."""
    context.trained = [a if isinstance(a, torch.Tensor) and a.requires_grad else None for a in args]


def _zeros(context: Any, *_: Any) -> Any:
    """Return zeros: PyTorch learns what has a gradient, and computes none."""
    return tuple(one if one is None else torch.zeros_like(one) for one in context.trained)


def _subclasses(kind: Any) -> list[Any]:
    found = kind.__subclasses__()
    return [*found, *(one for each in found for one in _subclasses(each))]


def _is_of_pytorch(function: Any) -> bool:
    return str(function.__module__).split(".")[0] == "torch"


def _traced(function: Any, gradients: Gradients, mode: _GradientMode) -> Callable[..., Any]:
    """Return the forward pass of a function, with the gradients of its backward pass."""
    original = function.forward
    set_up = function.setup_context if _is_split(function) else None
    backward = _backward(function)

    def forward(*given: Any, **keywords: Any) -> Any:
        if gradients.is_inside:
            return original(*given, **keywords)
        if in_functorch():
            raise refused(
                f"`{function.__name__}` is applied inside of `torch.func`",
                "apply it outside, or write its forward pass out",
            )
        args = given[1:] if set_up is None else given
        if set_up is None:
            _kept(given[0], args)
        gradients.is_inside = True
        is_on = mode.is_on
        torch.set_grad_enabled(is_on)
        try:
            return _applied(gradients, function, (original, set_up, backward), args, keywords)
        finally:
            gradients.is_inside = False
            torch.set_grad_enabled(is_on)

    return forward


def _checkpointed(gradients: Gradients, mode: _GradientMode) -> Pass:
    """Return what runs the function of a reentrant checkpoint, as a part of the module."""

    def forward(context: Any, run: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        is_on = mode.is_on
        if gradients.has_parameter_hooks:
            raise refused(
                "a parameter has a hook, which PyTorch runs for every reentrant checkpoint by "
                "itself",
                "set `use_reentrant=False`",
            )
        _kept(context, (None, None, *args))
        nested = [a for a in args if not isinstance(a, torch.Tensor)]
        if is_on and any(_holds_trained(item) for item in nested):
            raise refused(
                "a reentrant checkpoint is given tensors inside of a container, to which it passes "
                "no gradient",
                "give it tensors, or set `use_reentrant=False`",
            )
        trained = any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        torch.set_grad_enabled(is_on and trained)  # with no argument trained, nothing in it is
        try:
            return run(*args)
        finally:
            torch.set_grad_enabled(is_on)

    return forward


def _holds_trained(item: Any) -> bool:
    if isinstance(item, torch.Tensor):
        return item.requires_grad
    parts = item.values() if isinstance(item, dict) else item
    return isinstance(item, (tuple, list, dict)) and any(map(_holds_trained, parts))


def _applied(
    gradients: Gradients,
    function: Any,
    passes: tuple[Pass, Pass | None, Pass | None],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Return the results of a function with the gradients of its backward pass."""
    is_on = torch.is_grad_enabled()
    needs = tuple(isinstance(a, torch.Tensor) and a.requires_grad and is_on for a in args)
    context, (run, set_up, backward) = _Context(needs), passes
    with torch.no_grad():
        if set_up is None:
            output = run(context, *args, **keywords)
        else:
            output = run(*args, **keywords)
            set_up(context, args, output)
    if context.dirty_tensors:
        raise refused(
            f"`{function.__name__}` writes to its argument (`mark_dirty`)", "return a new tensor"
        )
    if not any(needs):
        return output
    if backward is None:
        raise refused(f"`{function.__name__}` has no backward pass", "give it a method `backward`")
    outputs = list(output) if isinstance(output, (tuple, list)) else [output]
    places = [i for i, one in enumerate(outputs) if _is_differentiable(one, context)]
    _check(function, context, len(places))
    marks = {i: gradients.mark(outputs[i]) for i in places}
    given = [marks[i][1] if i in marks else _absent(one, context) for i, one in enumerate(outputs)]
    with torch.no_grad():
        found = backward(context, *given)
    targets, returned = _paired(function, args, needs, found)
    made = gradients.given(
        [outputs[i] for i in places],
        [marks[i][0] for i in places],
        targets,
        returned,
        f"the backward pass of `{function.__name__}`",
    )
    for i, value in zip(places, made, strict=True):
        outputs[i] = value
    return type(output)(outputs) if isinstance(output, (tuple, list)) else outputs[0]


def _is_differentiable(item: Any, context: _Context) -> bool:
    if not isinstance(item, torch.Tensor) or not item.is_floating_point():
        return False
    return not any(item is one for one in context.non_differentiable)


def _absent(item: Any, context: _Context) -> torch.Tensor | None:
    """Return the gradient of a result that has none."""
    if isinstance(item, torch.Tensor) and context.materialize_grads:
        return torch.zeros_like(item)
    return None


def _check(function: Any, context: _Context, count: int) -> None:
    if count > 1 and not context.materialize_grads:
        raise refused(
            f"`{function.__name__}` is given None for gradients of results that are not read "
            "(`set_materialize_grads(False)`), which an export cannot tell",
            "let it be given zeros",
        )


def _backward(function: Any) -> Pass | None:
    """Return the backward pass of a function, if it has one."""
    passes = ((getattr(function, name), getattr(Function, name)) for name in ("backward", "vjp"))
    return next((own for own, base in passes if own is not base), None)


def _paired(
    function: Any, args: Sequence[Any], needs: Sequence[bool], found: Any
) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the arguments that are trained, and the gradient of each."""
    returned = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(returned) < len(args) or any(one is not None for one in returned[len(args) :]):
        raise refused(
            f"the backward pass of `{function.__name__}` returns {len(returned)} gradients for "
            f"{len(args)} arguments",
            "return one for each, None for what has none",
        )
    pairs = [(a, g) for a, g, need in zip(args, returned, needs, strict=False) if need]
    return [a for a, _ in pairs], [g for _, g in pairs]
