"""What one device computes: the loss, gradients and updates that the ranks are compared with."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from shardwright.ir.errors import ModelError
from shardwright.ir.rounding import EQUAL
from shardwright.tools.check.contract import Contract
from shardwright.tools.check.doubles import InDoubles
from shardwright.user_files import guarded, imported

SEEDS = (0, 1)


@dataclass(frozen=True)
class Whole:
    """Values of one device: `state` and `inputs` before the step, the rest by the step.

    `after` has the parameters after the step; None where the file has no `reference_step`.
    """

    inputs: tuple[Any, ...]
    state: Mapping[str, Any]
    gradients: Mapping[str, Any]
    loss: Any
    after: Mapping[str, Any] | None


@dataclass(frozen=True)
class Reference:
    """What is to be known of a file without running its ranks."""

    mesh: Mapping[str, int]
    loss: Mapping[str, str]
    names: Mapping[str, str]
    wholes: tuple[Whole, ...]


def start(path: Path) -> partial[Reference]:
    """Return the function that reads a file and runs its reference, for a process of its own."""
    return partial(_reference, path)


def same(found: Any, expected: Any, others: float = 1.0) -> bool:
    """Whether values agree, relative to the largest expected one.

    A gradient that is zero but for rounding has the rounding of larger ones that cancel in it:
    `others` is the size of those beside it, of which no value counts as less than a millionth.
    """
    if not expected.numel():
        return True
    scale = max(float(expected.abs().max()), 1e-6 * max(others, 1.0))
    return (
        bool(torch.isfinite(found).all()) and float((found - expected).abs().max()) <= EQUAL * scale
    )


def _reference(path: Path, _: Any) -> Reference:
    with imported(path) as module, InDoubles():
        contract = Contract.read(module, path)
        wholes = tuple(guarded(partial(_whole, module, s, path), path) for s in SEEDS)
        contract.check_used(wholes[0].state, len(wholes[0].inputs), path)
    return Reference(contract.mesh, contract.loss, contract.names, wholes)


def _whole(module: ModuleType, seed: int, path: Path) -> Whole:
    torch.manual_seed(seed)
    network = module.reference()
    if not isinstance(network, torch.nn.Module):
        text = f"`reference` must give a module, it gives {type(network).__name__}"
        raise ModelError(text, str(path))
    network = network.double()
    given = module.inputs()
    if not isinstance(given, tuple | list) or not all(isinstance(x, torch.Tensor) for x in given):
        raise ModelError("`inputs` must give a tuple of tensors", str(path))
    inputs = tuple(value.double() if value.is_floating_point() else value for value in given)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    again = deepcopy(network)
    whole = _step(module, network, inputs, path)
    torch.manual_seed(seed + 100)
    other = _step(module, again, inputs, path)
    if not (same(other.loss, whole.loss) and _all_same(other.gradients, whole.gradients)):
        raise ModelError("the reference draws random numbers", str(path), "leave out dropout")
    for name, gradient in whole.gradients.items():
        moved = whole.after is not None and not torch.equal(whole.after[name], whole.state[name])
        if not gradient.any() and not moved:
            text = f"the gradient of `{name}` is zero everywhere: nothing can be told by it"
            raise ModelError(text, str(path), "give inputs that use every parameter")
    return whole


def _all_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(same(found[name], value) for name, value in expected.items())


def _step(module: ModuleType, network: Any, inputs: tuple[Any, ...], path: Path) -> Whole:
    parameters = dict(network.named_parameters())
    state = {n: p.detach().clone() for n, p in parameters.items()}
    step = getattr(module, "reference_step", None)
    loss = (step or forward_and_backward)(network, *(value.clone() for value in inputs))
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not torch.isfinite(loss).all():
        name = "reference_step" if step else "reference"
        raise ModelError(f"`{name}` must give a finite loss of one element", str(path))
    gradients = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in parameters.items()
        if p.requires_grad
    }
    after = {n: p.detach().clone() for n, p in parameters.items()} if step else None
    return Whole(inputs, state, gradients, loss.detach().reshape(()).clone(), after)


def forward_and_backward(module: Any, *inputs: Any) -> Any:
    """Run the step of a file that has none of its own."""
    loss = module(*inputs)
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        loss.backward()
    return loss
