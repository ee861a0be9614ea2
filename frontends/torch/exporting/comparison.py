"""Compares an export with its module on the example inputs.

Some modules compute something else while they are traced, as they ask whether they are, and an
export of such a module is another function.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from shardwright.frontends.torch.exporting.choices import COMPUTED
from shardwright.frontends.torch.private import OpOverload, tree_leaves
from shardwright.ir.errors import ModelError

# Most elements of the parameters of a module that is compared: twice as many take twice as long,
# of two forward passes of the example (about a second each on one core for 1,000 tokens).
_MOST_ELEMENTS = 3 * 10**7


def refuse_different(
    program: ExportedProgram, module: torch.nn.Module, arguments: Any, keywords: Any
) -> None:
    """Refuse an export whose floating-point outputs are not those of the module.

    Modules that draw random numbers, lack elements, compute gradients of their own, or are large
    are not compared.

    Raises
    ------
    ModelError
        If an output differs by more than half of the digits of its type, relative to its largest
        element.
    """
    given = [one for one in tree_leaves((arguments, keywords)) if _is_tensor(one)]
    if not _can_be_run(program, [*module.parameters(), *module.buffers(), *given]):
        return
    with as_before(module):
        try:
            found = _outputs(program, arguments, keywords)
            expected = [t for t in tree_leaves(module(*arguments, **keywords)) if _is_tensor(t)]
        except Exception:  # PyTorch raises errors of many types; who runs the program gets them
            return
    for number, (one, right) in enumerate(zip(found, expected, strict=False)):
        difference = _difference(one, right)
        if difference > math.sqrt(torch.finfo(right.dtype).eps if _is_float(right) else 1.0):
            raise ModelError(
                f"`torch.export` traces another function than the module computes: output {number} "
                f"differs by {difference:.0e} of its largest element on the example inputs",
                hint="let the module compute the same while it is traced: something in it asks "
                "`torch.compiler.is_compiling`, `is_exporting`, or for the kind of a tensor",
            )


@contextmanager
def as_before(module: torch.nn.Module) -> Iterator[None]:
    """Leave the buffers of a module and the random numbers as they were."""
    buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        with torch.no_grad():
            for name, buffer in buffers.items():
                module.get_buffer(name).copy_(buffer)


def _can_be_run(program: ExportedProgram, tensors: list[Tensor]) -> bool:
    if any(t.device.type != "cpu" for t in tensors):
        return False
    if sum(t.numel() for t in tensors) > _MOST_ELEMENTS:
        return False
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    return not any(_draws(node) or _stands(node) for graph in graphs for node in graph.nodes)


def _stands(node: fx.Node) -> bool:
    """Return whether an operator only stands for something, as a mark of a gradient does."""
    name = str(node.target)
    return name.startswith("shardwright.") and not name.startswith(COMPUTED)


def _draws(node: fx.Node) -> bool:
    """Return whether a node draws random numbers; attention does for its dropout alone."""
    if not isinstance(node.target, OpOverload):
        return False
    if str(node.target).startswith("aten.scaled_dot_product_attention."):
        return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    return torch.Tag.nondeterministic_seeded in node.target.tags


def _outputs(program: ExportedProgram, arguments: Any, keywords: Any) -> list[Tensor]:
    """Return what an export returns to the user, and leave its tensors as they are."""
    inputs = iter(tree_leaves((arguments, keywords)))
    stored = {**program.state_dict, **program.constants}
    given = [
        next(inputs) if spec.kind is InputKind.USER_INPUT else stored[str(spec.target)]
        for spec in program.graph_signature.input_specs
    ]
    copied = [one.clone() if _is_tensor(one) else one for one in given]
    results = fx.Interpreter(program.graph_module).run(*copied)
    pairs = zip(results, program.graph_signature.output_specs, strict=True)
    shown = [one for one, spec in pairs if spec.kind is OutputKind.USER_OUTPUT]
    return [one for one in shown if _is_tensor(one)]


def _difference(found: Tensor, right: Tensor) -> float:
    """Return the largest difference relative to the largest element, zero where none is known."""
    if not (_is_float(right) and found.shape == right.shape and right.numel()):
        return 0.0
    is_finite = found.isfinite() & right.isfinite()
    distance = (found - right).detach().abs()[is_finite]
    if not distance.numel():
        return 0.0
    largest = right.detach().abs()[is_finite].max().item()
    return float(distance.max().item() / max(largest, 1e-30))


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
