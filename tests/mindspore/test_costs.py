"""Strategies and costs that MindSpore 2.7.0 logs for small networks, on 8 devices.

Searched by its dynamic programming, with inputs that arrive whole on every device. Left out are
reshapes, which MindSpore redistributes inside of the operator; tiles, which it splits by copies
only; and where a weight has two readers, of which its eliminations count one twice.
"""

from collections.abc import Callable

import pytest

from shardwright.ir.graph import Value
from shardwright.operators.info import SplitCounts
from tests.mindspore.test_search import Vector

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


def convolved(net: Vector, x: Value) -> Value:
    return net.emit("convolution", x, net.weight("k", 16, 8, 3, 3), name="conv", padding="same")


def pooled(net: Vector, x: Value) -> Value:
    return net.emit("max_pool", convolved(net, x), kernel=(2, 2), stride=2, name="last")


def in_batches(net: Vector, x: Value) -> Value:
    return net.emit("matmul", x, net.weight("w", 4, 64, 128), name="product")


def parted(net: Vector, x: Value) -> Value:
    return net.emit("maximum", *net.emit_all("split", product(net, x), axis=1, parts=2))


def shared_out(net: Vector, x: Value) -> Value:
    hidden = product(net, x)
    return net.emit("div", hidden, net.emit("reduce_sum", hidden, axis=0), name="last")


def after_product(operator: str, *weights: int, **attributes: object) -> Network:
    def build(net: Vector, x: Value) -> Value:
        others = (net.weight("b", *weights),) if weights else ()
        return net.emit(operator, product(net, x), *others, name="last", **attributes)  # type: ignore[arg-type]

    return build


def with_weights(operator: str, *names: str) -> Network:
    return lambda net, x: net.emit(operator, x, *(net.weight(n, 64) for n in names), name="last")


ROWS, COLUMNS = ((8, 1), (1, 1)), ((1, 1), (1, 8))
WHOLE, MATRIX, IMAGES = (1, 1), (128, 64), (16, 8, 32, 32)
SAMPLES = ((8, 1, 1, 1), (1, 1, 1, 1))


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
        (after_product("reduce_mean", axis=(0, 1)), MATRIX, 255_590, {"last": (WHOLE,)}),
        (after_product("log_softmax"), MATRIX, 144_996, {"last": ((8, 1),)}),
        (after_product("l2_normalize", axis=1), MATRIX, 144_996, {"last": ((8, 1),)}),
        (after_product("cumsum", axis=1), MATRIX, 144_996, {"last": ((8, 1),)}),
        (after_product("slice", begin=(0, 0), size=MATRIX), MATRIX, 144_996, {"last": ((8, 1),)}),
        (after_product("expand_dims", axis=1), MATRIX, 57_344, {"last": ((1, 8),)}),
        (parted, MATRIX, 161_379, {"product": ROWS}),
        (shared_out, MATRIX, 73_856, {"last": ((1, 8), (8,))}),
        (in_batches, (4, 32, 64), 49_152, {"product": ((1, 1, 1), (1, 1, 8))}),
        (convolved, IMAGES, 596_274, {"conv": SAMPLES}),
        (pooled, IMAGES, 727_345, {"conv": SAMPLES, "last": ((8, 1, 1, 1),)}),
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


def test_a_person_may_split_a_convolution_otherwise() -> None:
    net = Vector()
    convolved(net, net.given("x", *IMAGES))
    channels: SplitCounts = ((1, 1, 1, 1), (8, 1, 1, 1))
    counts, _ = net.found("2025", 8, "exact", {"conv": channels})
    assert counts["conv"] == channels
