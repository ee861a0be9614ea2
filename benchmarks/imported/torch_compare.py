"""Compares imported modules with PyTorch: outputs, loss, gradients, and what is trained.

Used by `torch_models.py` and the tests of the frontend. Needs `torch`.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from compared import Array, difference, least_of, run
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

import shardwright
from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.torch import Imported, import_module
from shardwright.ir.graph import Graph
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate


class WideFloats(TorchFunctionMode):
    """Replaces float32 by float64 in casts that a module writes out.

    Models of transformers compute normalizations, rotations and losses in float32, whatever the
    type of their parameters; a comparison in float64 needs them in float64. PyTorch's derivative of
    `hardsigmoid` takes a sixth in float32, also in float64, so that is written out.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function with other types."""
        if func is torch.Tensor.float:
            return args[0].double() if args[0].is_floating_point() else args[0].to(torch.float64)
        if func is torch.nn.functional.hardsigmoid:
            return torch.nn.functional.relu6(args[0] + 3) / 6
        wide = pytree.tree_map(_wide, (args, kwargs or {}))
        return func(*wide[0], **wide[1])


def _wide(item: Any) -> Any:
    return torch.float64 if item is torch.float32 else item


class Wide(torch.nn.Module):
    """A module in float64, with the casts in it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with wide casts."""
        with WideFloats():
            return self.module(*args, **kwargs)


def arrays_of(imported: Imported, inputs: Any) -> dict[str, Array]:
    """Return the inputs of a module by their names in the program."""
    return fed(imported.graph, inputs)


def fed(graph: Graph, inputs: Any) -> dict[str, Array]:
    """Return the inputs that a program takes by their names in it, in the order of the module's."""
    names = [value.name for value in graph.inputs]
    if isinstance(inputs, Mapping) and len(names) < len(inputs):
        inputs = [inputs[name] for name in names]  # some are constants of the program
    tensors = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return dict(zip(names, (t.detach().numpy() for t in tensors), strict=True))


def called(module: torch.nn.Module, inputs: Any) -> Any:
    """Return what a module returns."""
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)


def first_of(outputs: Any) -> torch.Tensor:
    """Return the first output."""
    return pytree.tree_leaves(outputs)[0]


def outputs_differ(module: torch.nn.Module, inputs: Any) -> float:
    """Return the largest difference of all outputs that are tensors."""
    imported = import_module(module, inputs, loss="none", outputs=True)
    with torch.no_grad():
        right = [t for t in pytree.tree_leaves(called(module, inputs)) if torch.is_tensor(t)]
    names = list(imported.graph.outputs)
    found = run(imported.graph, imported.initial, arrays_of(imported, inputs), names)
    pairs = zip(names, right, strict=True)
    return max(
        difference(found[n], t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy())
        for n, t in pairs
    )


@dataclass
class Gradients:
    """What a training step of a module is compared in.

    Parameters
    ----------
    loss, gradient : float
        Largest relative difference of the loss, and of the gradients.
    missing : list of str
        Parameters of the module with a gradient in PyTorch that the program does not train.
    extra : list of str
        Trained parameters of the program that the module does not have.
    imported : Imported
        The program.
    """

    loss: float
    gradient: float
    missing: list[str]
    extra: list[str]
    imported: Imported


def gradients_of(module: torch.nn.Module) -> dict[str, Array]:
    """Return gradients of parameters that have elements; complex ones as pairs of real numbers."""
    named = module.named_parameters()
    found = {n: p.grad for n, p in named if p.grad is not None and p.numel()}
    found = {n: g.to_dense() if g.is_sparse else g for n, g in found.items()}
    return {
        n: (torch.view_as_real(g.resolve_conj()) if g.is_complex() else g).numpy()
        for n, g in found.items()
    }


def gradients_differ(
    module: torch.nn.Module, inputs: Any, imported: Imported | None = None
) -> Gradients:
    """Return how the loss and all gradients of a program of one device differ from autograd's."""
    imported = import_module(module, inputs) if imported is None else imported
    module.zero_grad()
    loss = first_of(called(module, inputs))
    loss.backward()  # type: ignore[no-untyped-call]
    right = gradients_of(module)
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    trained = {p.name for p in imported.graph.parameters if p.trainable}
    names = {n: gradient_name(n) for n in right if n in trained}
    wanted = [graph.outputs[0], *(g for g in names.values() if g in graph.values)]
    found = run(graph, imported.initial, arrays_of(imported, inputs), wanted)
    least = least_of(right)
    # A parameter that no gradient reaches has zeros in PyTorch; a plan says that it is not updated.
    worst = [
        difference(found.get(g, np.zeros_like(right[n])), right[n], least) for n, g in names.items()
    ]
    return Gradients(
        difference(found[graph.outputs[0]], loss.detach().numpy()),
        max(worst, default=0.0),
        sorted(set(right) - trained),
        sorted(trained - {n for n, _ in module.named_parameters()}),
        imported,
    )


def on_ranks(
    module: torch.nn.Module, inputs: Any, devices: int, **options: Any
) -> tuple[float, float]:
    """Return how loss and gradients of a plan for several devices differ from autograd's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = shardwright.compile(module, devices, example_inputs=inputs, **options).plan
    module.zero_grad()
    loss = first_of(called(module, inputs))  # after the import: it may update buffers
    loss.backward()  # type: ignore[no-untyped-call]
    program = plan.program
    right = gradients_of(module)
    names = {n: gradient_name(n) for n in right if gradient_name(n) in program.values}
    wanted = [program.outputs[0], *names.values()]
    found = run(program, plan.initial, fed(program, inputs), wanted, plan.mesh)
    least = least_of(right)
    worst = [difference(found[g], right[n], least) for n, g in names.items()]
    return difference(found[program.outputs[0]], loss.detach().numpy()), max(worst)
