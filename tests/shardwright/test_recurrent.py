"""Recurrent networks against their formulas, step by step."""

import numpy as np
import pytest

from shardwright import nn
from shardwright.communication import world
from shardwright.ir.errors import ModelError, OptionError
from shardwright.mindspore.parallel import AutoParallel
from shardwright.tensor import Tensor, tensors_in

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(5, 2, 3).astype(np.float32)
LENGTHS = np.array([3, 5], np.int32)


def valued(net):
    """Return a network whose parameters have values."""
    for _, parameter in net.parameters_and_names():
        parameter.set_data(Tensor(RANDOM.uniform(-0.6, 0.6, parameter.shape).astype(np.float32)))
    return net


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def stepped(kind, entered, turned, state):
    """Return the next state, by the products of inputs and of the state."""
    if kind is nn.GRU:
        (r, z, n), (hr, hz, hn) = np.split(entered, 3, 1), np.split(turned, 3, 1)
        r, z = sigmoid(r + hr), sigmoid(z + hz)
        new = np.tanh(n + r * hn)
        return [new + z * (state[0] - new)]
    gates = entered + turned
    if kind is nn.RNN:
        return [np.tanh(gates)]
    i, f, g, o = np.split(gates, 4, 1)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def followed(kind, x, weights, suffix, lengths):
    """Return the outputs at all steps, and the last states, of each sample by itself."""
    size = weights[f"weight_hh{suffix}"].shape[1]
    outputs = np.zeros((*x.shape[:2], size), np.float32)
    last = [np.zeros((x.shape[1], size), np.float32) for _ in range(1 + (kind is nn.LSTM))]
    for sample, length in enumerate(lengths):
        state = [np.zeros((1, size)) for _ in last]
        steps = range(length)
        for step in reversed(steps) if suffix.endswith("reverse") else steps:
            of_input = x[step, sample][None] @ weights[f"weight_ih{suffix}"].T
            of_state = state[0] @ weights[f"weight_hh{suffix}"].T
            biases = [weights.get(f"bias_{which}{suffix}", 0) for which in ("ih", "hh")]
            state = stepped(kind, of_input + biases[0], of_state + biases[1], state)
            outputs[step, sample] = state[0][0]
        for whole, part in zip(last, state, strict=True):
            whole[sample] = part[0]
    return outputs, last


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_layers_and_directions_follow_the_formula(kind, lengths):
    net = valued(kind(3, 4, 2, bidirectional=True))
    given = () if lengths is None else (Tensor(lengths),)
    found, states = net(Tensor(X), None, *given)
    weights = {name: p.asnumpy() for name, p in net.parameters_and_names()}
    x, finals = X, []
    for layer in range(2):
        both = [
            followed(kind, x, weights, f"_l{layer}{way}", [5, 5] if lengths is None else lengths)
            for way in ("", "_reverse")
        ]
        x = np.concatenate([outputs for outputs, _ in both], 2)
        finals += [last for _, last in both]
    np.testing.assert_allclose(found.asnumpy(), x, rtol=1e-4, atol=1e-6)
    states = states if isinstance(states, tuple) else (states,)
    for state, expected in zip(states, zip(*finals, strict=True), strict=True):
        np.testing.assert_allclose(state.asnumpy(), np.stack(expected), rtol=1e-4, atol=1e-6)


def test_steps_are_those_of_a_layer():
    cell, net = nn.LSTMCell(3, 4), valued(nn.LSTM(3, 4))
    for name, parameter in cell.parameters_and_names():
        parameter.set_data(getattr(net, f"{name}_l0"))
    h, c = (Tensor(RANDOM.randn(2, 4).astype(np.float32)) for _ in range(2))
    whole, (hn, cn) = net(Tensor(X[:1]), (h.reshape(1, 2, 4), c.reshape(1, 2, 4)))
    step = cell(Tensor(X[0]), (h, c))
    np.testing.assert_allclose(step[0].asnumpy(), whole.asnumpy()[0], rtol=1e-6)
    np.testing.assert_allclose(step[1].asnumpy(), cn.asnumpy()[0], rtol=1e-6)
    assert hn.shape == (1, 2, 4)


def test_an_lstm_gives_on_two_ranks_what_it_gives_on_one():
    net = valued(nn.LSTM(3, 4, batch_first=True))
    alone = [each.asnumpy() for each in tensors_in(net(Tensor(X)))]
    with world(2):
        found = AutoParallel(net, "auto")(Tensor(X[:4]))
    for each, whole in zip(tensors_in(found), alone, strict=True):
        expected = whole[:4] if len(whole) == 5 else whole[:, :4]
        np.testing.assert_allclose(each.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_states_of_another_shape_are_refused():
    with pytest.raises(ModelError, match=r"are \[\(1, 2, 4\)\], expected 2 of the shape"):
        nn.LSTM(3, 4)(Tensor(X), Tensor(np.zeros((1, 2, 4), np.float32)))
    with pytest.raises(OptionError, match="`nonlinearity` is `sine`"):
        nn.RNN(3, 4, nonlinearity="sine")
