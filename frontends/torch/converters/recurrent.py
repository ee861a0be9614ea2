"""Recurrent networks: a recurrent layer for each layer and direction.

An LSTM with projections is unrolled, one cell for each step.
"""

from typing import Any

from shardwright.frontends.common.errors import MOST_STEPS, UnsupportedError
from shardwright.frontends.torch.aten import converts
from shardwright.frontends.torch.aten_call import Call
from shardwright.frontends.torch.converters.normalization import dropped
from shardwright.ir.graph import Value

State = tuple[Value, ...]


def _lstm_step(call: Call, gates: Value, cell: Value) -> State:
    i, f, g, o = call.emit_all("split", gates, axis=1, parts=4)
    kept = call.emit("mul", call.emit("sigmoid", f), cell)
    new = call.emit("mul", call.emit("sigmoid", i), call.emit("tanh", g))
    c = call.emit("add", kept, new)
    return call.emit("mul", call.emit("sigmoid", o), call.emit("tanh", c)), c


def _product(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    found = call.emit("matmul", x, weight, transpose_b=True)
    return found if bias is None else call.emit("add", found, bias)


def _direction(
    call: Call, cell: str, x: Value, parameters: list[Value], state: State, reverse: bool
) -> tuple[Value, State]:
    """Return the outputs ``[step, sample, feature]`` of one direction, and the last state."""
    biases = parameters[2:4] if len(parameters) > 3 else [None, None]
    entered = _product(call, x, parameters[0], biases[0])
    if len(parameters) % 2:
        return _projected(call, entered, parameters, state, reverse)
    operands = [entered, parameters[1], *state, *(bias for bias in biases[1:] if bias is not None)]
    found = call.emit_all("recurrent_layer", *operands, cell=cell, reverse=reverse)
    end = 0 if reverse else x.type.shape[0] - 1
    return found[0], tuple(_row(call, states, end) for states in found)


def _projected(
    call: Call, entered: Value, parameters: list[Value], state: State, reverse: bool
) -> tuple[Value, State]:
    """Unroll an LSTM whose outputs are projected before they are read again."""
    bias, projection = parameters[3] if len(parameters) > 3 else None, parameters[-1]
    outputs, steps = [], range(entered.type.shape[0])
    for step in reversed(steps) if reverse else steps:
        turned = _product(call, state[0], parameters[1], bias)
        gates = call.emit("add", _row(call, entered, step), turned)
        h, c = _lstm_step(call, gates, state[1])
        state = (_product(call, h, projection, None), c)
        outputs.append(state[0])
    return call.emit("stack", *(outputs[::-1] if reverse else outputs), axis=0), state


def _network(
    call: Call,
    cell: str,
    x: Value,
    states: list[Value],
    params: list[Value],
    how: dict[str, Any],
) -> list[Value]:
    """Return the outputs of the last layer, and the last states of all layers."""
    ways = 2 if how["bidirectional"] else 1
    each = (4 if how["has_biases"] else 2) + how["projected"]
    if how["batch_first"]:
        x = call.transpose(x, (1, 0, 2))
    if how["projected"] and x.type.shape[0] * how["num_layers"] * ways > MOST_STEPS:
        raise UnsupportedError(f"an LSTM with projections of more than {MOST_STEPS} steps")
    last: list[State] = []
    for layer in range(how["num_layers"]):
        made = []
        for way in range(ways):
            at = layer * ways + way
            own = params[at * each : (at + 1) * each]
            begin = tuple(_row(call, state, at) for state in states)
            output, state = _direction(call, cell, x, own, begin, way == 1)
            made.append(output)
            last.append(state)
        x = made[0] if ways == 1 else call.emit("concat", *made, axis=2)
        if how["train"] and how["dropout"] and layer + 1 < how["num_layers"]:
            x = dropped(call, x, how["dropout"])
    x = call.transpose(x, (1, 0, 2)) if how["batch_first"] else x
    return [x, *(call.emit("stack", *parts, axis=0) for parts in zip(*last, strict=True))]


def _row(call: Call, states: Value, at: int) -> Value:
    return call.reshape(call.part(states, 0, at, 1), states.type.shape[1:])


@converts("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def _recurrent(
    call: Call,
    x: Value,
    hx: Value | list[Value],
    params: list[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    cell = call.operator.split(".")[1].removeprefix("rnn_")
    states = hx if isinstance(hx, list) else [hx]
    how = {
        "has_biases": has_biases,
        "num_layers": num_layers,
        "dropout": dropout,
        "train": train,
        "bidirectional": bidirectional,
        "batch_first": batch_first,
        "projected": len({state.type.shape[-1] for state in states}) > 1,
    }
    return _network(call, cell, x, states, params, how)
