"""Functions that are compiled for the ranks of a script, and run for what they return.

A function returns tensors, and gradients as values: those of a training step that applies its
optimizer stay a token. Where the compiler splits the program, all of them are whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shardwright.communication import WORLD_AXIS
from shardwright.gradients import Gradients
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Node
from shardwright.ir.graph import Parameter as GraphParameter
from shardwright.ir.types import numpy_dtype
from shardwright.mindspore.differentiated import (
    Differentiated,
    InputGradient,
    OneGradient,
    differentiated_alone,
)
from shardwright.mindspore.runtime import check_memory
from shardwright.nn.cell import Cell, only_told_cells_train
from shardwright.operators.info import Array
from shardwright.operators.models.optimizer import Optimizer as Rule
from shardwright.parameter import Parameter
from shardwright.session import ParallelOptions, begin
from shardwright.tensor import Tensor, tensors_in, with_arrays
from shardwright.tracer import current_tracer
from shardwright.tracing import Definition, Network

BY_HAND = "hybrid_parallel"
_KEPT: Final = "gradient"
"""The rule that keeps gradients, and the state that has them."""


def as_arrays(inputs: Sequence[Any]) -> list[Array]:
    """Return the arrays of inputs."""
    return [np.asarray(x.asnumpy() if isinstance(x, Tensor) else x) for x in inputs]


class WithoutRanks(Exception):  # noqa: N818
    """A program is the same without other ranks."""


class Running:
    """A function compiled for inputs of some shapes.

    Parameters
    ----------
    function : Cell or callable
        Returns tensors and gradients, in tuples; may apply an optimizer.
    arrays : sequence of array
        The first inputs.
    options : ParallelOptions
        The devices, and the options of the compilation.
    seed : int
        Seed of the initial values.
    communicates : bool
        Whether a program that is the same without other ranks is refused.

    Raises
    ------
    WithoutRanks
        If it is.
    """

    def __init__(
        self,
        function: Network,
        arrays: Sequence[Array],
        options: ParallelOptions,
        seed: int = 0,
        communicates: bool = False,
    ) -> None:
        self._function = function
        self._made: Any = None
        self._names: list[str] = []
        self._first = ""
        batch = {f"input{i}": array for i, array in enumerate(arrays)}
        with differentiated_alone(runs=True) as noted:

            def change(definition: Definition) -> Definition:
                if communicates and not any(map(_is_by_rank, definition.graph.nodes)):
                    raise WithoutRanks
                return self._trained(definition, noted)

            whole = _whole(function, self._forward(noted))
            self.session = begin(whole, batch, options, seed=seed, change=change)
        check_memory(self.session.agreed.peak_bytes)
        if noted.inputs and self.session.feed.kind == "own" and options.how.mode != BY_HAND:
            raise ModelError(
                "the gradient by an input is wanted, of which each process has another part",
                hint="give every process the whole input",
            )
        self._by_input = tuple(noted.inputs)
        inputs = [spec.name for spec in self.session.definition.inputs]
        self._fed = [i for i, name in enumerate(batch) if name in inputs]
        self._places = {name: i for i, name in enumerate(batch)}

    def _forward(self, noted: Differentiated) -> Callable[..., tuple[Tensor, ...]]:
        """Return a function that returns what is differentiated, and all tensors."""

        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            tracer = current_tracer()
            with only_told_cells_train():
                made = self._function(*inputs)
            tensors = {tensor.value(tracer).name: tensor for tensor in tensors_in(made)}
            found = [*tensors_in(noted.outputs), *tensors.values()]
            if not found:
                raise ModelError(f"the network returns {made!r}, expected tensors")
            first = found[0] if found[0].type.is_float else found[0].astype("float32")
            first = first.sum() if first.ndim else first
            self._made, self._first = made, first.value(tracer).name
            self._names = [tensor.value(tracer).name for tensor in tensors_in(made)]
            tensors.pop(self._first, None)
            return first, *tensors.values()

        return forward

    def _trained(self, definition: Definition, noted: Differentiated) -> Definition:
        """Return the definition whose trained parameters are what is differentiated by."""
        graph = definition.graph
        name = getattr(self._function, "__name__", type(self._function).__name__).lower()
        graph = replace(graph, name=name)
        if definition.optimizer is not None:
            if noted.inputs:
                raise ModelError(
                    f"the gradient by the inputs {noted.inputs} is wanted in a training step, only "
                    f"parameters have gradients there",
                    hint="give `None` for `grad_position`, and the parameters as `weights`",
                )
            return replace(definition, graph=graph)
        wanted = {id(weight) for weight in noted.weights}
        held = {name: id(p) in wanted for name, p in definition.holders.items()}
        parameters = [
            replace(p, attributes={**p.attributes, "trainable": held.get(p.name, False)})
            for p in graph.parameters
        ]
        chosen = [value for value in graph.inputs if value.name in noted.inputs]
        parameters += [
            GraphParameter(v, {"initializer": "zeros", "trainable": True}) for v in chosen
        ]
        inputs = tuple(value for value in graph.inputs if value not in chosen)
        return replace(
            definition,
            graph=replace(graph, inputs=inputs, parameters=tuple(parameters)),
            inputs=tuple(spec for spec in definition.inputs if spec.name not in noted.inputs),
            optimizer=Rule(_KEPT, {}),
        )

    def continue_from(self, other: "Running") -> None:
        """Begin with the state of the function for other shapes."""
        self.session.continue_from(other.session)

    def __call__(self, arrays: Sequence[Array]) -> Any:
        """Run the function, with the present values of parameters."""
        session = self.session
        for name, parameter in session.definition.holders.items():
            if parameter.kept is None or parameter.kept[0] is not session:
                if parameter.has_value:
                    session.write(name, parameter.asnumpy())
                parameter.keep_in(session, name)
        for name in self._by_input:
            session.write(name, arrays[self._places[name]])
        first, *others = session.outputs([arrays[i] for i in self._fed])
        found = dict(zip(session.definition.graph.outputs, (first, *others), strict=True))
        found[self._first] = first
        made = with_arrays(self._made, iter([found[name] for name in self._names]))
        return _replaced(made, self._gradients) if session.definition.optimizer else made

    def _gradients(self, token: Gradients | InputGradient) -> Any:
        """Return the gradients that a token stands for; the token where an optimizer has them."""
        definition = self.session.definition
        if definition.optimizer is None or definition.optimizer.kind != _KEPT:
            return token
        if isinstance(token, InputGradient):
            kind = definition.graph.value(token.name).type
            return Tensor(self.session.read(f"{token.name}.{_KEPT}"), kind.dtype)
        if token.clip_norm is not None:
            raise ModelError(
                "a function that is compiled returns gradients that it clips",
                hint="let it return them as they are, and clip what it returns",
            )
        names = {id(parameter): name for name, parameter in definition.holders.items()}
        found = tuple(self._gradient(names.get(id(p)), p) for p in token.weights or ())
        return found[0] if isinstance(token, OneGradient) else found

    def _gradient(self, name: str | None, parameter: Parameter) -> Tensor:
        """Return the gradient by a parameter: zeros where nothing depends on it."""
        state = f"{name}.{_KEPT}"
        if state not in self.session.state:
            return Tensor(np.zeros(parameter.shape, numpy_dtype(parameter.dtype)))
        return Tensor(self.session.read(state), parameter.dtype)


class _Wrapped(Cell):
    """A cell whose results are those of a function round it."""

    _auto_prefix = False
    wraps = "network"

    def __init__(self, network: Cell, forward: Callable[..., Any]) -> None:
        self.network, self._forward = network, forward

    def construct(self, *inputs: Tensor) -> Any:
        return self._forward(*inputs)


def _whole(function: Network, forward: Callable[..., Any]) -> Network:
    """Return a network that is traced as another one, with the results of a function round it."""
    if isinstance(function, Cell):
        return _Wrapped(function, forward)

    def whole(*inputs: Tensor) -> Any:
        return forward(*inputs)

    whole.function = function  # type: ignore[attr-defined]
    return whole


def _is_by_rank(node: Node) -> bool:
    """Return whether an operator communicates, or depends on the rank."""
    return WORLD_AXIS in node.attributes.get("axes", ())  # type: ignore[operator]


def _replaced(made: Any, value: Callable[[Any], Any]) -> Any:
    """Return a structure with the values of its tokens."""
    if isinstance(made, Gradients | InputGradient):
        return value(made)
    if type(made) in (tuple, list):
        return type(made)(_items(made, value))
    if isinstance(made, dict):
        return {name: _replaced(item, value) for name, item in made.items()}
    return made


def _items(made: Sequence[Any], value: Callable[[Any], Any]) -> Iterator[Any]:
    for item in made:
        yield _replaced(item, value)
