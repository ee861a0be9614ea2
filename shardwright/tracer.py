"""The tracer: records what a network does to its tensors as nodes of a graph."""

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from shardwright.communication import get_batch_parts
from shardwright.dataflow.cotangents import warn_of_idle
from shardwright.ir.attributes import Attribute, Attributes, check_constants
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Value
from shardwright.ir.provenance import ParameterRole
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, SplitCounts
from shardwright.operators.models.loss_scale import LossScale
from shardwright.operators.models.optimizer import Optimizer

_PACKAGE, _LIBRARY = Path(__file__).parent, Path(os.__file__).parent
_CURRENT: ContextVar["Tracer | None"] = ContextVar("tracer", default=None)


class Tracer(Builder):
    """A builder that resolves cells to scopes and parameters to names.

    Parameters
    ----------
    world : int
        Number of ranks of a hand-written parallel program; 1 for any other.
    scopes : mapping of int to str
        The scope of each cell, by identity.
    parameter_names : mapping of int to str
        The name of each parameter, by identity.
    training : bool
        Whether the program is a training step; else dropout drops nothing, and normalizations over
        the batch use their moving statistics.
    only_rank : int, optional
        The rank whose program alone this is, to be compiled and not run: what others send is not
        known, and zeros, and parameters that are assigned to may have `requires_grad`.
    """

    def __init__(
        self,
        world: int,
        scopes: Mapping[int, str],
        parameter_names: Mapping[int, str],
        training: bool = True,
        only_rank: int | None = None,
    ) -> None:
        super().__init__()
        self.only_rank = only_rank
        self.training = training
        self.world = world
        self.pins: dict[str, SplitCounts] = {}
        self.result_pins: dict[str, SplitCounts] = {}
        self.initial: dict[str, Array] = {}
        self.optimizer: Optimizer | None = None
        self.recomputed: dict[str, None] = {}
        self.offloaded: dict[str, None] = {}
        self.stages: dict[str, int] = {}
        self.messages: list[tuple[int, tuple[tuple[int, int], ...], Value]] = []  # not received yet
        self.lines: dict[str, str] = {}  # of the model's own code, by node
        self.gradients_mean = False
        self.micro_batches = 1  # of the cell that is traced
        self.loss_scale = 1.0  # of the optimizer
        self.managed_scale: LossScale | None = None  # of a training step
        self._gradient_factor = 1.0
        self._updated: dict[int, str | None] | None = None
        self._scopes = scopes
        self._parameter_names = parameter_names
        self._declared: dict[int, Value] = {}
        self._pinned_reads: dict[str, Value] = {}
        self._constants: list[object] = []  # kept alive, so that their identities stay unique
        self._step: Value | None = None
        self._read_as: str | None = None
        self._loss: str | None = None

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Make this the tracer that tensors record with."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def inside(self, cell: object) -> Iterator[None]:
        """Set the scope to that of `cell`; a cell that is not an attribute has its caller's."""
        outer = self.scope
        self.scope = self._scopes.get(id(cell), outer)
        yield
        self.scope = outer  # not after an error: its message names the inner scope

    @contextmanager
    def reading_as(self, dtype: str | None) -> Iterator[None]:
        """Let operators read real parameters in an element type, if one is given."""
        outer = self._read_as
        self._read_as = dtype or outer
        try:
            yield
        finally:
            self._read_as = outer

    @contextmanager
    def in_micro_batches(self, count: int) -> Iterator[None]:
        """Note that what is traced runs in micro-batches."""
        outer, self.micro_batches = self.micro_batches, count
        try:
            yield
        finally:
            self.micro_batches = outer

    def as_read(self, parameter: Value) -> Value:
        """Return a parameter in the element type in which operators read it here."""
        dtype = self._read_as
        if dtype is None or not parameter.type.is_float or parameter.type.dtype == dtype:
            return parameter
        return self.emit("cast", parameter, dtype=dtype)

    def emit_all(
        self,
        operator: str,
        *operands: Value,
        name: str | None = None,
        like: Value | None = None,
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Emit an operator, and note the line of the model that applies it; see `Builder`."""
        check_constants(operator, attributes)
        results = super().emit_all(operator, *operands, name=name, like=like, **attributes)
        line = _line_of_model()
        if line:
            self.lines[results[0].name] = line
        return results

    def recompute(self, begin: int, kept: Collection[str]) -> None:
        """Mark the nodes from `begin` on as recomputed, but those that make a value of `kept`."""
        for node in self.nodes[begin:]:
            if node.operands and not any(result.name in kept for result in node.results):
                self.recomputed[node.name] = None

    def offload(self, begin: int) -> None:
        """Mark the nodes from `begin` on as saved in host memory."""
        self.offloaded |= dict.fromkeys(node.name for node in self.nodes[begin:] if node.operands)

    def place(self, begin: int, stage: int) -> None:
        """Put the nodes from `begin` on in a pipeline stage, but those that an inner cell put."""
        for node in self.nodes[begin:]:
            self.stages.setdefault(node.name, stage)

    def declare(self, tensor: object, value: Value, attributes: Attributes) -> Value:
        """Return the parameter that the object `tensor` stands for; declare it at its first use.

        Raises
        ------
        ModelError
            If it is no attribute of a cell, and so has no name.
        """
        if id(tensor) in self._declared:
            return self._declared[id(tensor)]
        if id(tensor) not in self._parameter_names:
            raise ModelError(
                f"a parameter of type {value.type} is used, but no cell has it as an attribute",
                hint="set it as an attribute of a cell, and put cells of a list in `nn.CellList`",
            )
        name = self._parameter_names[id(tensor)]
        role: ParameterRole = "weight" if attributes.get("trainable", True) else "buffer"
        self._declared[id(tensor)] = self.parameter(Value(name, value.type), attributes, role)
        return self._declared[id(tensor)]

    def known(self, tensor: Any) -> Value | None:
        """Return the value of a tensor; None of a parameter or constant that nothing has read."""
        value: Value | None = getattr(tensor, "_value", None)
        return value or self._declared.get(id(tensor))

    def pinned(self, value: Value, counts: tuple[int, ...]) -> Value:
        """Return a value with so many slices of each dimension; made once."""
        if value.name not in self._pinned_reads:
            same = self.emit("identity", value)
            self.pins[same.name] = (counts,)
            self._pinned_reads[value.name] = same
        return self._pinned_reads[value.name]

    def constant(self, tensor: object, data: Array, value: Value) -> Value:
        """Return the untrained parameter that holds the data of the object `tensor`."""
        if id(tensor) not in self._declared:
            name = self.unique_name("constant", numbered=True)
            attributes: Attributes = {"initializer": "data", "trainable": False}
            value = self.parameter(Value(name, value.type), attributes, "buffer")
            self._declared[id(tensor)] = value
            self.initial[name] = np.asarray(data)
            self._constants.append(tensor)
        return self._declared[id(tensor)]

    def train(
        self,
        optimizer: Optimizer,
        updates: Sequence[tuple[object, dict[str, Attribute]]],
        loss_scale: float = 1.0,
    ) -> None:
        """Let an optimizer update parameters; all others are frozen.

        Parameters
        ----------
        optimizer : Optimizer
            The rule.
        updates : sequence of (object, dict)
            The parameters, each with the settings that differ from those of the rule.
        loss_scale : float
            What the optimizer divides gradients by.

        Raises
        ------
        ModelError
            If another optimizer is applied already.
        """
        if self.optimizer is not None:
            raise ModelError("two optimizers are applied, a training step has one")
        names = {
            id(parameter): self._parameter_names.get(id(parameter)) for parameter, _ in updates
        }
        own = ((names[id(parameter)], settings) for parameter, settings in updates)
        self.optimizer = replace(optimizer, overrides={n: s for n, s in own if n and s})
        self._updated = names
        self.loss_scale = loss_scale

    def differentiate(self, loss: str) -> None:
        """Set the loss whose gradients are asked for.

        Raises
        ------
        ModelError
            If the gradients of another value are.
        """
        if self._loss not in (None, loss):
            raise ModelError(
                f"the gradients of `{self._loss}` and of `{loss}` are asked for, a training step "
                f"has one loss",
                hint="add the losses, and differentiate the sum",
            )
        self._loss = loss

    def check(self, output: str) -> None:
        """Refuse what is no program: by its loss, its optimizer or its messages."""
        self.check_loss(output)
        self.check_updates()
        self.check_messages()

    def check_loss(self, output: str) -> None:
        """Refuse a training step whose first output is not its loss.

        Raises
        ------
        ModelError
            If it returns another value first.
        """
        if self._loss not in (None, output):
            raise ModelError(
                f"the training step returns `{output}` first, and asks for the gradients of "
                f"`{self._loss}`",
                hint="return the loss first, as `value_and_grad` returns it",
            )

    def apply(self, optimizer: Callable[[Any], object], gradients: object) -> None:
        """Let an optimizer update parameters, by what its own class does with gradients.

        Raises
        ------
        ModelError
            If it updates none.
        """
        with self.tracing():
            optimizer(gradients)
        if self.optimizer is None:
            raise ModelError(
                f"the optimizer `{type(optimizer).__name__}` updates nothing when it is applied",
                hint="let it give the gradients to the class that it is derived from",
            )

    def check_updates(self) -> None:
        """Refuse an optimizer that updates nothing; warn of parameters that it cannot update.

        Raises
        ------
        ModelError
            If it has none of the parameters that the model trains.
        """
        if self._updated is None:
            return
        trained = [p.name for p in self.parameters if p.trainable]
        if trained and set(trained) <= self.frozen():
            raise ModelError(
                f"the optimizer updates none of the model's {len(trained)} trainable parameters",
                hint="give it `network.trainable_params()` of the network that is trained",
            )
        idle = [name for key, name in self._updated.items() if key not in self._declared]
        warn_of_idle(
            [name or "a parameter of another model" for name in idle], "the loss does not use them"
        )

    def frozen(self) -> frozenset[str]:
        """Return the names of the parameters that no optimizer updates."""
        if self._updated is None:
            return frozenset()
        fixed = (name for key, name in self._declared.items() if key not in self._updated)
        return frozenset(value.name for value in fixed)

    def reduce_gradients(self, *, mean: bool) -> None:
        """Differentiate the mean or the sum of the losses of all ranks.

        Raises
        ------
        ModelError
            If the gradients are reduced already.
        """
        if self.gradients_mean:
            raise ModelError(
                "the gradients are reduced twice, expected one `DistributedGradReducer`"
            )
        self.gradients_mean = True
        self.scale_gradients(1.0 if mean else float(self.world * get_batch_parts()))

    def manage_loss_scale(self, scale: LossScale) -> None:
        """Multiply the loss in backward by a scale that may follow overflows.

        Raises
        ------
        ModelError
            If the step has one already.
        """
        if self.managed_scale is not None:
            raise ModelError("the loss is scaled twice, a training step has one loss scale")
        self.managed_scale = scale

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients by a number."""
        self._gradient_factor *= factor

    def objective(self, loss: Value) -> Value:
        """Return the loss, marked with the factor of its gradient where it has one."""
        if self._gradient_factor == 1:
            return loss
        name, factor = f"{loss.name}.scaled", self._gradient_factor
        if self.world > 1:
            return self.emit("own_gradient", loss, name=name, axes=("world",), factor=factor)
        scaled = self.emit("scale", loss, factor=factor)
        return self.emit("with_gradient_of", loss, scaled, name=name)

    def check_messages(self) -> None:
        """Refuse a program that sends what it does not receive.

        Raises
        ------
        ModelError
            If it does.
        """
        for tag, pairs, _ in self.messages:
            between = ", ".join(f"from rank {source} to rank {target}" for source, target in pairs)
            raise ModelError(
                f"`Send` with the tag {tag} {between}".rstrip() + " has no `Receive` behind it",
                hint="the program of all ranks receives what it sends, with the same tag and ranks",
            )

    def wait(self, **places: Any) -> None:
        """Let all ranks wait for each other here; a buffer that is updated keeps the place."""
        name = self.unique_name("barrier", numbered=True)
        attributes: Attributes = {"initializer": "zeros", "trainable": False}
        held = self.parameter(Value(name, TensorType("int64", ())), attributes, "buffer")
        self.updates.append((name, self.emit("barrier", held, name=f"{name}.next", **places).name))

    def step(self) -> Value:
        """Return the number of the step, a buffer that every step increments."""
        if self._step is None:
            number = Value("step", TensorType("int64", ()))
            attributes: Attributes = {"initializer": "zeros", "trainable": False}
            self._step = self.parameter(number, attributes, "buffer")
            following = self.emit("add_scalar", self._step, name="step.next", value=1)
            self.updates.append((self._step.name, following.name))
        return self._step


def _line_of_model() -> str:
    """Return the innermost line of the model's own code that is running; empty for none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_of_model(name):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=4096)
def is_of_model(file: str) -> bool:
    """Return whether code is that of a model: of the user, or of the zoo."""
    path = Path(file)
    if _PACKAGE in path.parents:
        return _PACKAGE / "zoo" in path.parents
    library = _LIBRARY in path.parents and "site-packages" not in path.parts
    return not library and not file.startswith("<")


def is_tracing() -> bool:
    """Return whether a network is being traced."""
    return _CURRENT.get() is not None


def current_tracer() -> Tracer:
    """Return the tracer in effect.

    Raises
    ------
    ModelError
        If no network is being traced.
    """
    tracer = _CURRENT.get()
    if tracer is None:
        raise ModelError(
            "an operator is applied while no network is traced",
            hint="apply operators in the `construct` method of a cell",
        )
    return tracer
