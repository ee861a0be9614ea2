"""Recurrent networks: LSTM, GRU and plain ones, in layers and directions, and single steps.

Parameters are those of MindSpore and PyTorch, by name and order of the gates.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any, ClassVar

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.ir.values import POSITIVE_INTEGER, check_choice, check_flag
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dropout
from shardwright.operators.recurrent.cells import CELLS
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, apply_all

States = tuple[Tensor, ...]


class _Gates(Cell):
    """The base of what has the weights of a recurrent cell, under names with suffixes."""

    kind: ClassVar[str]

    def _make(
        self, suffix: str, input_size: int, hidden_size: int, has_bias: bool, dtype: str
    ) -> None:
        """Make the weights of a cell."""
        rows = CELLS[self._cell].gates * hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size),
            "weight_hh": (rows, hidden_size),
        }
        shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if has_bias else {}
        for name, shape in shapes.items():
            start = f"uniform({1 / sqrt(hidden_size):.6g})"
            setattr(self, name + suffix, Parameter(start, shape=shape, dtype=dtype))

    @property
    def _cell(self) -> str:
        return self.kind

    def _steps(self, x: Tensor, state: States, suffix: str, reverse: bool = False) -> States:
        """Return the states ``[step, sample, feature]`` at all steps."""
        weights = [getattr(self, f"weight_{which}{suffix}") for which in ("ih", "hh")]
        biases = [getattr(self, f"bias_{which}{suffix}", None) for which in ("ih", "hh")]
        entered = ops.MatMul(transpose_b=True)(x, weights[0])
        if biases[0] is not None:
            entered = entered + biases[0]
        own = () if biases[1] is None else (biases[1],)
        how: dict[str, Any] = {"cell": self._cell, "reverse": reverse}
        return apply_all("recurrent_layer", entered, weights[1], *state, *own, **how)


class _Recurrent(_Gates):
    """The base of recurrent networks.

    Parameters
    ----------
    input_size, hidden_size : int
        Number of features of the inputs and of the states.
    num_layers : int
        Number of layers, each of which reads the states of the one before.
    has_bias : bool
        Whether both products have biases.
    batch_first : bool
        Whether inputs are ``[sample, step, feature]``; otherwise ``[step, sample, feature]``.
    dropout : float
        Probability of a zero in what a layer reads of the one before.
    bidirectional : bool
        Whether each layer has a second cell that goes from the last step to the first.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        has_bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str = "float32",
    ) -> None:
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, size in sizes.items():
            POSITIVE_INTEGER.check(name, size)
        flags = {"has_bias": has_bias, "batch_first": batch_first, "bidirectional": bidirectional}
        for name, flag in flags.items():
            check_flag(name, flag)
        self.hidden_size, self.num_layers, self.batch_first = hidden_size, num_layers, batch_first
        self._directions = ("", "_reverse") if bidirectional else ("",)
        for layer in range(num_layers):
            read = hidden_size * len(self._directions) if layer else input_size
            for direction in self._directions:
                self._make(f"_l{layer}{direction}", read, hidden_size, has_bias, dtype)
        self.dropout = Dropout(dropout) if dropout else None

    def construct(
        self, x: Tensor, hx: Tensor | States | None = None, seq_length: Tensor | None = None
    ) -> tuple[Tensor, Tensor | States]:
        """Return the outputs of the last layer at all steps, and the last states of all cells.

        Parameters
        ----------
        x : Tensor
            The inputs.
        hx : Tensor, or a pair of them for an LSTM, optional
            The initial states ``[layer and direction, sample, feature]``; zeros unless given.
        seq_length : Tensor, optional
            The number of steps of each sample; outputs behind it are zeros.
        """
        x = x.swapaxes(0, 1) if self.batch_first else x
        initial = self._initial(x, hx)
        last: list[States] = []
        for layer in range(self.num_layers):
            if layer and self.dropout is not None:
                x = self.dropout(x)
            found = []
            for direction in self._directions:
                begin = tuple(state[len(last)] for state in initial)
                states = self._of_direction(x, begin, f"_l{layer}{direction}", seq_length)
                found.append(states[0][0])
                last.append(states[1])
            x = apply("concat", *found, axis=2) if len(found) > 1 else found[0]
        finals = tuple(apply("stack", *each, axis=0) for each in zip(*last, strict=True))
        made = x.swapaxes(0, 1) if self.batch_first else x
        return made, finals if len(finals) > 1 else finals[0]

    def _initial(self, x: Tensor, hx: Tensor | States | None) -> States:
        """Return the initial states.

        Raises
        ------
        ModelError
            If they are given in another number or shape.
        """
        cells = self.num_layers * len(self._directions)
        shape, count = (cells, x.shape[1], self.hidden_size), CELLS[self._cell].states
        if hx is None:
            return (apply("fill", shape=shape, value=0.0, dtype=x.dtype),) * count
        states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if [state.shape for state in states] != [shape] * count:
            raise ModelError(
                f"the initial states of `{type(self).__name__}` are "
                f"{[state.shape for state in states]}, expected {count} of the shape {shape}"
            )
        return states

    def _of_direction(
        self, x: Tensor, begin: States, suffix: str, lengths: Tensor | None
    ) -> tuple[States, States]:
        """Return the states at all steps, and behind the last one."""
        reverse = suffix.endswith("_reverse")
        if lengths is None:
            states = self._steps(x, begin, suffix, reverse)
            return states, tuple(state[0 if reverse else -1] for state in states)
        steps = Tensor(list(range(len(x))), "int32").reshape((-1, 1))
        own = apply("less", steps, lengths.astype("int32"))
        turned = apply("where", own, lengths.astype("int32") - 1 - steps, steps)
        states = self._steps(_at(x, turned) if reverse else x, begin, suffix)
        ends = (lengths.astype("int32") - 1).reshape((1, -1))
        last = tuple(apply("squeeze", _at(state, ends), axis=0) for state in states)
        kept = apply("expand_dims", own, axis=-1)
        states = tuple(_at(state, turned) if reverse else state for state in states)
        return tuple(
            apply("mask", s, apply("broadcast_to", kept, shape=s.shape)) for s in states
        ), last


def _at(x: Tensor, steps: Tensor) -> Tensor:
    """Return each sample at steps of its own: ``[step, sample]``."""
    places = apply("expand_dims", steps, axis=-1)
    shape = (*steps.shape, x.shape[2])
    return apply("gather_elements", x, apply("broadcast_to", places, shape=shape), axis=0)


class LSTM(_Recurrent):
    """Long short-term memory, in layers; see `_Recurrent` for the arguments."""

    kind = "lstm"


class GRU(_Recurrent):
    """Gated recurrent units, in layers."""

    kind = "gru"


class RNN(_Recurrent):
    """Plain recurrent units, in layers, with ``tanh`` or ``relu``."""

    def __init__(self, *arguments: Any, nonlinearity: str = "tanh", **named: Any) -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        self.nonlinearity = nonlinearity
        super().__init__(*arguments, **named)

    @property
    def _cell(self) -> str:
        return self.nonlinearity


class _Step(_Gates):
    """The base of single steps of a recurrent cell.

    Parameters
    ----------
    input_size, hidden_size : int
        Number of features of the inputs and of the states.
    has_bias : bool
        Whether both products have biases.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self, input_size: int, hidden_size: int, has_bias: bool = True, dtype: str = "float32"
    ) -> None:
        check_flag("has_bias", has_bias)
        self._make("", input_size, hidden_size, has_bias, dtype)

    def construct(self, x: Tensor, hx: Tensor | Sequence[Tensor]) -> Tensor | States:
        """Return the states after a step ``[sample, feature]``."""
        state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        entered = apply("expand_dims", x, axis=0)
        found = tuple(apply("squeeze", s, axis=0) for s in self._steps(entered, state, ""))
        return found if len(found) > 1 else found[0]


class LSTMCell(_Step):
    """A step of long short-term memory: the output and the cell of a pair of them."""

    kind = "lstm"


class GRUCell(_Step):
    """A step of a gated recurrent unit."""

    kind = "gru"


class RNNCell(_Step):
    """A step of a plain recurrent unit, with ``tanh`` or ``relu``."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        has_bias: bool = True,
        nonlinearity: str = "tanh",
        dtype: str = "float32",
    ) -> None:
        check_choice("nonlinearity", nonlinearity, ("tanh", "relu"))
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, has_bias, dtype)

    @property
    def _cell(self) -> str:
        return self.nonlinearity


__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]
