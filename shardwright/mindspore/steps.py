"""Training steps written out: ``jit``."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from shardwright.feeding import ByShape
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_names, wrong_value
from shardwright.mindspore.context import check_ranks, get_auto_parallel_context, get_seed
from shardwright.mindspore.running import Running, as_arrays
from shardwright.mindspore.simulation import is_simulated
from shardwright.mindspore.spread import options_of_context
from shardwright.operators.info import Array
from shardwright.parameter import Parameter
from shardwright.server.session import WorkerSession, begin, is_on
from shardwright.session import ParallelOptions
from shardwright.tensor import Tensor
from shardwright.tracer import is_tracing

_OPTIONS = ("jit_level", "backend", "fullgraph", "capture_mode")


class ParameterTuple(tuple[Parameter, ...]):
    """Parameters, each once.

    Raises
    ------
    OptionError
        If something else stands among them, or one is given twice.
    """

    __slots__ = ()

    def __new__(cls, iterable: Iterable[Parameter]) -> "ParameterTuple":
        """Check and keep the parameters."""
        parameters = tuple(iterable)
        for i, parameter in enumerate(parameters):
            if not isinstance(parameter, Parameter):
                raise wrong_value("iterable", parameter, "parameters")
            if any(parameter is other for other in parameters[:i]):
                raise OptionError(f"`ParameterTuple` is given {parameter!r} twice")
        return super().__new__(cls, parameters)


class Step:
    """A function that is traced and compiled when it is called with data.

    A call runs it on the ranks of this script, as the context says, and returns what it returns.
    `AutoParallel` takes the function itself. In a simulation it is compiled for the ranks that the
    context names, and returns zeros.

    Parameters
    ----------
    function : callable
        A training step, which applies an optimizer; or any function of tensors.
    """

    simulated: ClassVar[Callable[..., Any]]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self._zeros: dict[Any, Any] = {}
        self._sessions: ByShape[Running] = ByShape()
        self._served: ByShape[WorkerSession] = ByShape()

    def __call__(self, *inputs: Any) -> Any:
        """Train a step; within a trace, apply the function."""
        if is_tracing():
            return self.function(*inputs)
        if is_simulated() and get_auto_parallel_context("device_num") > 1:
            return self._simulated(inputs)
        arrays = as_arrays(inputs)
        check_ranks()
        if is_on():
            return Tensor(np.float32(self._served_by(arrays).step(arrays)))
        return self._sessions.session(arrays, lambda: self._begin(arrays))(arrays)

    def _simulated(self, inputs: Sequence[Any]) -> Any:
        """Compile for inputs of these shapes, once; return zeros."""
        shapes = tuple(array.shape for array in as_arrays(inputs))
        if shapes not in self._zeros:
            self._zeros[shapes] = Step.simulated(self.function, inputs)
        return self._zeros[shapes]

    def read(self, name: str) -> Array:
        """Return a state of the program that ran last.

        Raises
        ------
        OptionError
            If there is none in this process: parameters are on servers.
        """
        if self._sessions.current is None:
            raise OptionError(
                f"`{name}` is wanted of a step whose parameters are on servers",
                hint="train without servers, or without a loss scale that follows overflows",
            )
        return self._sessions.current.session.read(name)

    def _begin(self, arrays: list[Array]) -> Running:
        return Running(self.function, arrays, options_of_context(self.function), get_seed() or 0)

    def _served_by(self, arrays: list[Array]) -> WorkerSession:
        batch = {f"input{i}": array for i, array in enumerate(arrays)}
        return self._served.session(
            arrays,
            lambda: begin(self.function, batch, ParallelOptions(), seed=get_seed() or 0),
        )


def jit(function: Callable[..., Any] | None = None, **options: object) -> Any:
    """Return a function that is traced and compiled when it is called.

    Parameters
    ----------
    function : callable, optional
        The function; without it, a decorator is returned.
    **options
        ``jit_level``, ``backend``, ``fullgraph`` and ``capture_mode``, which change nothing: a
        function is traced and compiled whole.

    Raises
    ------
    OptionError
        If there is no such option.
    """
    check_names("`jit` has no option", options, _OPTIONS)
    return Step if function is None else Step(function)
