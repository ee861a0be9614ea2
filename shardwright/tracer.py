"""The tracer: records what a network does to its tensors as nodes of a graph."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.graph import Attributes, Value
from shardwright.ir.types import TensorType
from shardwright.operators.builder import Builder
from shardwright.operators.info import Array, SplitCounts
from shardwright.passes.optimizer import Optimizer

_CURRENT: ContextVar["Tracer | None"] = ContextVar("tracer", default=None)


class Tracer(Builder):
    """A builder that knows cells and parameters.

    Parameters
    ----------
    world : int
        Number of ranks of a hand-written parallel program; 1 for any other.
    scopes : mapping of int to str
        Where each cell stands, by its identity.
    parameter_names : mapping of int to str
        What each parameter is called, by its identity.
    """

    def __init__(
        self, world: int, scopes: Mapping[int, str], parameter_names: Mapping[int, str]
    ) -> None:
        super().__init__()
        self.world = world
        self.pins: dict[str, SplitCounts] = {}
        self.result_pins: dict[str, SplitCounts] = {}
        self.initial: dict[str, Array] = {}
        self.optimizer: Optimizer | None = None
        self._updated: frozenset[int] | None = None
        self._scopes = scopes
        self._parameter_names = parameter_names
        self._declared: dict[int, Value] = {}
        self._constants: list[object] = []  # kept, lest another object get the identity of one
        self._step: Value | None = None

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
        """Put the nodes of `cell` in its scope; a cell that is no attribute has its caller's."""
        outer = self.scope
        self.scope = self._scopes.get(id(cell), outer)
        yield
        self.scope = outer  # not after an error: its message names the inner scope

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
        self._declared[id(tensor)] = self.parameter(Value(name, value.type), attributes)
        return self._declared[id(tensor)]

    def constant(self, tensor: object, data: Array, value: Value) -> Value:
        """Return the untrained parameter that holds the data of the object `tensor`."""
        if id(tensor) not in self._declared:
            name = self.unique_name("constant", numbered=True)
            attributes: Attributes = {"initializer": "data", "trainable": False}
            self._declared[id(tensor)] = self.parameter(Value(name, value.type), attributes)
            self.initial[name] = np.asarray(data)
            self._constants.append(tensor)
        return self._declared[id(tensor)]

    def train(self, optimizer: Optimizer, parameters: Iterable[object]) -> None:
        """Let an optimizer update these parameters; all others stay as they are.

        Raises
        ------
        ModelError
            If another one does so already.
        """
        if self.optimizer is not None:
            raise ModelError("two optimizers are applied, a training step has one")
        self.optimizer = optimizer
        self._updated = frozenset(map(id, parameters))

    def frozen(self) -> frozenset[str]:
        """Return the names of the parameters that no optimizer updates."""
        if self._updated is None:
            return frozenset()
        fixed = (name for key, name in self._declared.items() if key not in self._updated)
        return frozenset(value.name for value in fixed)

    def step(self) -> Value:
        """Return the number of the step; it is counted on from one step to the next."""
        if self._step is None:
            number = Value("step", TensorType("int64", ()))
            self._step = self.parameter(number, {"initializer": "zeros", "trainable": False})
            following = self.emit("add_scalar", self._step, name="step.next", value=1)
            self.updates.append((self._step.name, following.name))
        return self._step


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
