"""Few rows times a transposed matrix, as is and turned: ``python benchmarks/products.py``.

Writes ``products.md``. The ratio is that of the time of ``ascontiguousarray((b @ a.T).T)`` to that
of ``a @ b.T``, in float32 on one core: the medians of turns, in one run.
"""

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # read when numpy is imported

import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from machine import machine  # noqa: E402

from shardwright.operators.linear.matmul import is_faster_turned  # noqa: E402

ROWS, INNER, COLUMNS = (2, 4, 16, 32, 64, 128), (64, 256, 784, 2048), (64, 128, 512, 2048)
TURNS, FLOPS_OF_A_TURN = 9, 3e7


def main() -> None:
    """Measure, and write the page."""
    rng = np.random.default_rng(0)
    cells = {
        (m, k, n): ratio(*(rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k))))
        for m in ROWS
        for k in INNER
        for n in COLUMNS
    }
    turned = [value for value, chosen in cells.values() if chosen]
    page = [
        "# Few rows times a transposed matrix",
        "",
        "Written by `benchmarks/products.py`: seconds of the product turned, with the copy back,",
        "to those of the product as it stands; float32, one core, the median of"
        f" {TURNS} turns. Where",
        "the ratio is bold, `matmul` turns it on a processor with AVX-512; on others never.",
        f"Measured on {machine()}.",
        "",
        f"Turned: {len(turned)} of {len(cells)}, ratio {min(turned):.2f} to {max(turned):.2f},"
        f" median {statistics.median(turned):.2f}.",
        "",
        f"| rows | inner | {' | '.join(f'{n} columns' for n in COLUMNS)} |",
        f"| --- | --- | {' | '.join('---' for _ in COLUMNS)} |",
    ]
    for m in ROWS:
        for k in INNER:
            row = [cells[m, k, n] for n in COLUMNS]
            texts = [f"**{value:.2f}**" if chosen else f"{value:.2f}" for value, chosen in row]
            page.append(f"| {m} | {k} | {' | '.join(texts)} |")
    Path(__file__).with_suffix(".md").write_text("\n".join([*page, ""]))


def ratio(a: np.ndarray, b: np.ndarray) -> tuple[float, bool]:
    """Return the ratio of times, and whether the operator turns this product."""
    count = max(3, min(1000, int(FLOPS_OF_A_TURN / (2 * a.size * len(b)))))
    ways = (lambda: a @ b.T, lambda: np.ascontiguousarray((b @ a.T).T))
    times: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for way, kept in zip(ways, times, strict=True):
            kept.append(seconds(way, count))
    plain, turned = (statistics.median(kept) for kept in times)
    return turned / plain, is_faster_turned(a, b)


def seconds(way: Callable[[], np.ndarray], count: int) -> float:
    """Return the seconds of some calls."""
    begin = time.perf_counter()
    for _ in range(count):
        way()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
