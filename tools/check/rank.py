"""What one rank does: it builds its module, takes the reference's values, and runs the step.

A rank answers with the part that it holds of every value: the elements, their positions in the
whole, and, where a DTensor says that they are terms of a sum, the ranks that hold the others.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from shardwright.ir.errors import ModelError
from shardwright.tools.check.alone import Whole, forward_and_backward
from shardwright.tools.check.contract import Contract
from shardwright.tools.check.watch import Conversion, Installed, Mend, Trace, Watch
from shardwright.user_files import guarded, imported


@dataclass(frozen=True)
class Part:
    """What a rank holds of a value.

    Attributes
    ----------
    value, positions : Any
        Elements, and where each is in the flattened whole.
    terms : tuple[int, ...]
        Ranks whose elements are to be added to give the value, this one among them.
    divisor : int
        By what that sum is to be divided.
    """

    value: Any
    positions: Any
    terms: tuple[int, ...]
    divisor: int = 1


@dataclass(frozen=True)
class Answer:
    """What a rank has after a step, by the names of its own parameters, and what it did."""

    loss: Part
    gradients: Mapping[str, Part]
    after: Mapping[str, Part]
    lines: Mapping[str, int]
    operators: tuple[tuple[int, str, int], ...]
    reductions: tuple[tuple[int, int], ...]
    conversions: tuple[Conversion, ...]
    pending: tuple[tuple[int, str], ...]
    rounds: bool


def start(path: Path, rank: int, size: int, meeting: str) -> Callable[[Any], Answer]:
    """Join the ranks, load the file, and return the function that runs a step."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=300),
    )
    installed = Installed()
    # The file and its neighbours stay loaded while this process lives.
    module = imported(path).__enter__()
    contract = Contract.read(module, path)
    shape = contract.mesh
    mesh = init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    return _Rank(path, rank, module, contract, mesh, installed)


class _Rank:
    def __init__(
        self,
        path: Path,
        rank: int,
        module: ModuleType,
        contract: Contract,
        mesh: Any,
        installed: Installed,
    ) -> None:
        self.path, self.rank, self.module, self.contract = path, rank, module, contract
        self.mesh, self.installed = mesh, installed
        self.place = contract.place(rank)

    def __call__(self, request: tuple[Whole, Mend | None]) -> Answer:
        whole, mend = request
        trace = self.installed.trace = Trace(self.path, mend, self.mesh)
        with Watch(trace):
            answer = guarded(partial(self._step, whole, trace), self.path)
        self.installed.trace = None
        assert isinstance(answer, Answer)
        return answer

    def _step(self, whole: Whole, trace: Trace) -> Answer:
        module = self.module.parallel(self.mesh)
        if not isinstance(module, torch.nn.Module):
            text = f"`parallel` must give a module, it gives {type(module).__name__}"
            raise ModelError(text, str(self.path))
        module = module.double()
        parameters = dict(module.named_parameters(remove_duplicate=False))
        positions = {name: self._positions(name, p, whole) for name, p in parameters.items()}
        for name, parameter in parameters.items():
            self._fill(name, parameter, whole, positions[name])
        trace.watch_calls(module)
        trace.begin()
        inputs = self._inputs(whole)
        if hasattr(self.module, "step"):
            loss = self.module.step(module, self.mesh, *inputs)
        else:
            loss = forward_and_backward(module, *inputs)
        self._check_loss(loss)
        gradients, after = {}, {}
        for name, parameter in parameters.items():
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            gradients[name] = self._part(gradient, positions[name])
            if whole.after is not None:
                after[name] = self._part(parameter, positions[name])
        return Answer(
            self._part(loss, torch.zeros(loss.shape, dtype=torch.int64)),
            gradients,
            after,
            {name: trace.line_of(value) for name, value in parameters.items()},
            tuple(trace.operators),
            tuple(trace.reductions),
            tuple(trace.conversions),
            tuple(place for place in trace.pending.values() if place[0]),
            trace.rounds,
        )

    def _inputs(self, whole: Whole) -> list[Any]:
        layouts = self.contract.inputs
        return [
            self.contract.local(value, layouts[i] if i < len(layouts) else {}, self.place).clone()
            for i, value in enumerate(whole.inputs)
        ]

    def _positions(self, name: str, parameter: Any, whole: Whole) -> Any:
        """Return the positions of what a layout gives to a rank; of a DTensor, to all its ranks."""
        known = self.contract.known(name)
        if known not in whole.state:
            text = f"parameter `{name}` of the ranks is not one of the reference's"
            raise ModelError(text, str(self.path), "name it in `NAMES`")
        shape = whole.state[known].shape
        positions = self.contract.local(
            torch.arange(prod(shape)).reshape(shape), self.contract.layout(name), self.place
        )
        if getattr(positions, "dtype", None) is not torch.int64:
            text = f"the layout of `{name}` must give a part of the tensor that it is given"
            raise ModelError(text, str(self.path), "cut it, and leave its elements as they are")
        if positions.shape != parameter.shape:
            text = f"parameter `{name}` of rank {self.rank} has shape {tuple(parameter.shape)}, "
            text += f"its layout gives {tuple(positions.shape)}"
            raise ModelError(text, str(self.path), "mend `LAYOUTS`")
        return positions

    def _fill(self, name: str, parameter: Any, whole: Whole, positions: Any) -> None:
        values = whole.state[self.contract.known(name)].flatten()
        held = self._part(parameter, positions)
        if len(held.terms) > 1:
            text = f"parameter `{name}` is a DTensor of partial sums"
            raise ModelError(text, str(self.path), "give it the placements `Shard` or `Replicate`")
        local = parameter.data
        local = local.to_local() if isinstance(local, DTensor) else local
        local.copy_(values[held.positions])

    def _check_loss(self, loss: Any) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            text = f"`step` of rank {self.rank}: expected the loss, got {type(loss).__name__}"
            raise ModelError(text, str(self.path))

    def _part(self, tensor: Any, positions: Any) -> Part:
        """Return what this rank holds of a tensor whose elements have positions in a whole."""
        tensor = tensor.detach()
        if not isinstance(tensor, DTensor):
            return Part(tensor.clone(), positions, (self.rank,))
        mesh, placements = tensor.device_mesh, list(tensor.placements)
        coordinates = mesh.get_coordinate()
        if coordinates is None:
            return Part(torch.zeros(0), torch.zeros(0, dtype=torch.int64), (self.rank,))
        members: list[Any] = list(coordinates)
        divisor = 1
        for dimension, placement in enumerate(placements):
            if not placement.is_partial():
                continue
            how = getattr(placement, "reduce_op", "")
            if how not in ("sum", "avg"):
                text = f"a DTensor with the placement {placement}: expected sums"
                raise ModelError(text, str(self.path), "call `redistribute` before it is returned")
            divisor *= mesh.size(dimension) if how == "avg" else 1
            members[dimension], placements[dimension] = slice(None), Replicate()
        terms = tuple(int(rank) for rank in mesh.mesh[tuple(members)].flatten())
        held = distribute_tensor(positions, mesh, placements, src_data_rank=None).to_local()
        return Part(tensor.to_local().clone(), held, terms, divisor)
