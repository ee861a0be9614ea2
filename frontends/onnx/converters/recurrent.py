"""Recurrent layers; one product covers the inputs of all steps.

A layer as PyTorch has it is one operator. One with peepholes, clipped or other activations, or
sequences of several lengths is unrolled over time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.converters.control import at
from shardwright.frontends.onnx.converters.shape import cut
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array

Gate = Callable[[Value], Value]
_DEFAULTS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# The gates of a layer in the order of the operator.
_ORDERS = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "tanh": (0,), "relu": (0,)}
_PLAIN = ("Elu", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Tanh")


@dataclass(frozen=True)
class _Layer:
    """One direction of a layer.

    Parameters
    ----------
    call : Call
        The node.
    gates : tuple of callable
        The activations.
    inputs : Value
        The inputs times their weights: ``[step, batch, gate hidden]``.
    recurrent : Value
        Weights ``[gate hidden, hidden]`` of the last state.
    bias : Value or None
        Bias of the recurrent product, ``[gate hidden]``.
    peepholes : Value or None
        Peephole weights ``[3 hidden]`` of an LSTM.
    """

    call: Call
    gates: tuple[Gate, ...]
    inputs: Value
    recurrent: Value
    bias: Value | None
    peepholes: Value | None

    @property
    def hidden(self) -> int:
        return self.recurrent.type.shape[1]

    def part(self, x: Value, gate: int) -> Value:
        """Return the part of a gate along the last dimension."""
        begin, end = [0] * x.type.rank, list(x.type.shape)
        begin[-1], end[-1] = gate * self.hidden, (gate + 1) * self.hidden
        return cut(self.call, x, begin, end)

    def weight(self, gate: int) -> Value:
        """Return the recurrent weights of a gate."""
        rows = (gate * self.hidden, (gate + 1) * self.hidden)
        return cut(self.call, self.recurrent, (rows[0], 0), (rows[1], self.hidden))

    def recalled(self, h: Value, gate: int | None = None) -> Value:
        """Return a state times the recurrent weights of a gate, or of all gates."""
        weight = self.recurrent if gate is None else self.weight(gate)
        found = self.call.emit("matmul", h, weight, transpose_b=True)
        if self.bias is None:
            return found
        bias = self.bias if gate is None else self.part(self.bias, gate)
        return self.call.emit("add", found, bias)

    def clipped(self, x: Value) -> Value:
        """Return the operand of an activation, clipped."""
        limit = self.call.attribute("clip")
        return self.call.emit("clip", x, low=-float(limit), high=float(limit)) if limit else x

    def gate(self, number: int, x: Value) -> Value:
        """Apply an activation."""
        return self.gates[number](self.clipped(x))


def _rnn_step(layer: _Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    return layer.gate(0, layer.call.emit("add", x, layer.recalled(h))), None


def _gru_step(layer: _Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    emit = layer.call.emit
    z = layer.gate(0, emit("add", layer.part(x, 0), layer.recalled(h, 0)))
    r = layer.gate(0, emit("add", layer.part(x, 1), layer.recalled(h, 1)))
    if layer.call.attribute("linear_before_reset", 0):
        seen = emit("mul", r, layer.recalled(h, 2))
    else:
        seen = layer.recalled(emit("mul", r, h), 2)
    new = layer.gate(1, emit("add", layer.part(x, 2), seen))
    rest = emit("add_scalar", emit("neg", z), value=1.0)
    return emit("add", emit("mul", rest, new), emit("mul", z, h)), None


def _lstm_step(layer: _Layer, x: Value, h: Value, c: Value | None) -> tuple[Value, Value | None]:
    assert c is not None
    emit = layer.call.emit
    total = emit("add", x, layer.recalled(h))

    def seeing(number: int, gate: int, cell: Value) -> Value:
        own = layer.part(total, gate)
        if layer.peepholes is not None:
            own = emit("add", own, emit("mul", layer.part(layer.peepholes, number), cell))
        return layer.gate(0, own)

    i = seeing(0, 0, c)
    coupled = layer.call.attribute("input_forget", 0)
    f = emit("add_scalar", emit("neg", i), value=1.0) if coupled else seeing(2, 2, c)
    new = layer.gate(1, layer.part(total, 3))
    c = emit("add", emit("mul", f, c), emit("mul", i, new))
    o = seeing(1, 1, c)
    return emit("mul", o, layer.gates[2](c)), c


_STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


@converts("RNN", "GRU", "LSTM")
def _recurrent(call: Call) -> list[Item | Array]:
    x = call.value(0)
    batch_first = bool(call.attribute("layout", 0))
    if batch_first:
        x = call.transpose(x, (1, 0, 2))
    direction = call.attribute("direction", "forward")
    turned = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    made = [_run(call, x, number, back) for number, back in enumerate(turned)]
    y = call.emit("stack", *(m[0] for m in made), axis=1)
    last = [call.emit("stack", *parts, axis=0) for parts in zip(*(m[1] for m in made), strict=True)]
    if batch_first:
        y = call.transpose(y, (2, 0, 1, 3))
        last = [call.transpose(part, (1, 0, 2)) for part in last]
    return [y, *last]


def _run(call: Call, x: Value, number: int, back: bool) -> tuple[Value, tuple[Value, ...]]:
    """Run one direction; return the states of all steps, and the last state (and cell)."""
    lengths = call.value(4) if call.has(4) else None
    cell = _cell(call, number)
    if cell and lengths is None:
        return _whole(call, x, number, back, cell)
    layer = _layer(call, _turned(call, x, lengths) if back else x, number)
    states = [_initial(call, 5, number, x)]
    if call.operator == "LSTM":
        states.append(_initial(call, 6, number, x))
    found = []
    for step in range(x.type.shape[0]):
        now = call.importer.value(at(call, layer.inputs, step, 0))
        h, c = _STEPS[call.operator](layer, now, states[0], states[-1])
        new = [h] if c is None else [h, c]
        if lengths is not None:
            running = _running(call, lengths, step)
            found.append(call.emit("mask", h, running))
            new = [call.emit("where", running, a, b) for a, b in zip(new, states, strict=True)]
        else:
            found.append(h)
        states = new
    y = call.emit("stack", *found, axis=0)
    return (_turned(call, y, lengths) if back else y), tuple(states)


def _cell(call: Call, number: int) -> str | None:
    """Return the cell that a direction has; None if the operator has no such cell."""
    defaults = _DEFAULTS[call.operator]
    names = call.attribute("activations", defaults * 2)
    own = tuple(names[number * len(defaults) :][: len(defaults)])
    if call.attribute("clip") or call.attribute("input_forget", 0) or call.has(7):
        return None
    if call.operator == "RNN":
        return {("Tanh",): "tanh", ("Relu",): "relu"}.get(own)
    after = call.operator == "LSTM" or call.attribute("linear_before_reset", 0)
    return call.operator.lower() if after and own == defaults else None


def _whole(
    call: Call, x: Value, number: int, back: bool, cell: str
) -> tuple[Value, tuple[Value, ...]]:
    """Return what one operator gives: the states of all steps, and the last state (and cell)."""
    layer = _layer(call, x, number, _ORDERS[cell])
    states = [_initial(call, 5, number, x)]
    if cell == "lstm":
        states.append(_initial(call, 6, number, x))
    operands = [layer.inputs, layer.recurrent, *states]
    operands += [layer.bias] if layer.bias is not None else []
    found = call.emit_all("recurrent_layer", *operands, cell=cell, reverse=back)
    end = 0 if back else x.type.shape[0] - 1
    return found[0], tuple(call.importer.value(at(call, part, end, 0)) for part in found)


def _turned(call: Call, x: Value, lengths: Value | None) -> Value:
    """Return sequences in reverse order, each up to its length."""
    if lengths is None:
        return call.emit("reverse", x, axis=0)
    found: Value = call.run("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)
    return found


def _running(call: Call, lengths: Value, step: int) -> Value:
    """Return which sequences of a batch are longer than a step."""
    found = call.emit("greater", lengths, call.like(step, lengths))
    return call.reshape(found, (*lengths.type.shape, 1))


def _initial(call: Call, position: int, number: int, x: Value) -> Value:
    if not call.has(position):
        shape = (x.type.shape[1], call.shape(2)[2])
        return call.emit("fill", shape=shape, dtype=x.type.dtype, value=0.0)
    axis = 1 if call.attribute("layout", 0) else 0
    return call.importer.value(at(call, call.value(position), number, axis))


def _layer(call: Call, x: Value, number: int, order: tuple[int, ...] = ()) -> _Layer:
    """Return one direction of a layer, its gates perhaps in another order."""

    def ordered(rows: Value) -> Value:
        count, rest = rows.type.shape[0] // max(len(order), 1), rows.type.shape[1:]
        if order == tuple(range(len(order))):
            return rows
        ends = ((count * gate, count * (gate + 1)) for gate in order)
        none = (0,) * len(rest)
        parts = [cut(call, rows, (first, *none), (last, *rest)) for first, last in ends]
        return call.emit("concat", *parts, axis=0)

    def own(position: int) -> Value | None:
        if not call.has(position):
            return None
        return call.importer.value(at(call, call.value(position), number, 0))

    w, r, b = own(1), own(2), own(3)
    assert w is not None
    assert r is not None
    w, r = ordered(w), ordered(r)
    inputs = call.emit("matmul", x, w, transpose_b=True)
    bias = None
    if b is not None:
        half = b.type.shape[0] // 2
        inputs = call.emit("add", inputs, ordered(cut(call, b, (0,), (half,))))
        bias = ordered(cut(call, b, (half,), (2 * half,)))
    peepholes = own(7) if call.operator == "LSTM" else None
    return _Layer(call, _activations(call, number), inputs, r, bias, peepholes)


def _activations(call: Call, number: int) -> tuple[Gate, ...]:
    """Return the activations of a direction."""
    defaults = _DEFAULTS[call.operator]
    names = call.attribute("activations", defaults * 2)
    alphas = list(call.attribute("activation_alpha", ()))
    betas = list(call.attribute("activation_beta", ()))
    found = []
    for name in names:
        settings = {}
        if name not in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh") and alphas:
            settings["alpha"] = alphas.pop(0)
        if name in ("HardSigmoid", "Affine", "ScaledTanh") and betas:
            settings["beta"] = betas.pop(0)
        found.append(_activation(call, name, settings))
    first = number * len(defaults)
    return tuple(found[first : first + len(defaults)])


def _activation(call: Call, name: str, settings: dict[str, float]) -> Gate:
    if name in _PLAIN:
        return lambda x: call.run(name, x, **settings)
    alpha, beta = settings.get("alpha"), settings.get("beta")
    if name == "HardSigmoid":
        factor, shift = 0.2 if alpha is None else alpha, 0.5 if beta is None else beta

        def hard_sigmoid(x: Value) -> Value:
            line = call.emit("add_scalar", call.emit("scale", x, factor=factor), value=shift)
            return call.emit("clip", line, low=0.0, high=1.0)

        return hard_sigmoid
    if name == "Affine" and alpha is not None:
        return lambda x: call.emit(
            "add_scalar", call.emit("scale", x, factor=alpha), value=float(beta or 0.0)
        )
    raise UnsupportedError(f"the activation `{name}` of a recurrent layer")
