"""Strategies and costs that MindSpore 2.7.0 logs for small networks, on 8 devices.

Searched by its dynamic programming, with inputs that arrive whole on every device. Left out are
reshapes, which MindSpore redistributes inside of the operator, and tiles, which it splits by copies
only.
"""

from collections.abc import Callable

import pytest

from shardwright.ir.graph import Value
from shardwright.operators.info import SplitCounts
from tests.passes.test_mindspore_search import Vector

Network = Callable[[Vector, Value], Value]


def product(net: Vector, x: Value) -> Value:
    return net.emit("matmul", x, net.weight("w1", 64, 256), name="product")


def perceptron(net: Vector, x: Value) -> Value:
    hidden = net.emit("add", product(net, x), net.weight("b1", 256))
    hidden = net.emit("relu", hidden, name="relu")
    out = net.emit("matmul", hidden, net.weight("w2", 256, 64), name="second")
    return net.emit("add", out, net.weight("b2", 64), name="last")


def residual(net: Vector, x: Value) -> Value:
    out = net.emit("matmul", product(net, x), net.weight("w2", 256, 64), name="second")
    return net.emit("add", out, x, name="last")


def lessened(net: Vector, x: Value) -> Value:
    hidden = product(net, x)
    how = {"axis": -1, "keep_dims": True, "differentiable": False}
    largest = net.emit("reduce_max", hidden, **how)
    return net.emit("exp", net.emit("sub", hidden, largest), name="last")


def cast(net: Vector, x: Value) -> Value:
    weight = net.emit("cast", net.weight("w1", 64, 256), name="cast", dtype="float16")
    x = net.emit("cast", x, dtype="float16")
    return net.emit("matmul", x, weight, name="product")


def turned(net: Vector, x: Value) -> Value:
    weight = net.weight("w", 256, 64)
    return net.emit("gelu", net.emit("matmul", x, weight, transpose_b=True, name="product"))


def embedded(net: Vector, x: Value) -> Value:
    return net.emit("gather", net.weight("table", 1024, 64), x, name="gather")


def after_product(operator: str, *weights: int, **attributes: object) -> Network:
    def build(net: Vector, x: Value) -> Value:
        others = (net.weight("b", *weights),) if weights else ()
        return net.emit(operator, product(net, x), *others, name="last", **attributes)  # type: ignore[arg-type]

    return build


def with_weights(operator: str, *names: str) -> Network:
    return lambda net, x: net.emit(operator, x, *(net.weight(n, 64) for n in names), name="last")


ROWS, COLUMNS = ((8, 1), (1, 1)), ((1, 1), (1, 8))
WHOLE, MATRIX = (1, 1), (128, 64)


@pytest.mark.parametrize(
    ("network", "shape", "cost", "expected"),
    [
        (perceptron, MATRIX, 275_398, {"product": ROWS, "second": ROWS, "last": ((8, 1), (1,))}),
        (residual, MATRIX, 277_705, {"product": ROWS, "second": ROWS, "last": ((8, 1), (8, 1))}),
        (lessened, MATRIX, 177_826, {"product": ROWS, "last": ((8, 1),)}),
        (cast, MATRIX, 61_440, {"product": COLUMNS, "cast": ((1, 8),)}),
        (turned, MATRIX, 57_344, {"product": ((1, 1), (8, 1))}),
        (embedded, (128,), 33_280, {"gather": ((1, 8), (1,))}),
        (
            lambda net, x: product(net, embedded(net, x)),
            (128,),
            407_091,
            {"gather": ((1, 1), (2,)), "product": ((2, 1), (1, 4))},
        ),
        (after_product("add", 256), MATRIX, 57_472, {"product": COLUMNS, "last": ((1, 8), (8,))}),
        (after_product("mul", 256), MATRIX, 57_472, {"product": COLUMNS, "last": ((1, 8), (8,))}),
        (after_product("softmax"), MATRIX, 144_996, {"product": ROWS, "last": ((8, 1),)}),
        (after_product("reduce_sum", axis=-1), MATRIX, 144_996, {"last": ((8, 1),)}),
        (after_product("reduce_sum", axis=0), MATRIX, 57_344, {"last": ((1, 8),)}),
        (after_product("reduce_mean", axis=0), MATRIX, 57_344, {"last": ((1, 8),)}),
        (with_weights("prelu", "slope"), (32, 64), 8550, {"last": (WHOLE, (1,))}),
        (
            with_weights("layer_norm", "gamma", "beta"),
            MATRIX,
            33_485,
            {"last": (WHOLE, (1,), (1,))},
        ),
    ],
)
@pytest.mark.parametrize("mode", ["exact", "dynamic_programming"])
def test_mindspore_logs_the_same(
    network: Network,
    shape: tuple[int, ...],
    cost: int,
    expected: dict[str, SplitCounts],
    mode: str,
) -> None:
    net = Vector()
    network(net, net.given("x", *shape, dtype="int32" if len(shape) == 1 else "float32"))
    counts, found = net.found("2025", 8, mode)
    assert {name: counts[name] for name in expected} == expected
    assert round(found) == cost
