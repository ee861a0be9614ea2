"""Grouped and depthwise convolutions on numpy, beside dense ones of as many operations.

    OPENBLAS_NUM_THREADS=1 python benchmarks/grouped_convolution.py

Prints for each case the milliseconds of the convolution and of its two gradients, and how much
longer each takes than that of a dense convolution on the same space. Where a case has many channels
for its operations, memory sets the pace: its elements are read and written once at the least.
"""

import time

import numpy as np

from shardwright.ir.types import TensorType
from shardwright.operators.info import Array, OperatorInfo, operator_info, whole_kernel

CASES = (  # batch, channels, side, groups
    (8, 128, 56, 32),
    (8, 256, 28, 32),
    (8, 512, 14, 32),
    (8, 1024, 7, 32),
    (8, 256, 28, 4),
    (1, 96, 56, 96),
    (8, 96, 56, 96),
    (8, 576, 14, 576),
    (32, 960, 7, 960),
    (8, 576, 56, 576),
)
KERNEL, REPEATS = 3, 9


def milliseconds(info: OperatorInfo, *operands: Array) -> float:
    """Return the least time of several runs."""
    whole_kernel(info, *operands)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        whole_kernel(info, *operands)
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def measured(batch: int, channels: int, side: int, groups: int) -> tuple[Array, float]:
    """Return the milliseconds of a convolution and of both gradients, and its operations."""
    random = np.random.default_rng(0)
    x = random.random((batch, channels, side, side), np.float32)
    w = random.random((channels, channels // groups, KERNEL, KERNEL), np.float32)
    how = {"padding": KERNEL // 2, "groups": groups}

    def info(name: str, *operands: Array, **more: object) -> OperatorInfo:
        kinds = [TensorType("float32", operand.shape) for operand in operands]
        return operator_info(name, kinds, {**how, **more})  # type: ignore[dict-item]

    forward = info("convolution", x, w)
    (y,) = whole_kernel(forward, x, w)
    by_operand = info("transposed_convolution", y, w, size=(side, side))
    by_weight = info("convolution_weight_gradient", x, y, kernel=(KERNEL, KERNEL))
    times = (
        milliseconds(forward, x, w),
        milliseconds(by_operand, y, w),
        milliseconds(by_weight, x, y),
    )
    return np.array(times), forward.flops


def main() -> None:
    """Print a line for each case."""
    print(f"{'batch channels side groups':28}{'ms: forward, by operand, by weight':38}over dense")
    for batch, channels, side, groups in CASES:
        times, flops = measured(batch, channels, side, groups)
        width = max(1, round((channels * channels / groups) ** 0.5))
        dense, as_many = measured(batch, width, side, 1)
        ratios = times / dense * as_many / flops
        shape = f"{batch:5} {channels:8} {side:4} {groups:6}"
        cells = [" ".join(f"{n:8.2f}" for n in row) for row in (times, ratios)]
        print(f"{shape:28}{cells[0]:38}{cells[1]}")


if __name__ == "__main__":
    main()
