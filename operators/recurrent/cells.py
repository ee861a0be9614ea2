"""Cells of recurrent networks: one step on whole arrays, and its gradient.

A step takes its part of the inputs (``entered``) and of the recurrent product (``turned``), each
``[sample, gate feature]``, gate by gate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.operators.elementwise.activation import sigmoid
from shardwright.operators.info import Array

State = tuple[Array, ...]
Gates = tuple[Array, Array]


@dataclass(frozen=True)
class Cell:
    """A cell.

    Parameters
    ----------
    gates, states : int
        The number of its gates, and of the tensors of its state; the first of them is its output.
    step : callable
        The state after a step, of the gates and the state before.
    pull : callable
        The gradients by the gates and, beside the recurrent product, by the state before: of the
        gates, the state before, and the gradient by the state after.
    """

    gates: int
    states: int
    step: Callable[[Gates, State], State]
    pull: Callable[[Gates, State, State], tuple[Array, Array, State]]


def _parts(x: Array, count: int) -> list[Array]:
    return np.split(x, count, axis=-1)


def _lstm_gates(gates: Gates) -> list[Array]:
    i, f, g, o = _parts(gates[0] + gates[1], 4)
    return [sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)]


def _lstm(gates: Gates, state: State) -> State:
    i, f, g, o = _lstm_gates(gates)
    c = f * state[1] + i * g
    return o * np.tanh(c), c


def _lstm_pull(gates: Gates, before: State, slope: State) -> tuple[Array, Array, State]:
    i, f, g, o = _lstm_gates(gates)
    tanh, dh = np.tanh(f * before[1] + i * g), slope[0]
    dc = slope[1] + dh * o * (1 - tanh * tanh)
    of_gates = (
        dc * g * i * (1 - i),
        dc * before[1] * f * (1 - f),
        dc * i * (1 - g * g),
        dh * tanh * o * (1 - o),
    )
    dz = np.concatenate(of_gates, axis=-1)
    return dz, dz, (np.zeros_like(dh), dc * f)


def _gru_gates(gates: Gates) -> list[Array]:
    (r, z, n), (hr, hz, hn) = (_parts(x, 3) for x in gates)
    r = sigmoid(r + hr)
    return [r, sigmoid(z + hz), np.tanh(n + r * hn), hn]


def _gru(gates: Gates, state: State) -> State:
    _, z, n, _ = _gru_gates(gates)
    return (n + z * (state[0] - n),)


def _gru_pull(gates: Gates, before: State, slope: State) -> tuple[Array, Array, State]:
    r, z, n, hn = _gru_gates(gates)
    dh = slope[0]
    dn = dh * (1 - z) * (1 - n * n)
    dr = dn * hn * r * (1 - r)
    dz = dh * (before[0] - n) * z * (1 - z)
    entered = np.concatenate((dr, dz, dn), axis=-1)
    return entered, np.concatenate((dr, dz, dn * r), axis=-1), (dh * z,)


def _plain(function: Callable[[Array], Array]) -> Callable[[Gates, State], State]:
    return lambda gates, state: (function(gates[0] + gates[1]),)


def _plain_pull(
    slope_at: Callable[[Array], Array],
) -> Callable[[Gates, State, State], tuple[Array, Array, State]]:
    def pull(gates: Gates, before: State, slope: State) -> tuple[Array, Array, State]:
        dz = slope[0] * slope_at(gates[0] + gates[1])
        return dz, dz, (np.zeros_like(dz),)

    return pull


CELLS = {
    "lstm": Cell(4, 2, _lstm, _lstm_pull),
    "gru": Cell(3, 1, _gru, _gru_pull),
    "tanh": Cell(1, 1, _plain(np.tanh), _plain_pull(lambda x: 1 - np.tanh(x) ** 2)),
    "relu": Cell(1, 1, _plain(lambda x: np.maximum(x, 0)), _plain_pull(lambda x: x > 0)),
}
"""The cells by name: those of PyTorch, with its order of gates."""
