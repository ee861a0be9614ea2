"""The parameters of a module and the states of its optimizer, in the parts that a plan gives them.

module = MyModule()                    # on every process, with the same weights
trainer = Trainer(module)
loss = trainer.step(ids=ids, labels=labels)
trainer.write_back()                   # whole tensors, into the module of every process
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from .compiling import CompiledProgram, check_compiler
from .mesh import Mesh
from .pointwise import _on
from .timing import OperatorTimes
from .updates import _writing_over

_CONSTANTS = Path(__file__).with_name("constants.npz")


class Trainer:
    """A training step of a plan, with its parameters.

    Parameters
    ----------
    module : Module or mapping of str to Tensor
        The module that was compiled, or whole tensors by the names of `program.PARAMETERS`. Every
        process has the same.
    device : str
        Where the slices are, and where the program runs.
    compile : bool
        Whether `torch.compile` compiles the program, each of its equal layers once.

    Attributes
    ----------
    state : dict of str to Tensor
        The slices of this process: parameters, buffers and optimizer states.
    mesh : Mesh
        The ranks; `mesh.counts` has the number of collectives of each kind so far.
    outputs : dict of str to Tensor
        The outputs of the last step.
    program : module
        The module `program` of the package.
    """

    program: ClassVar[Any]

    def __init__(
        self,
        module: nn.Module | Mapping[str, Tensor],
        device: str = "cpu",
        *,
        compile: bool = False,
    ) -> None:
        self.device = torch.device(device)
        if compile:
            check_compiler(self.device)
        self.outputs: dict[str, Tensor] = {}
        self._module = module
        self._constants = _constants()
        wholes = {name: self._first(name) for name in self.program.PARAMETERS}
        self.mesh = self._make_mesh()
        self.state = {n: self._slice(n, whole) for n, whole in wholes.items() if self._has(n)}
        own = self._functions
        self._compiled = CompiledProgram(own, self.mesh) if compile else None
        self._run = self._compiled or own

    def _make_mesh(self) -> Mesh:
        return Mesh(self.program.MESH, self.program.MICRO_BATCHES, self.program.GROUPS)

    def _has(self, name: str) -> bool:
        """Return whether this process has a part of a parameter or output."""
        return True

    @property
    def _functions(self) -> Any:
        """The module with the functions that this process runs."""
        return self.program

    def _first(self, name: str) -> Tensor:
        """Return a whole parameter, buffer or state before the first step."""
        dtype, shape, _, role, initial = self.program.PARAMETERS[name]
        if role == "state":
            whole = torch.full((), _number(initial), dtype=getattr(torch, dtype)).expand(shape)
        else:
            whole = self._given(name)
        _check_tensor(name, whole, dtype, shape)
        return whole.detach()

    def _given(self, name: str) -> Tensor:
        found = _tensor_of(self._module, name)
        if found is None and name in self._constants:
            return self._constants[name]
        if found is None:
            raise ValueError(f"the module has no parameter or buffer `{name}`, the plan has one")
        return found

    def _slice(self, name: str, whole: Tensor) -> Tensor:
        """Return the slice of this process."""
        if whole.is_meta:
            raise ValueError(f"`{name}` is on the device `meta`, it has no value to begin with")
        return self.mesh.own(whole, self.program.PARAMETERS[name][2]).to(self.device).clone()

    # Steps

    def gradients(self, **inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the slices of gradients, and of other values that `update` reads.

        Inputs are whole tensors, the same on every process, which takes its part of them.
        """
        self._check(inputs)
        with torch.no_grad(), _on(self.device):
            own = {name: tensor.to(self.device) for name, tensor in inputs.items()}
            run = self._run.forward_backward
            outputs, gradients, others = run(self.mesh, self.state, own)
            wholes = {n: self._whole_output(n, outputs.get(n)) for n in self.program.OUTPUTS}
            self.outputs = wholes
        return gradients, others

    def update(self, gradients: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
        """Run the optimizer."""
        with torch.no_grad(), _on(self.device):
            self.state |= self._run.update(self.mesh, self.state, gradients, others)

    def step(self, **inputs: Tensor) -> Tensor:
        """Run a training step on whole inputs, and return its first output: the loss."""
        gradients, others = self.gradients(**inputs)
        with _writing_over(gradients.values(), others.values()):
            self.update(gradients, others)
        return next(iter(self.outputs.values()))

    def operator_times(self, steps: int = 5, **inputs: Tensor) -> str:
        """Run steps, and return the time of each operator: what `calibrate --csv` reads.

        Of all steps, and of all micro-batches of a step, the least time counts.
        """
        if self._compiled is not None:
            raise ValueError(
                "compiled operators have no times of their own: leave out `compile=True`"
            )
        times = OperatorTimes(self._functions, self.device)
        for _ in range(steps):
            with times.of_a_step():
                self.step(**inputs)
        return "\n".join([*times.rows(self.program.WORK), ""])

    def _check(self, inputs: Mapping[str, Tensor]) -> None:
        expected = self.program.INPUTS
        if inputs.keys() != expected.keys():
            raise ValueError(f"the inputs are {sorted(inputs)}, expected {sorted(expected)}")
        for name, (dtype, shape, _) in expected.items():
            _check_tensor(name, inputs[name], dtype, shape)

    def _whole_output(self, name: str, part: Tensor | None) -> Tensor:
        assert part is not None
        _, shape, splits = self.program.OUTPUTS[name]
        return self.mesh.whole(part, shape, splits)

    # Whole tensors

    def whole(self, name: str, part: Tensor | None = None) -> Tensor:
        """Return a whole parameter, buffer or state; or a tensor in the layout of one, a gradient.

        Every process calls it.
        """
        _, shape, splits, _, _ = self.program.PARAMETERS[name]
        return self.mesh.whole(self.state[name] if part is None else part, shape, splits)

    def write_back(self) -> None:
        """Put whole parameters and buffers into the module. Every process calls it."""
        for name, (*_, role, _) in self.program.PARAMETERS.items():
            found = None if role == "state" else _tensor_of(self._module, name)
            if found is not None:
                whole = self.whole(name)
                with torch.no_grad():
                    found.copy_(whole)

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters, buffers and states as DTensors, for distributed checkpoints.

        Those that this process has; every process calls it. Where no axis can split them they are
        plain tensors, and so are those with uneven parts, which are whole: DTensor cuts them in
        other places.
        """
        mesh, placements = self._device_mesh, self.program.PLACEMENTS
        held = {}
        for name, part in self.state.items():
            _, shape, splits, _, _ = self.program.PARAMETERS[name]
            if mesh is None or name not in placements:
                held[name] = self.mesh.whole(part, shape, splits)
            else:
                held[name] = DTensor.from_local(part, mesh, placements[name], run_check=False)
        return held

    @cached_property
    def _device_mesh(self) -> DeviceMesh | None:
        """Return the processes along the axes that split parameters; None without any."""
        return device_mesh_of(self.device, self.program.MESH) if self.program.MESH else None

    def load_state_dict(self, tensors: Mapping[str, Any]) -> None:
        """Take the slices of DTensors, or whole tensors, by name; all of them, or none.

        Names that are left out stay as they are, and parameters of other stages are passed over.
        """
        parts = {}
        for name, tensor in tensors.items():
            if name not in self.program.PARAMETERS:
                raise ValueError(f"the plan has no parameter, buffer or state `{name}`")
            dtype, shape, splits, _, _ = self.program.PARAMETERS[name]
            _check_tensor(name, tensor, dtype, shape)
            if self._has(name):
                parts[name] = self._part_of(name, tensor, splits).to(self.device).clone()
        self.state |= parts

    def _part_of(self, name: str, tensor: Tensor, splits: Any) -> Tensor:
        """Return the slice of this process, of a whole tensor or a DTensor in any layout."""
        if not isinstance(tensor, DTensor):
            return self.mesh.own(tensor, splits)
        mesh = self._device_mesh
        own = mesh is not None and tensor.device_mesh == mesh
        if own and tensor.placements == self.program.PLACEMENTS.get(name):
            return tensor.to_local()
        return self.mesh.own(tensor.full_tensor(), splits)


def _check_tensor(name: str, tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != getattr(torch, dtype):
        raise ValueError(
            f"`{name}` is {tensor.dtype} {tuple(tensor.shape)}, the plan expects {dtype} {shape}"
        )


def device_mesh_of(device: torch.device, sizes: Mapping[str, int]) -> DeviceMesh:
    """Return the mesh of PyTorch with some axes, over all processes."""
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _tensor_of(module: nn.Module | Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return a tensor of a module; a complex one as a view of its real and imaginary parts."""
    if isinstance(module, Mapping):
        found = module.get(name)
    else:
        owner, _, last = name.rpartition(".")
        try:
            found = getattr(module.get_submodule(owner), last, None)
        except AttributeError:
            return None
    if not isinstance(found, Tensor):
        return None
    return torch.view_as_real(found.detach()) if found.is_complex() else found


def _number(initial: str) -> float:
    """Return the number that a state begins with: `zeros`, or `constant(0.1)`."""
    match = re.fullmatch(r"constant\((.*)\)", initial)
    return float(match[1]) if match else {"zeros": 0.0, "ones": 1.0}[initial]


def _constants() -> dict[str, Tensor]:
    """Return what the module computes from no input, such as positions."""
    if not _CONSTANTS.exists():
        return {}
    with np.load(_CONSTANTS) as archive:
        return {name.partition(":")[2]: torch.from_numpy(archive[name]) for name in archive.files}
