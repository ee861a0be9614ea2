"""The parameters of a model and the states of its optimizer, on the devices of a plan.

trainer = Trainer(params)              # whole arrays, in a tree or by name
loss = trainer.step(x, labels)         # whole inputs, in their order or by name
params = trainer.parameters()          # the tree, with the arrays after the step
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, tree_util

from .mesh import Mesh

_CONSTANTS = Path(__file__).with_name("constants.npz")
Arrays = dict[str, Array]


class Trainer:
    """A training step of a plan, with its parameters.

    Parameters
    ----------
    parameters : tree
        Whole arrays: the first argument of the function that was compiled, or a dictionary by the
        names of `program.PARAMETERS`.
    devices : sequence of Device, optional
        The devices, by default the first ones that JAX has.

    Attributes
    ----------
    state : dict of str to Array
        Parameters, buffers and optimizer states by name: whole arrays, each device has its part.
    mesh : Mesh
        The devices.
    outputs : dict of str to Array
        The outputs of the last step.
    program : module
        The module `program` of the package.
    """

    program: ClassVar[Any]

    def __init__(self, parameters: Any, devices: Sequence[Any] | None = None) -> None:
        self.mesh = Mesh(self.program.MESH, self.program.MICRO_BATCHES, devices)
        self.outputs: Arrays = {}
        self._tree = parameters
        leaves = tree_util.tree_leaves_with_path(parameters)
        given = {_name_of(path): leaf for path, leaf in leaves}
        constants = _constants()
        self.state = {name: self._first(name, given, constants) for name in self.program.PARAMETERS}
        self._gradients = self._compiled(self._local_gradients, (self._of_outputs(), None))
        self._step = self._compiled(self._local_step, (self._of_outputs(), self._of_state()), True)

    def _first(self, name: str, given: Mapping[str, Any], constants: Mapping[str, Any]) -> Array:
        """Return a parameter, buffer or state before the first step."""
        dtype, shape, _, role, initial = self.program.PARAMETERS[name]
        if role == "state":
            whole: Any = np.full(shape, _number(initial), _dtype(dtype))
        elif name in given or name in constants:
            whole = given.get(name, constants.get(name))
        else:
            raise ValueError(f"the parameters lack `{name}`, which the plan has")
        return self._own(name, whole)

    def _own(self, name: str, whole: Any) -> Array:
        """Return a parameter, buffer or state on the devices: a copy, since a step donates it."""
        dtype, shape, splits, _, _ = self.program.PARAMETERS[name]
        own = self._placed(name, whole, dtype, shape, splits, self.mesh.sharding(splits))
        return jnp.copy(own)

    def _placed(
        self, name: str, whole: Any, dtype: str, shape: Any, splits: Any, sharding: Any
    ) -> Array:
        """Return an array on the devices."""
        found = whole if isinstance(whole, Array) else np.asarray(whole)
        kind = _dtype(dtype)
        if tuple(found.shape) != shape or jax.dtypes.canonicalize_dtype(found.dtype) != kind:
            raise ValueError(
                f"`{name}` is {found.dtype} {tuple(found.shape)}, the plan expects {dtype} {shape}"
            )
        unfolded = self.mesh.unfold(found, splits)
        if not isinstance(found, Array):
            unfolded = unfolded.astype(kind)
        return jax.device_put(unfolded, sharding)

    # The step of one device, and of all

    def _local_gradients(self, state: Arrays, inputs: Arrays) -> tuple[Arrays, Arrays]:
        outputs, gradients, _ = self.program.forward_backward(self.mesh, state, inputs)
        return outputs, gradients

    def _local_step(self, state: Arrays, inputs: Arrays) -> tuple[Arrays, Arrays]:
        outputs, gradients, others = self.program.forward_backward(self.mesh, state, inputs)
        return outputs, state | self.program.update(self.mesh, state, gradients, others)

    def _of_state(self) -> dict[str, Any]:
        return {name: self.mesh.spec(row[2]) for name, row in self.program.PARAMETERS.items()}

    def _of_outputs(self) -> dict[str, Any]:
        return {name: self.mesh.spec(row[2]) for name, row in self.program.OUTPUTS.items()}

    def _compiled(self, local: Any, results: tuple[Any, Any], donates: bool = False) -> Any:
        """Return a function of the parts of a device as one of whole arrays, compiled by XLA."""
        unfolded = self.mesh.unfolded
        inputs = {n: self.mesh.spec(unfolded(row[2])) for n, row in self.program.INPUTS.items()}
        gradients = {n: self._of_state()[n] for n in self.program.GRADIENTS}
        results = (results[0], gradients if results[1] is None else results[1])
        mapped = jax.shard_map(
            local,
            mesh=self.mesh.devices,
            in_specs=(self._of_state(), inputs),
            out_specs=results,
            check_vma=False,  # the program says itself what is reduced, and what is a copy
        )
        return jax.jit(mapped, donate_argnums=(0,) if donates else ())

    # Steps

    def gradients(self, *inputs: Any, **by_name: Any) -> Arrays:
        """Return the gradients by the names of their parameters, in the same layouts."""
        gradients: Arrays
        self.outputs, gradients = self._gradients(self.state, self.inputs(*inputs, **by_name))
        return gradients

    def step(self, *inputs: Any, **by_name: Any) -> Array:
        """Run a training step on whole inputs, and return its first output: the loss."""
        self.outputs, self.state = self._step(self.state, self.inputs(*inputs, **by_name))
        return next(iter(self.outputs.values()))

    def lowered(self, *inputs: Any, **by_name: Any) -> Any:
        """Return the step as `jax.jit` lowers it, to be read or compiled."""
        return self._step.lower(self.state, self.inputs(*inputs, **by_name))

    def inputs(self, *inputs: Any, **by_name: Any) -> Arrays:
        """Return whole inputs on the devices: trees in the order of the function, or by name."""
        expected, leaves = self.program.INPUTS, jax.tree.leaves(inputs)
        if leaves and len(leaves) != len(expected):
            raise ValueError(f"there are {len(leaves)} inputs, expected {len(expected)}")
        whole = dict(zip(expected, leaves, strict=False)) | by_name
        if whole.keys() != expected.keys():
            raise ValueError(f"the inputs are {sorted(whole)}, expected {sorted(expected)}")
        found = {}
        for name, (dtype, shape, splits) in expected.items():
            sharding = self.mesh.sharding(self.mesh.unfolded(splits))
            found[name] = self._placed(name, whole[name], dtype, shape, splits, sharding)
        return found

    # Parameters

    def parameters(self) -> Any:
        """Return the tree of parameters as they are now; leaves that the plan has not stay."""

        def now(path: Any, leaf: Any) -> Any:
            found = self.state.get(_name_of(path))
            return leaf if found is None else jnp.copy(found)  # a step donates its own

        return tree_util.tree_map_with_path(now, self._tree)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take whole parameters, buffers and optimizer states, by name."""
        for name, whole in tensors.items():
            self.state[name] = self._own(name, whole)


def _name_of(path: Any) -> str:
    """Return the name of a leaf, as the plan writes it."""
    name = tree_util.keystr(path, simple=True, separator="/").strip("/")
    plain = re.sub(r"[^\w./-]", "_", name, flags=re.ASCII).lstrip("/.-") if name else "parameters"
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def _dtype(name: str) -> Any:
    """Return an element type.

    Raises
    ------
    RuntimeError
        If it is of 64 bits that count, and JAX has no such types.
    """
    kind = jax.dtypes.canonicalize_dtype(name)
    if name == "float64" and kind != np.float64:
        raise RuntimeError("the plan is in float64: jax.config.update('jax_enable_x64', True)")
    return kind


def _number(initial: str) -> float:
    """Return the number that a state begins with: `zeros`, or `constant(0.1)`."""
    match = re.fullmatch(r"constant\((.*)\)", initial)
    return float(match[1]) if match else {"zeros": 0.0, "ones": 1.0}[initial]


def _constants() -> dict[str, Any]:
    """Return what the model computes from no input, such as positions."""
    if not _CONSTANTS.exists():
        return {}
    with np.load(_CONSTANTS) as archive:
        return {name.partition(":")[2]: archive[name] for name in archive.files}
