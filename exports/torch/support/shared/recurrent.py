"""The steps of recurrent layers, by functions that all systems have."""

from collections.abc import Sequence

from .arrays import Array, parts, relu, sigmoid, xp


def next_state(
    cell: str, entered: Array, turned: Array, state: Sequence[Array]
) -> tuple[Array, ...]:
    """Return the state after a step, given its gates of the inputs and of the state before."""
    if cell == "gru":
        (r, z, n), (hr, hz, hn) = parts(entered, 3, -1), parts(turned, 3, -1)
        r, z = sigmoid(r + hr), sigmoid(z + hz)
        n = xp.tanh(n + r * hn)
        return (n + z * (state[0] - n),)
    gates = entered + turned
    if cell != "lstm":
        return (xp.tanh(gates) if cell == "tanh" else relu(gates),)
    i, f, g, o = parts(gates, 4, -1)
    c = sigmoid(f) * state[1] + sigmoid(i) * xp.tanh(g)
    return sigmoid(o) * xp.tanh(c), c
