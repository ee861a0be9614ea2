"""An operator of one's own: its rule, kernel and gradient, and nothing about parallelism.

    python examples/own_operator.py

checks the operator under every strategy. A network with it is compiled and verified like any other:

    shardwright compile examples/own_operator.py:network --devices 8 --out plans/own
    shardwright verify plans/own --plugin examples/own_operator.py
"""

import numpy as np

import shardwright as sw
from shardwright import nn, ops
from shardwright.operators.info import Example, OperatorInfo, register


@register
class OuterProductMean(OperatorInfo):
    """The mean, over sequences, of the outer product of two rows (AlphaFold 2's)."""

    name = "outer_product_mean"
    notation = "s+ i c, s+ j d -> i c j d"  # s is contracted: splitting it leaves partial sums
    linear = ((0,), (1,))
    flops_per_point = 2.0
    examples = (Example(("f64[6, 4, 2]", "f64[6, 4, 3]")),)

    def kernel(self, view, a, b):
        return np.einsum("sic,sjd->icjd", a, b) / self.rule.sizes["s"]  # the whole size, not a's

    def gradient(self, build, at):
        (a, b), (g,) = at.operands, at.cotangents
        g = build.emit("scale", g, factor=1 / self.rule.sizes["s"])
        return [
            build.emit("einsum", g, b, equation="icjd,sjd->sic"),
            build.emit("einsum", g, a, equation="icjd,sic->sjd"),
        ]


class Network(nn.Cell):
    def __init__(self):
        self.left = nn.Dense(32, 16)
        self.right = nn.Dense(32, 16)

    def construct(self, sequences):
        pairs = ops.outer_product_mean(self.left(sequences), self.right(sequences))
        return (pairs * pairs).mean()


def network():
    return Network(), (sw.InputSpec("sequences", sw.TensorType("float32", (64, 48, 32))),)


if __name__ == "__main__":
    print(sw.check_operator("outer_product_mean"))
