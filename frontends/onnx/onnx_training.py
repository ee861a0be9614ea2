"""ONNX operators that update parameters."""

from collections.abc import Callable

from shardwright.frontends.common.items import Item
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array

_DOMAIN = "ai.onnx.preview.training"
Update = Callable[[Call, Value, list[Value]], list[Value]]


def _updates(call: Call, states: int, update: Update) -> list[Item | Array]:
    """Apply an update to every tensor; all tensors come first, then all gradients, and so on."""
    count = (len(call.items) - 2) // (2 + states)
    made = [
        update(call, call.value(0), [call.value(2 + i + n * count) for n in range(2 + states)])
        for i in range(count)
    ]
    return [part for parts in zip(*made, strict=True) for part in parts]


def _decayed(call: Call, x: Value, gradient: Value) -> Value:
    """Return a gradient plus the gradient of the squared norm of the parameters."""
    factor = float(call.attribute("norm_coefficient", 0.0))
    return call.emit("add", gradient, call.emit("scale", x, factor=factor)) if factor else gradient


def _stepped(call: Call, x: Value, rate: Value, direction: Value) -> Value:
    rate = call.cast(rate, x.type.dtype)
    return call.emit("sub", x, call.emit("mul", rate, direction))


def _mixed(call: Call, old: Value, new: Value, kept: float) -> Value:
    a, b = call.emit("scale", old, factor=kept), call.emit("scale", new, factor=1 - kept)
    return call.emit("add", a, b)


@converts(f"{_DOMAIN}.Momentum")
def _momentum(call: Call) -> list[Item | Array]:
    first = int(call.number(1)) == 0
    alpha = float(call.attribute("alpha"))
    beta = 1.0 if first else float(call.attribute("beta"))
    nesterov = call.attribute("mode") == "nesterov"

    def update(call: Call, rate: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, velocity = tensors
        gradient = _decayed(call, x, gradient)
        velocity = call.emit(
            "add",
            call.emit("scale", velocity, factor=alpha),
            call.emit("scale", gradient, factor=beta),
        )
        direction = velocity
        if nesterov:
            direction = call.emit("add", gradient, call.emit("scale", velocity, factor=alpha))
        return [_stepped(call, x, rate, direction), velocity]

    return _updates(call, 1, update)


@converts(f"{_DOMAIN}.Adagrad")
def _adagrad(call: Call) -> list[Item | Array]:
    decay = 1.0 / (1.0 + int(call.number(1)) * float(call.attribute("decay_factor", 0.0)))
    epsilon = float(call.attribute("epsilon", 1e-6))

    def update(call: Call, rate: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, squares = tensors
        gradient = _decayed(call, x, gradient)
        squares = call.emit("add", squares, call.emit("square", gradient))
        root = call.emit("add_scalar", call.emit("sqrt", squares), value=epsilon)
        direction = call.emit("scale", call.emit("div", gradient, root), factor=decay)
        return [_stepped(call, x, rate, direction), squares]

    return _updates(call, 1, update)


@converts(f"{_DOMAIN}.Adam")
def _adam(call: Call) -> list[Item | Array]:
    step = int(call.number(1))
    alpha, beta = float(call.attribute("alpha", 0.9)), float(call.attribute("beta", 0.999))
    epsilon = float(call.attribute("epsilon", 1e-6))
    after = 1 - float(call.attribute("norm_coefficient_post", 0.0))
    factor = ((1 - beta**step) ** 0.5 / (1 - alpha**step)) if step else 1.0

    def update(call: Call, rate: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, mean, squares = tensors
        gradient = _decayed(call, x, gradient)
        mean = _mixed(call, mean, gradient, alpha)
        squares = _mixed(call, squares, call.emit("square", gradient), beta)
        root = call.emit("add_scalar", call.emit("sqrt", squares), value=epsilon)
        direction = call.emit("scale", call.emit("div", mean, root), factor=factor)
        new = _stepped(call, x, rate, direction)
        return [call.emit("scale", new, factor=after) if after != 1 else new, mean, squares]

    return _updates(call, 2, update)
