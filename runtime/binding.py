"""What a step begins with: the slices of its inputs, and the parameters in the state."""

from collections.abc import Mapping

import numpy as np

from shardwright.ir.errors import ExecutionError
from shardwright.ir.graph import Graph, Value
from shardwright.operators.info import Array
from shardwright.runtime.communicator import Communicator, Parts
from shardwright.runtime.instructions import Local
from shardwright.runtime.state import State, hosted_ranks, scatter


class Binding:
    """Checks what a step is given, and cuts it for the ranks of this process.

    Parameters
    ----------
    graph : Graph
        The program.
    locals_ : mapping of str to Local
        The storage of every value.
    communicator : Communicator
        The communicator, which hosts ranks of the graph's mesh.
    float_dtype : str, optional
        Stores every floating-point tensor in this type.
    """

    def __init__(
        self,
        graph: Graph,
        locals_: Mapping[str, Local],
        communicator: Communicator,
        float_dtype: str | None,
    ) -> None:
        self._graph, self._locals = graph, locals_
        self._communicator, self._float_dtype = communicator, float_dtype
        self._names = {value.name for value in graph.inputs}

    def values(
        self, inputs: Mapping[str, Array | Parts], state: State
    ) -> dict[str, dict[int, Array]]:
        """Return the inputs and parameters of a step, by name and rank.

        Raises
        ------
        ExecutionError
            If one is missing or does not fit.
        """
        self.check_names(inputs)
        values = {value.name: self.input(value, inputs[value.name]) for value in self._graph.inputs}
        for parameter in self._graph.parameters:
            values[parameter.name] = self.held(parameter.value, state)
        return values

    def check_names(self, inputs: Mapping[str, Array | Parts]) -> None:
        """Refuse other inputs than those of the program.

        Raises
        ------
        ExecutionError
            If there are some.
        """
        if self._names != inputs.keys():
            raise ExecutionError(
                f"the inputs are {sorted(inputs)}, "
                f"graph `{self._graph.name}` expects {sorted(self._names)}"
            )

    def input(self, value: Value, given: Array | Parts) -> dict[int, Array]:
        """Return the slices of an input on hosted ranks."""
        if isinstance(given, Mapping):
            return self._own_slices(value, given)
        return scatter(value, given, self._communicator, self._float_dtype)

    def _own_slices(self, value: Value, parts: Parts) -> dict[int, Array]:
        """Return the slices of an input that hosted ranks have, in its element type."""
        local = self._locals[value.name]
        slices = {rank: np.asarray(parts[rank], local.dtype, order="C") for rank in local.shapes}
        for rank, part in slices.items():
            if part.shape != local.shapes[rank]:
                raise ExecutionError(
                    f"`{value.name}` was given a slice of shape {part.shape} on rank {rank}, "
                    f"expected {local.shapes[rank]}"
                )
        return slices

    def slices(
        self, inputs: Mapping[str, Array | Parts], values: Mapping[str, dict[int, Array]]
    ) -> dict[str, list[dict[int, Array]]]:
        """Return the slices of inputs that are split over the passes, for each pass.

        Raises
        ------
        ExecutionError
            If such an input is given by its slices.
        """
        mesh, slices = self._communicator.mesh, {}
        for value in self._graph.inputs:
            if value.layout is None or not value.layout.mentions(mesh.in_time):
                continue
            whole, others = inputs[value.name], range(1, mesh.passes)
            if isinstance(whole, Mapping):
                raise ExecutionError(
                    f"`{value.name}` is given by its slices, which differ between micro-batches",
                    hint="give the whole tensor",
                )
            communicator, dtype = self._communicator, self._float_dtype
            parts = (scatter(value, whole, communicator, dtype, i) for i in others)
            slices[value.name] = [values[value.name], *parts]
        return slices

    def held(self, value: Value, state: State) -> dict[int, Array]:
        """Return the slices of a parameter in the state.

        Raises
        ------
        ExecutionError
            If they are missing or do not fit.
        """
        if value.name not in state:
            raise ExecutionError(
                f"the state has no value for the parameter `{value.name}`",
                hint="start from `initialize` or a checkpoint; a failed step leaves gaps",
            )
        local, parts = self._locals[value.name], state[value.name]
        for rank in hosted_ranks(value, self._communicator):
            part = parts.get(rank)
            if part is None or part.shape != local.shapes[rank] or part.dtype != local.dtype:
                found = "nothing" if part is None else f"{part.dtype}{list(part.shape)}"
                raise ExecutionError(
                    f"the state of `{value.name}` on rank {rank} is {found}, "
                    f"expected {local.dtype}{list(local.shapes[rank])}"
                )
        return parts
