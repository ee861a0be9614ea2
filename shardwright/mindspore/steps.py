"""Training steps written out: ``jit``."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from shardwright import server
from shardwright.feeding import ByShape
from shardwright.ir.errors import OptionError
from shardwright.ir.values import check_names, wrong_value
from shardwright.mindspore.context import check_ranks, get_context, get_seed
from shardwright.operators.info import Array
from shardwright.parameter import Parameter
from shardwright.session import ParallelOptions, Session, begin
from shardwright.tensor import Tensor
from shardwright.tracer import is_tracing
from shardwright.tracing import Network

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

    A call trains a step, on the ranks of this script, and returns its loss. `AutoParallel` takes
    the function itself.

    Parameters
    ----------
    function : callable
        A training step: returns its loss, and applies an optimizer.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self._sessions: ByShape[Session] = ByShape()

    def __call__(self, *inputs: Any) -> Any:
        """Train a step; within a trace, apply the function."""
        if is_tracing():
            return self.function(*inputs)
        items = [item.asnumpy() if isinstance(item, Tensor) else item for item in inputs]
        arrays = [np.asarray(item) for item in items]
        session = self._sessions.session(arrays, lambda: self._begin(arrays))
        return Tensor(np.float32(session.step(arrays)))

    def _begin(self, arrays: list[Array]) -> Session:
        check_ranks()
        batch = {f"input{i}": array for i, array in enumerate(arrays)}
        network: Network = self.function
        if server.is_on():
            return server.begin(network, batch, ParallelOptions(), seed=get_seed() or 0)
        options = ParallelOptions.of_this_world(deterministic=get_context("deterministic") == "ON")
        return begin(network, batch, options, seed=get_seed() or 0)


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
