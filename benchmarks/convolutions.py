"""Grouped and depthwise convolutions, and dense: ``python benchmarks/convolutions.py``.

Each has about the floating-point operations of the dense one before it, on as many points. Seconds
are those of one processor core.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from machine import machine  # noqa: E402

from shardwright.ir.types import TensorType  # noqa: E402
from shardwright.operators.info import operator_info  # noqa: E402
from shardwright.operators.windows import depthwise_loops  # noqa: E402

BATCH, KERNEL, REPEATS = 8, 3, 15
# Points along a side, and (channels, groups): dense, grouped, depthwise.
CASES = (
    (56, ((24, 1), (64, 8), (512, 512))),
    (28, ((24, 1), (64, 8), (512, 512))),
    (14, ((24, 1), (64, 8), (512, 512))),
    (7, ((32, 1), (128, 16), (1024, 1024))),
)
OPERATORS = ("convolution", "transposed_convolution", "convolution_weight_gradient")


def main() -> None:
    """Measure, and write the page."""
    page = [
        "# Convolutions: dense, grouped, depthwise",
        "",
        f"Written by `benchmarks/convolutions.py`: {KERNEL} x {KERNEL}, batch {BATCH}, float32,",
        f"one core, the best of {REPEATS}. *By operand* and *by weight* are the",
        "gradients; *Gflop/s* is over all three.",
        f"Measured on {machine()}.",
        "",
    ]
    for compiled in (True, False) if depthwise_loops.COMPILED else (False,):
        depthwise_loops.COMPILED = compiled
        page += [f"## {'With' if compiled else 'Without'} numba", "", *table(), ""]
    Path(__file__).with_suffix(".md").write_text("\n".join(page))


def table() -> list[str]:
    """Measure all cases."""
    rows = [row for side, cases in CASES for row in measured(side, cases)]
    head = ("points", "channels", "groups", "Gflop", "ms forward", "by operand", "by weight")
    head = (*head, "Gflop/s", "seconds per flop, times the dense one's")
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def measured(side: int, cases: tuple[tuple[int, int], ...]) -> list[tuple[str, ...]]:
    """Return a row for each convolution over a space; the first is the baseline of the others."""
    rows, dense = [], 0.0
    for channels, groups in cases:
        flops, seconds = three(side, channels, groups)
        cost = sum(seconds) / (3 * flops)
        dense = dense or cost
        times = (f"{1000 * s:.2f}" for s in seconds)
        places = (f"{side} x {side}", str(channels), str(groups), f"{flops / 1e9:.3f}")
        rows.append((*places, *times, f"{1e-9 / cost:.1f}", f"{cost / dense:.1f}"))
    return rows


def three(side: int, channels: int, groups: int) -> tuple[float, list[float]]:
    """Return the floating-point operations of a convolution, and the seconds of all three."""
    data = (BATCH, channels, side, side)
    weight = (channels, channels // groups, KERNEL, KERNEL)
    common = {"padding": KERNEL // 2, "groups": groups}
    own = ({}, {"size": (side, side)}, {"kernel": (KERNEL, KERNEL)})
    random, seconds, flops = np.random.default_rng(0), [], 0.0
    for operator, attributes in zip(OPERATORS, own, strict=True):
        shapes = (data, weight if operator != OPERATORS[2] else data)
        types = [TensorType("float32", shape) for shape in shapes]
        info = operator_info(operator, types, {**common, **attributes})
        arrays = [random.standard_normal(shape, "float32") for shape in shapes]
        seconds.append(best(partial(info.kernel, info.rule.view(), *arrays)))
        flops = info.flops
    return flops, seconds


def best(run: Callable[[], object]) -> float:
    """Return the least seconds of the processor that a call takes, after a first one."""
    found = []
    for _ in range(REPEATS + 1):
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found[1:])


if __name__ == "__main__":
    main()
