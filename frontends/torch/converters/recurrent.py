"""Recurrent networks, unrolled: one cell for each step."""

from collections.abc import Callable
from typing import Any

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.torch.call import Call
from shardwright.frontends.torch.converters.normalization import dropped
from shardwright.frontends.torch.table import converts
from shardwright.ir.graph import Value

MOST_STEPS = 1024  # of all layers together
State = tuple[Value, ...]
Cell = Callable[[Call, Value, Value, State], State]


def _parts(call: Call, gates: Value, count: int) -> tuple[Value, ...]:
    return call.emit_all("split", gates, axis=1, parts=count)


def _lstm_cell(call: Call, x: Value, turned: Value, state: State) -> State:
    i, f, g, o = _parts(call, call.emit("add", x, turned), 4)
    kept = call.emit("mul", call.emit("sigmoid", f), state[1])
    new = call.emit("mul", call.emit("sigmoid", i), call.emit("tanh", g))
    c = call.emit("add", kept, new)
    return call.emit("mul", call.emit("sigmoid", o), call.emit("tanh", c)), c


def _gru_cell(call: Call, x: Value, turned: Value, state: State) -> State:
    (r, z, n), (hr, hz, hn) = _parts(call, x, 3), _parts(call, turned, 3)
    reset = call.emit("sigmoid", call.emit("add", r, hr))
    update = call.emit("sigmoid", call.emit("add", z, hz))
    new = call.emit("tanh", call.emit("add", n, call.emit("mul", reset, hn)))
    distance = call.emit("sub", state[0], new)
    return (call.emit("add", new, call.emit("mul", update, distance)),)


def _plain_cell(function: str) -> Cell:
    def cell(call: Call, x: Value, turned: Value, state: State) -> State:
        return (call.emit(function, call.emit("add", x, turned)),)

    return cell


def _product(call: Call, x: Value, weight: Value, bias: Value | None) -> Value:
    found = call.emit("matmul", x, weight, transpose_b=True)
    return found if bias is None else call.emit("add", found, bias)


def _direction(
    call: Call, cell: Cell, x: Value, parameters: list[Value], state: State, reverse: bool
) -> tuple[Value, State]:
    """Return the outputs ``[step, sample, feature]`` of one direction, and the last state."""
    biases = parameters[2:4] if len(parameters) > 3 else [None, None]
    projection = parameters[-1] if len(parameters) % 2 else None
    entered = _product(call, x, parameters[0], biases[0])
    steps, batch, features = entered.type.shape
    outputs = []
    for step in reversed(range(steps)) if reverse else range(steps):
        now = call.reshape(call.part(entered, 0, step, 1), (batch, features))
        state = cell(call, now, _product(call, state[0], parameters[1], biases[1]), state)
        if projection is not None:
            state = (_product(call, state[0], projection, None), *state[1:])
        outputs.append(state[0])
    return call.emit("stack", *(outputs[::-1] if reverse else outputs), axis=0), state


def _network(
    call: Call,
    cell: Cell,
    x: Value,
    states: list[Value],
    params: list[Value],
    how: dict[str, Any],
) -> list[Value]:
    """Return the outputs of the last layer, and the last states of all layers."""
    ways = 2 if how["bidirectional"] else 1
    each = (4 if how["has_biases"] else 2) + how.get("projected", False)
    if how["batch_first"]:
        x = call.transpose(x, (1, 0, 2))
    if x.type.shape[0] * how["num_layers"] * ways > MOST_STEPS:
        raise UnsupportedError(f"a recurrent network of more than {MOST_STEPS} steps")
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


@converts("aten.lstm.input")
def _lstm(
    call: Call,
    x: Value,
    hx: list[Value],
    params: list[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    how = _options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    how["projected"] = len({state.type.shape[-1] for state in hx}) > 1
    return _network(call, _lstm_cell, x, hx, params, how)


@converts("aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def _recurrent(
    call: Call,
    x: Value,
    hx: Value,
    params: list[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Value]:
    cells: dict[str, Cell] = {
        "gru": _gru_cell,
        "rnn_tanh": _plain_cell("tanh"),
        "rnn_relu": _plain_cell("relu"),
    }
    cell = cells[call.operator.split(".")[1]]
    how = _options(has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return _network(call, cell, x, [hx], params, how)


def _options(
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> dict[str, Any]:
    return {
        "has_biases": has_biases,
        "num_layers": num_layers,
        "dropout": dropout,
        "train": train,
        "bidirectional": bidirectional,
        "batch_first": batch_first,
    }
