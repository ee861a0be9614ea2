"""Gradients of functions: in a training step that is traced, or computed at once outside of one.

Outside of a step a function is traced once for each signature of its inputs. Its program runs on
one device, with the present values of parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardwright.communication import get_group_size, world
from shardwright.dataflow.cotangents import gradient_name
from shardwright.eager import get_seed
from shardwright.gradients import Gradients, ValueAndGrad
from shardwright.ir import graph as ir
from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import ModelError
from shardwright.ir.types import TensorType
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_flag, wrong_value
from shardwright.mindspore.differentiated import (
    Differentiated,
    InputGradient,
    OneGradient,
    as_they_arrive,
    being_differentiated,
)
from shardwright.mindspore.ops.refusals import check_loss
from shardwright.mindspore.running import Running, as_arrays
from shardwright.mindspore.runtime import check_memory
from shardwright.mindspore.spread import running_on_ranks
from shardwright.nn.cell import only_told_cells_train
from shardwright.operators.info import Array
from shardwright.parameter import Parameter
from shardwright.passes.differentiate import Differentiate
from shardwright.runtime import Executor, LocalCommunicator, initialize
from shardwright.tensor import Tensor, tensors_in, with_arrays
from shardwright.tracer import current_tracer, is_tracing
from shardwright.tracing import Definition, InputSpec, trace

Positions = int | tuple[int, ...] | None
Weights = tuple[Parameter, ...] | None


@dataclass(frozen=True, eq=False)
class GradientFunction:
    """A function that returns gradients, and the values of the function where asked for.

    Parameters
    ----------
    function : callable
        Returns a loss, or with `has_aux` a tuple that begins with it.
    positions : int or tuple of int, optional
        The inputs to differentiate by.
    weights : tuple of Parameter, optional
        The parameters to differentiate by.
    has_aux, with_value : bool
        Whether the function returns more than the loss; whether its values are returned too.
    one_weight : bool
        Whether a single parameter was given: its gradient is returned without a tuple.
    """

    function: Callable[..., Any]
    positions: Positions
    weights: Weights
    has_aux: bool
    with_value: bool
    one_weight: bool = False
    _programs: dict[object, "_Program"] = field(default_factory=dict)
    _running: dict[object, Running | None] = field(default_factory=dict)

    def __call__(self, *inputs: Any) -> Any:
        """Return the gradients, or the values of the function and the gradients.

        Raises
        ------
        ModelError
            In a step, if the gradient by an input is asked for; outside, with several ranks.
        """
        if is_tracing():
            return self._traced(inputs)
        if get_group_size() > 1:
            return self._on_ranks(inputs)
        return self._alone(inputs)

    def _forward(self, *inputs: Any) -> Any:
        """Return what the function returns; its cells train if they were told to."""
        with only_told_cells_train():
            return self.function(*inputs)

    def _alone(self, inputs: Sequence[Any]) -> Any:
        """Return what the function returns, and the gradients, computed by this process alone."""
        tensors = [item if isinstance(item, Tensor) else Tensor(item) for item in inputs]
        signature = tuple(tensor.type for tensor in tensors)
        if signature not in self._programs:
            self._programs[signature] = _Program(self, signature)
        outputs, gradients = self._programs[signature]([tensor.asnumpy() for tensor in tensors])
        if self.with_value:
            return outputs, gradients
        return (gradients, outputs[1:]) if self.has_aux else gradients

    def _on_ranks(self, inputs: Sequence[Any]) -> Any:
        """Compute as one of several ranks: alone, where nothing else is said."""
        arrays = as_arrays(inputs)
        key = tuple((array.shape, array.dtype.name) for array in arrays)
        if key not in self._running:
            self._running[key] = running_on_ranks(self, arrays)
        running = self._running[key]
        if running is not None:
            return running(arrays)
        with world(1):
            return self._alone(inputs)

    def _traced(self, inputs: Sequence[Any]) -> Any:
        noted = being_differentiated()
        if noted is not None:
            return self._noted(noted, inputs)
        if self.positions is not None:
            raise ModelError(
                f"the gradient by the inputs {self.positions} is wanted in a training step, only "
                f"parameters have gradients there",
                hint="give `None` for `grad_position`, and the parameters as `weights`",
            )
        outputs, gradients = ValueAndGrad(self._forward, self.weights, self.has_aux)(*inputs)
        if self.with_value:
            return outputs, gradients
        return (gradients, outputs[1:]) if self.has_aux else gradients

    def _noted(self, noted: Differentiated, inputs: Sequence[Any]) -> Any:
        """Return what has the types of the gradients, and note what they are gradients of."""
        tracer = current_tracer()
        # What is compiled alone, and not run, is a step in which all cells train.
        positions = (self.positions,) if isinstance(self.positions, int) else self.positions or ()
        read = inputs if noted.runs else as_they_arrive(inputs, positions)
        outputs = self._forward(*inputs) if noted.runs else self.function(*read)
        if noted.runs:
            _check_aux(outputs, self.has_aux)
            _positions(self.positions, [item.type for item in inputs])
        if noted.runs and noted.outputs:
            raise ModelError(
                "two functions are differentiated in one program",
                hint="add what they return, and differentiate the sum",
            )
        noted.outputs.append(outputs[0] if self.has_aux else outputs)
        check_loss(noted.outputs)
        noted.weights += self.weights or ()
        wanted: tuple[Any, ...] = tuple(inputs[i] for i in positions)
        names = [item.value(tracer).name for item in wanted]
        noted.inputs += [n for n, item in zip(names, wanted, strict=True) if item.type.is_float]
        if noted.runs:
            wanted = tuple(map(InputGradient, names))
        by_input = wanted[0] if isinstance(self.positions, int) else wanted
        by_weight = (OneGradient if self.one_weight else Gradients)(self.weights)
        found: Any = by_input if self.weights is None else by_weight
        if self.weights is not None and self.positions is not None:
            found = by_input, by_weight
        if self.with_value:
            return outputs, found
        return (found, outputs[1:]) if self.has_aux else found


class _Program:
    """The program of a function and its gradients, for inputs of some types."""

    def __init__(self, asked: GradientFunction, types: Sequence[TensorType]) -> None:
        self._asked = asked
        self._made: Any = None
        self._names: list[str] = []
        specs = [InputSpec(f"input{i}", kind) for i, kind in enumerate(types)]
        self._definition = trace(self._forward(), specs)
        self._check()
        self._positions = _positions(asked.positions, types)
        graph = self._differentiable()
        self._graph = Differentiate().run(graph)
        self._executor = Executor(self._graph, LocalCommunicator())
        self._kept: dict[str, Array] = {}

    def _forward(self) -> Callable[..., Any]:
        """Return the function with a scalar first; what it returns is noted."""
        function, has_aux = self._asked.function, self._asked.has_aux

        def forward(*symbols: Tensor) -> tuple[Tensor, ...]:
            with only_told_cells_train():
                made = function(*symbols)
            _check_aux(made, has_aux)
            loss = made[0] if has_aux else made
            if not isinstance(loss, Tensor) or not loss.type.is_float:
                raise ModelError(f"the function returns {loss!r} first, expected a real tensor")
            tracer = current_tracer()
            self._made = made
            self._names = [tensor.value(tracer).name for tensor in tensors_in(made)]
            total = loss.sum() if loss.ndim else loss
            apart = {tensor.value(tracer).name: tensor for tensor in tensors_in(made)}
            apart.pop(total.value(tracer).name, None)
            return (total, *apart.values())

        return forward

    def _check(self) -> None:
        """Refuse what only a training step that is compiled has."""
        definition = self._definition
        if definition.precision is not None or definition.micro_batches != 1:
            raise ModelError(
                "a network with mixed precision or micro-batches is differentiated outside of a "
                "training step",
                hint="write `@jit` before the function that calls it and the optimizer",
            )

    def _differentiable(self) -> ir.Graph:
        """Return the graph whose trained parameters are what is differentiated by."""
        graph, weights = self._definition.graph, self._asked.weights or ()
        wanted = {id(weight) for weight in weights}
        held = {name: id(p) in wanted for name, p in self._definition.holders.items()}
        parameters = [
            replace(p, attributes={**p.attributes, "trainable": held.get(p.name, False)})
            for p in graph.parameters
        ]
        chosen = [value for i, value in enumerate(graph.inputs) if i in self._positions]
        attributes: Attributes = {"initializer": "data", "trainable": True}
        parameters += [ir.Parameter(value, attributes) for value in chosen]
        inputs = tuple(value for value in graph.inputs if value not in chosen)
        return replace(graph, inputs=inputs, parameters=tuple(parameters))

    def __call__(self, arrays: Sequence[Array]) -> tuple[Any, Any]:
        """Return what the function returns, and the gradients."""
        definition, graph = self._definition, self._graph
        given = {spec.name: array for spec, array in zip(definition.inputs, arrays, strict=True)}
        fed = {value.name: given.pop(value.name) for value in graph.inputs}
        known = {n: p.asnumpy() for n, p in definition.holders.items() if p.has_value}
        initial = {**_constants(definition), **known, **self._kept, **given}
        state = initialize(graph, get_seed(), LocalCommunicator(), initial)
        result = self._executor.step(fed, state)
        check_memory(result.peak_bytes)
        outputs = result.outputs
        for name, _ in graph.updates:
            if name in definition.holders:
                definition.holders[name].set_data(state[name][0])
            else:
                self._kept[name] = state[name][0]
        found = {name: parts[0] for name, parts in outputs.items()}
        arrays_of = iter([found[name] for name in self._names])
        return with_arrays(self._made, arrays_of), self._gradients(found)

    def _gradients(self, found: Mapping[str, Array]) -> Any:
        """Return the gradients in the form that was asked for."""
        asked, names = self._asked, self._definition.holders

        def gradient(name: str | None, kind: TensorType) -> Tensor:
            array = None if name is None else found.get(gradient_name(name))
            return Tensor(np.zeros(kind.shape) if array is None else array, kind.dtype)

        inputs = [self._definition.inputs[i] for i in self._positions]
        by_input: Any = tuple(gradient(spec.name, spec.type) for spec in inputs)
        if isinstance(asked.positions, int):
            by_input = by_input[0]
        if asked.weights is None:
            return by_input
        known = {id(parameter): name for name, parameter in names.items()}
        by_weight: Any = tuple(gradient(known.get(id(p)), p.type) for p in asked.weights)
        if asked.one_weight:
            by_weight = by_weight[0]
        return by_weight if asked.positions is None else (by_input, by_weight)


def _check_aux(made: Any, has_aux: bool) -> None:
    """Refuse a function that returns several values where one is asked for, or one for several.

    Raises
    ------
    ModelError
        If it does.
    """
    if isinstance(made, tuple) != has_aux:
        raise ModelError(
            f"`has_aux` is {has_aux}, and the function returns "
            f"{f'{len(made)} values' if isinstance(made, tuple) else 'one value'}",
            hint="use `has_aux=True` for a function that returns a tuple, its loss first",
        )


def _constants(definition: Definition) -> dict[str, Array]:
    """Return the data of constants: that of parameters may have changed."""
    return {n: a for n, a in definition.initial.items() if n not in definition.holders}


def _positions(asked: Positions, types: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the positions of the inputs to differentiate by.

    Raises
    ------
    ModelError
        If there is no such input, or it is no real tensor.
    """
    positions = () if asked is None else (asked,) if isinstance(asked, int) else asked
    for position in positions:
        if position >= len(types) or not types[position].is_float:
            kind = f"is {types[position]}" if position < len(types) else "is not there"
            raise ModelError(
                f"the gradient by the input {position} is wanted, which {kind}, expected a real "
                f"tensor"
            )
    return positions


def value_and_grad(
    fn: Callable[..., Any],
    grad_position: Positions = 0,
    weights: Any = None,
    has_aux: bool = False,
    return_ids: bool = False,
) -> GradientFunction:
    """Return a function that returns what `fn` returns, and its gradients.

    Parameters
    ----------
    fn : callable
        A function or a cell; returns a loss, or with `has_aux` a tuple that begins with it. The
        gradient of a tensor is that of its sum.
    grad_position : int or tuple of int, optional
        The inputs to differentiate by, None for none of them.
    weights : Parameter or iterable of Parameter, optional
        The parameters to differentiate by.
    has_aux : bool
        Whether `fn` returns more than the loss.
    return_ids : bool
        Must be False.

    Raises
    ------
    OptionError
        If an argument has a value that is not allowed.
    """
    return _function(fn, grad_position, weights, has_aux, return_ids, with_value=True)


def grad(
    fn: Callable[..., Any],
    grad_position: Positions = 0,
    weights: Any = None,
    has_aux: bool = False,
    return_ids: bool = False,
) -> GradientFunction:
    """Return a function that returns the gradients of `fn`; see `value_and_grad`.

    With `has_aux`, what `fn` returns after the loss follows the gradients.
    """
    return _function(fn, grad_position, weights, has_aux, return_ids, with_value=False)


class GradOperation:
    """Makes functions that return gradients by inputs, parameters or both.

    Parameters
    ----------
    get_all : bool
        Whether by all inputs; else by the first.
    get_by_list : bool
        Whether by parameters; with `get_all` by inputs too.
    sens_param : bool
        Whether the last input weighs what the function returns: a tensor like it, or a number.
    """

    def __init__(
        self, get_all: bool = False, get_by_list: bool = False, sens_param: bool = False
    ) -> None:
        check_flag("get_all", get_all)
        check_flag("get_by_list", get_by_list)
        check_flag("sens_param", sens_param)
        self.get_all, self.get_by_list = get_all, get_by_list
        self.sens_param = sens_param

    def __call__(self, fn: Callable[..., Any], weights: Any = None) -> Callable[..., Any]:
        """Return the function of the gradients; `weights` as for `grad`."""
        if self.get_by_list and weights is None:
            raise wrong_value("weights", weights, "parameters, since `get_by_list` is True")
        by_list = weights if self.get_by_list else None
        weighted = _weighted(fn) if self.sens_param else fn
        if not self.get_all:
            return grad(weighted, None if self.get_by_list else 0, by_list)

        def gradients(*inputs: Any) -> Any:
            count = len(inputs) - self.sens_param
            return grad(weighted, tuple(range(count)), by_list)(*inputs)

        return gradients


def _weighted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose last input weighs what another returns of the others."""

    def weighted(*inputs: Any) -> Any:
        *own, weights = inputs
        made = fn(*own)
        found = list(tensors_in(made))
        given = list(tensors_in(weights)) or [weights] * len(found)
        if noted := being_differentiated():
            noted.weighing += [t.value(current_tracer()).name for t in tensors_in(weights)]
        shapes, own_shapes = (
            [getattr(one, "shape", ()) for one in each] for each in (found, given)
        )
        fits = all(own in ((), shape) for shape, own in zip(shapes, own_shapes, strict=False))
        if len(given) != len(found) or not fits:
            raise ModelError(
                f"a function returns tensors of the shapes {shapes}, and their weights have the "
                f"shapes {own_shapes}",
                hint="give the last input in the form of what the function returns",
            )
        parts = [(one * by).sum() for one, by in zip(found, given, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    return weighted


def _function(
    fn: Callable[..., Any],
    grad_position: Positions,
    weights: Any,
    has_aux: bool,
    return_ids: bool,
    with_value: bool,
) -> GradientFunction:
    check_flag("has_aux", has_aux)
    if return_ids is not False:
        raise wrong_value("return_ids", return_ids, "False")
    if not callable(fn):
        raise wrong_value("fn", fn, "a function or a cell")
    several = isinstance(grad_position, tuple)
    for position in grad_position if several else (grad_position,):  # type: ignore[union-attr]
        if several or position is not None:
            NOT_NEGATIVE_INTEGER.check("grad_position", position)
    if grad_position is None and weights is None:
        raise wrong_value("weights", weights, "parameters, since `grad_position` is None")
    one = isinstance(weights, Parameter)
    chosen = None if weights is None else (weights,) if one else tuple(weights)
    for weight in chosen or ():
        if not isinstance(weight, Parameter):
            raise wrong_value("weights", weight, "parameters")
    return GradientFunction(fn, grad_position, chosen, has_aux, with_value, one)


__all__ = ["GradOperation", "GradientFunction", "Gradients", "grad", "value_and_grad"]
