"""Transforms of functions, `torch.func.grad` and its kin, while a module is exported.

An export cannot trace the tensors that they wrap. Here a gradient is the operator of
`frontends.torch.gradients`, by copies of the arguments. A function that is mapped over samples by
`vmap` is traced apart, by PyTorch's own rules for batches, and what it does is done in the export
in its place. Inside of it the arguments of a gradient are made to differ between samples, so that
the gradient of all samples is that of each: no sample depends on the arguments of another one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardwright.frontends.torch.places import line_of_call
from shardwright.frontends.torch.private import (
    apis,
    eager_transforms,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
    untraced,
    without_functions,
)
from shardwright.ir.errors import ModelError

Function = Callable[..., Any]
Argnums = int | tuple[int, ...] | None


@contextmanager
def traced_transforms() -> Iterator[None]:
    """Trace transforms of functions, until the end of the context."""
    transforms = _Transforms(apis.vmap_impl)
    replaced = {
        "grad_impl": transforms.grad,
        "grad_and_value_impl": transforms.grad_and_value,
        "_vjp_with_argnums": transforms.vjp,
        "_jvp_with_argnums": transforms.jvp,
    }
    with ExitStack() as stack:
        for name, function in replaced.items():
            stack.enter_context(patch.object(eager_transforms, name, function))
        stack.enter_context(patch.object(apis, "vmap_impl", transforms.vmap))
        yield


class _Transforms:
    """The transforms.

    Parameters
    ----------
    original : callable
        PyTorch's own map over samples.

    Attributes
    ----------
    marks : list of Tensor
        For each map that is being traced a one that differs between its samples.
    """

    def __init__(self, original: Function) -> None:
        self.original = original
        self.marks: list[Tensor] = []

    # Gradients

    def vjp(
        self, func: Function, *primals: Any, argnums: Argnums = None, has_aux: bool = False
    ) -> Any:
        """Return what a function returns, and the function of the cotangents."""
        chosen, results, outputs, aux = self._applied(func, primals, argnums, has_aux)
        level = len(self.marks)

        def pulled(cotangents: Any, **how: Any) -> Any:
            points, ends = chosen, outputs
            if len(self.marks) > level:  # mapped over cotangents
                points, _, ends, _ = self._applied(func, primals, argnums, has_aux)
            given, structure = tree_flatten(cotangents)
            if structure != tree_flatten(results)[1]:
                raise ModelError(
                    "cotangents of a `vjp` do not have the structure of its results", line_of_call()
                )
            return _gradients(ends, points, given)

        return (results, pulled, aux) if has_aux else (results, pulled)

    def grad_and_value(
        self, func: Function, argnums: Any, has_aux: bool, args: Any, kwargs: Any
    ) -> Any:
        """Return the gradient of a function, and its value."""

        def of_arguments(*given: Any) -> Any:
            return func(*given, **kwargs)

        chosen, results, outputs, aux = self._applied(of_arguments, args, argnums, has_aux)
        if len(outputs) != 1 or outputs[0].dim():
            shapes = [tuple(one.shape) for one in outputs]
            raise ModelError(
                f"`torch.func.grad` of a function with results of the shapes {shapes}",
                line_of_call(),
                "return a scalar",
            )
        found = _gradients(outputs, chosen, [torch.ones_like(outputs[0])])
        return found, ((results, aux) if has_aux else results)

    def grad(self, func: Function, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
        """Return the gradient of a function."""
        found, value = self.grad_and_value(func, argnums, has_aux, args, kwargs)
        return (found, value[1]) if has_aux else found

    def jvp(
        self,
        func: Function,
        primals: Any,
        tangents: Any,
        argnums: Argnums = None,
        *,
        strict: bool = False,
        has_aux: bool = False,
    ) -> Any:
        """Return what a function returns, and its tangents.

        They are the gradient of the gradient by its cotangents, in which it is linear.
        """
        if not isinstance(primals, tuple):
            raise ModelError("the primals of a `jvp` are no tuple", line_of_call())
        chosen, results, outputs, aux = self._applied(func, primals, argnums, has_aux)
        cotangents = [self._apart(torch.zeros_like(one)) for one in outputs]
        pulled = tree_leaves(_gradients(outputs, chosen, cotangents))
        moved = _emitted(pulled, cotangents, tree_leaves(tangents))
        found = tree_unflatten(moved, tree_flatten(results)[1])
        return (results, found, aux) if has_aux else (results, found)

    def _applied(
        self, func: Function, primals: Any, argnums: Argnums, has_aux: bool
    ) -> tuple[Any, Any, list[Tensor], Any]:
        """Return copies of the chosen arguments, and what a function returns of them."""
        places = range(len(primals)) if argnums is None else argnums
        places = (places,) if isinstance(places, int) else tuple(places)
        given, many = list(primals), len(primals)
        for place in places:
            if not -many <= place < many:
                raise ModelError(f"`argnums` has {place} of {many} arguments", line_of_call())
            given[place] = tree_map(self._apart, primals[place])
        with patch.object(Tensor, "register_hook", _refused_hook):
            made = func(*given)
        results, aux = made if has_aux else (made, None)
        chosen = given[argnums] if isinstance(argnums, int) else tuple(given[p] for p in places)
        return chosen, results, tree_leaves(results), aux

    def _apart(self, x: Any) -> Any:
        """Return a tensor as one of its own, that differs between samples."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        if not self.marks:
            return x.clone()
        for mark in self.marks:
            x = x * mark.to(x.dtype)
        return x

    # Maps

    def vmap(
        self,
        func: Function,
        in_dims: Any,
        out_dims: Any,
        randomness: str,
        chunk_size: int | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Return what a function returns for all samples."""
        axes = in_dims if isinstance(in_dims, (tuple, list)) else (in_dims,) * len(args)

        def marked(mark: Tensor, *given: Any, **named: Any) -> Any:
            self.marks.append(mark)
            try:
                return func(*given, **named)
            finally:
                self.marks.pop()

        def mapped(mark: Tensor, *given: Any, **named: Any) -> Any:
            how = ((0, *axes), out_dims, randomness, None)
            return self.original(marked, *how, mark, *given, **named)

        mark = torch.ones(_size(axes, args))
        if self.marks:  # inside of another map, which is being traced
            return mapped(mark, *args, **kwargs)
        return _replayed(mapped, (mark, *args), kwargs)


def _size(axes: Sequence[Any], args: Sequence[Any]) -> int:
    """Return the number of samples; where it is not clear, PyTorch says why."""
    for axis, argument in zip(axes, args, strict=False):
        tensors = [one for one in tree_leaves(argument) if isinstance(one, Tensor)]
        found = tree_leaves(axis, is_leaf=lambda one: one is None)
        chosen = found * len(tensors) if len(found) == 1 else found
        for one, tensor in zip(chosen, tensors, strict=False):
            if isinstance(one, int) and tensor.dim():
                return int(tensor.shape[one])
    return 1


def _replayed(function: Function, args: Any, kwargs: Any) -> Any:
    """Trace a function apart, and run what was traced where the export sees it."""
    given, structure = tree_flatten((args, kwargs))
    tensors = [one for one in given if isinstance(one, Tensor)]
    ends: list[Any] = []

    def flat(*chosen: Tensor) -> Any:
        left = iter(chosen)
        whole = [next(left) if isinstance(one, Tensor) else one for one in given]
        again, named = tree_unflatten(whole, structure)
        found, shape = tree_flatten(function(*again, **named))
        ends[:] = [shape]
        return found

    with untraced(), without_functions(), sdpa_kernel(SDPBackend.MATH), _told_of_constants():
        traced = make_fx(flat)(*tensors)
    return tree_unflatten(list(traced.forward(*tensors)), ends[0])


@contextmanager
def _told_of_constants() -> Iterator[None]:
    """Let what is a constant to gradients be told in what is traced apart, or refused."""

    def enter(mode: Any) -> None:
        raise _switched_off()

    def switch(mode: Any, is_on: bool) -> None:
        if not is_on:
            raise _switched_off()
        original(mode, is_on)

    def stopped(x: Tensor) -> Any:
        return torch.ops.shardwright.stopped(x)

    def stop(x: Tensor) -> None:
        raise ModelError(
            "`detach_` inside of a function that `torch.func.vmap` maps cannot be imported",
            line_of_call(),
            "use `detach`",
        )

    original = torch.set_grad_enabled.__init__
    with (
        patch.object(torch.no_grad, "__enter__", enter),
        patch.object(torch.set_grad_enabled, "__init__", switch),
        patch.object(Tensor, "detach", stopped),
        patch.object(torch, "detach", stopped),
        patch.object(Tensor, "detach_", stop),
    ):
        yield


def _refused_hook(*_: Any) -> None:
    raise ModelError(
        "a hook inside of a function that `torch.func` differentiates, which acts on that "
        "gradient alone,",
        line_of_call(),
        "use `torch.autograd.grad`",
    )


def _switched_off() -> ModelError:
    return ModelError(
        "gradients are switched off inside of a function that `torch.func.vmap` maps",
        line_of_call(),
        "use `detach`",
    )


def _gradients(ends: Sequence[Tensor], points: Any, cotangents: Sequence[Tensor]) -> Any:
    """Return the gradients of results by arguments, in the structure of those."""
    given, structure = tree_flatten(points)
    return tree_unflatten(_emitted(ends, given, cotangents), structure)


def _emitted(
    ends: Sequence[Tensor], points: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor]:
    found: list[Tensor] = torch.ops.shardwright.gradient(
        list(ends), list(points), list(cotangents), True, True
    )
    return found
