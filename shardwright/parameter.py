"""Parameters of a model definition: how they begin, such as ``normal(0.02)``; who keeps them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from shardwright.eager import drawn
from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.graph import DIVIDED, Value
from shardwright.ir.types import TensorType, numpy_dtype
from shardwright.ir.values import check_flag, checked
from shardwright.operators.info import Array
from shardwright.operators.models.random import initial_value
from shardwright.tensor import Tensor, TracedTensor
from shardwright.tracer import Tracer, current_tracer, is_tracing


@dataclass(frozen=True)
class Initial:
    """The initial value of a tensor of a given type.

    Parameters
    ----------
    text : str
        One of the texts that `operators.random.initial_value` understands.
    type : TensorType
        The type of the tensor.
    """

    text: str
    type: TensorType


@dataclass(frozen=True)
class Initializer:
    """An initializer as an object, such as MindSpore's ``XavierUniform()``.

    Parameters
    ----------
    text : str
        One of the texts that `operators.random.initial_value` understands.
    """

    text: str

    def __call__(self, arr: Array) -> None:
        """Fill an array in place."""
        arr[...] = drawn("", self.text, TensorType(arr.dtype.name, arr.shape))


Init = str | float | Initializer
# Names without the underscores of ours, and MindSpore's shorter ones.
_NAMES = {
    "zero": "zeros",
    "one": "ones",
    "truncatednormal": "truncated_normal",
    "xavieruniform": "xavier_uniform",
    "xaviernormal": "xavier_normal",
    "heuniform": "he_uniform",
    "henormal": "he_normal",
}


def _text(init: Init) -> str:
    if isinstance(init, Initializer):
        return init.text
    if not isinstance(init, str):
        return f"constant({float(init)!r})"
    name, bracket, rest = init.lower().partition("(")
    return _NAMES.get(name, name) + bracket + rest


@checked
def initializer(
    init: Init,
    shape: int | tuple[int, ...] | list[int],
    dtype: str = "float32",
) -> Initial:
    """Return the initial value of a tensor.

    Parameters
    ----------
    init : str, float or Initializer
        A number, or one of the texts that `operators.random.initial_value` understands; MindSpore's
        names without underscores are the same: ``XavierUniform``.
    shape : int or sequence of int
        Shape of the tensor.
    dtype : str
        Element type.

    Raises
    ------
    IRError
        If there is no such initializer, or no tensor of this shape.
    """
    kind = TensorType(dtype, (shape,) if isinstance(shape, int) else tuple(shape))
    text = _text(init)
    nothing = [slice(0, 0)] * kind.rank
    initial_value(text, "", 0, kind.shape, nothing, "float32")  # raises for an unknown text
    return Initial(text, kind)


class Keeper(Protocol):
    """Keeps the values of parameters while they are trained."""

    def read(self, name: str) -> Array:
        """Return the whole value of a parameter."""

    def write(self, name: str, whole: Array) -> None:
        """Give a parameter another value."""

    def write_part(self, name: str, part: Array) -> bool:
        """Give this process another part of a parameter, if it is one of its shape."""


# How a parameter of a layer begins: by an initializer, or as given data.
Start = Init | Tensor


class Parameter(Tensor):
    """A tensor that is kept from step to step.

    Parameters
    ----------
    default_input : Initial, str, number, Initializer, Tensor or array
        The initial value: the result of `initializer`, what that takes together with `shape`, or
        data, of the shape `shape` where it is given.
    name : str, optional
        The last part of its name; by default the name of its attribute.
    requires_grad : bool
        Whether it is trained; integer parameters never are.
    layerwise_parallel : bool
        In a hand-written parallel program: whether every rank holds values of its own.
    parallel_optimizer : bool
        Whether ranks may divide it further than the operator that reads it.
    shape, dtype : optional
        Its type, where `default_input` is no data; data has a type of its own.

    Raises
    ------
    ModelError
        If a text has no shape, or data has another one than `shape`.
    """

    is_parameter = True
    mode_now: ClassVar[Callable[[], str]] = lambda: ""  # what a script has set when it is made

    def __init__(
        self,
        default_input: Initial | Start | ArrayLike,
        name: str | None = None,
        requires_grad: bool = True,
        layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: str = "float32",
    ) -> None:
        self._draws_alone = isinstance(default_input, Tensor) and default_input.init is not None
        if isinstance(default_input, Tensor) and default_input.init is not None:
            default_input = initializer(
                default_input.init, default_input.shape, default_input.dtype
            )
        if isinstance(default_input, (str, int, float, Initializer)) and shape is not None:
            default_input = initializer(default_input, shape, dtype)
        if isinstance(default_input, (str, Initializer)):
            raise ModelError(f"a parameter begins as `{default_input}`, but has no shape")
        self.begins_as_data = not isinstance(default_input, Initial)
        if isinstance(default_input, Initial):
            self.type, self.array = default_input.type, None
            self.initializer = default_input.text
        else:
            tensor = default_input if isinstance(default_input, Tensor) else Tensor(default_input)
            self.type, self.array = tensor.type, tensor.asnumpy()
            self.initializer = "data"
            whole = (shape,) if isinstance(shape, int) else shape
            if whole is not None and self.type.shape != tuple(whole):
                found, expected = list(self.type.shape), list(whole)
                raise ModelError(
                    f"a parameter begins as data of shape {found}, expected {expected}"
                )
        self._name, self._path = name, ""
        self.made_in = Parameter.mode_now()
        self.requires_grad = requires_grad and self.type.is_float
        self.layerwise_parallel = layerwise_parallel
        self.parallel_optimizer = parallel_optimizer
        self.comm_fusion: int | None = None
        self.is_served = False  # whether it is on parameter servers
        self.kept: tuple[Keeper, str] | None = None
        self._strategy: tuple[int, ...] | None = None

    def set_strategy(self, counts: tuple[int, ...]) -> None:
        """Let operators read the parameter with so many slices of each dimension.

        Raises
        ------
        ModelError
            If there is not one number for each dimension, or it does not divide the size.
        """
        what = f"the strategy {counts} does not fit a parameter of the shape {self.shape}: "
        if len(counts) != self.ndim:
            raise ModelError(
                f"{what}the length of param_strategy: {len(counts)}, is not equal to param_shape "
                f"len: {self.ndim}",
                hint="give one number of slices for each dimension",
            )
        for i, (size, count) in enumerate(zip(self.shape, counts, strict=True)):
            if count < 1 or size % count:
                raise ModelError(
                    f"{what}For '{self.name}', the param_shape is {self.shape} and the setting "
                    f"param_strategy is {counts}. The param_shape[{i}]: {size} cannot be divisible "
                    f"by param_strategy[{i}]: {count}."
                )
        self._strategy = counts

    def set_param_ps(self, init_in_server: bool = False) -> None:
        """Put the parameter on parameter servers, which draw its initial value either way."""
        check_flag("init_in_server", init_in_server)
        self.is_served = True

    @property
    def name(self) -> str:
        """Its path from the outermost cell that listed it, or its own name, or nothing."""
        return self._path or self._name or ""

    @name.setter
    def name(self, name: str) -> None:
        self._name, self._path = name, ""

    def named(self, cell: str, attribute: str) -> str:
        """Return its path below a cell that lists it, and keep the longest of such paths."""
        path = f"{cell}.{self._name or attribute}".removeprefix(".")
        self._path = max(self._path, path, key=len)
        return path

    def keep_in(self, keeper: Keeper, name: str) -> None:
        """Let a session keep the value from now on, under a name."""
        self.kept = keeper, name

    @property
    def has_value(self) -> bool:
        """Whether it has a value yet."""
        return self.kept is not None or self.array is not None

    def asnumpy(self) -> Array:
        """Return the whole value: as trained so far, or as given.

        Where processes hold parts of it, every one takes part.

        Raises
        ------
        ModelError
            If it has none yet: its initializer draws it when its network is compiled.
        """
        if self.kept is not None:
            return self.kept[0].read(self.kept[1])
        if self.array is None and self._draws_alone:
            self.set_data(drawn(self.name, self.initializer, self.type))
        if self.array is None and self.initializer.partition("(")[0] in (
            "zeros",
            "ones",
            "constant",
        ):
            whole = [slice(0, size) for size in self.shape]
            dtype = numpy_dtype(self.dtype)
            return initial_value(self.initializer, "", 0, self.shape, whole, dtype)
        if self.array is None:
            raise ModelError(
                f"a parameter of type {self.type} has no value yet, its initializer draws it when "
                f"its network is compiled",
                hint="train the network first, or give the parameter data",
            )
        return self.array

    def set_data(self, data: "Tensor | ArrayLike") -> None:
        """Give the parameter another value, of the same type; or this process another part of it.

        Raises
        ------
        ModelError
            If the type differs.
        """
        array = np.asarray(data.asnumpy() if isinstance(data, Tensor) else data)
        if array.shape != self.shape:
            if self.kept is not None and self.kept[0].write_part(self.kept[1], array):
                return
            what = f"a parameter of type {self.type} is given data of shape {array.shape}"
            raise ModelError(what)
        self.array, self.initializer = array.astype(numpy_dtype(self.dtype)), "data"
        if self.kept is not None:
            keeper, name = self.kept
            keeper.write(name, self.array)

    def value(self, tracer: Tracer | None = None) -> Any:
        """Return the parameter in the graph being traced; without a graph, it as a tensor."""
        if tracer is None:
            here = is_tracing()
            return TracedTensor(self.read(current_tracer())) if here else Tensor(self.asnumpy())
        attributes: dict[str, Attribute] = {
            "initializer": self.initializer,
            "trainable": self.requires_grad,
        }
        if self.layerwise_parallel and tracer.world > 1:
            attributes["layerwise_parallel"] = True
        if self.comm_fusion is not None:
            attributes["fusion"] = self.comm_fusion
        check_flag("parallel_optimizer", self.parallel_optimizer)  # scripts set it, too
        if not self.parallel_optimizer:
            attributes[DIVIDED] = False
        value = tracer.declare(self, Value("parameter", self.type), attributes)
        if self.array is not None:
            tracer.initial[value.name] = self.array
        return value

    def read(self, tracer: Tracer) -> Value:
        """Return the parameter as operators read it, split as it was told."""
        value: Value = self.value(tracer)
        if self._strategy is None:
            return value
        return tracer.pinned(value, self._strategy)

    def __repr__(self) -> str:
        return (
            f"Parameter(name={self.name}, shape={self.shape}, dtype={self.dtype}, "
            f"requires_grad={self.requires_grad})"
        )

    __str__ = __repr__
