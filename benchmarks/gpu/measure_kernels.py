"""Measure kernels again: ``python measure_kernels.py ROWS RESULT``, on a machine with a GPU.

``ROWS`` is a file such as ``h100_kernels.json``; the result has those of its rows that this script
can make, with the milliseconds that they take here: medians of ten. Needs PyTorch alone.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
Row = dict[str, Any]
Kernel = Callable[[], Any]


def main() -> None:
    """Measure the rows of a file."""
    source, result = map(Path, sys.argv[1:])
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    rows = []
    for row in json.loads(source.read_text())["rows"]:
        try:
            kernel = kernel_of(row)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(row, error)
            continue
        if kernel is not None:
            rows.append({**row, "ms": round(milliseconds(kernel), 5)})
            del kernel
    found = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rows": rows,
    }
    result.write_text(json.dumps(found, indent=0))


def milliseconds(kernel: Kernel, times: int = 10) -> float:
    """Return the median time of a kernel by itself."""
    for _ in range(3):
        kernel()
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        kernel()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return (sorted(found)[times // 2 - 1] + sorted(found)[times // 2]) / 2


def kernel_of(row: Row) -> Kernel | None:
    """Return a function that runs a kernel; None of kinds that this script does not make."""
    kind, _, way = row["kind"].partition(" ")
    if row.get("type", "bf16") != "bf16":
        return None
    if kind == "product":
        a, b = numbers(row["m"], row["k"]), numbers(row["n"], row["k"])
        return lambda: a @ b.mT
    if kind == "grouped":
        return grouped(row, way)
    if kind == "attention":
        return attention(row, way)
    if kind == "copy":
        x = numbers(row["elements"])
        y = torch.empty_like(x)
        return lambda: y.copy_(x)
    if row["kind"] == "fused AdamW float32":
        return update(row["parameters"])
    return None


def numbers(*shape: int) -> Tensor:
    """Return random numbers in bfloat16."""
    return torch.randn(shape, dtype=torch.bfloat16)


def grouped(row: Row, way: str) -> Kernel:
    """Return a product of the rows of experts; with skewed loads the i-th has 1 / i of the most."""
    experts, tokens = row["experts"], row["tokens"]
    shares = 1 / torch.arange(1, experts + 1, dtype=torch.float64) ** row["skew"]
    ends = (tokens * shares.cumsum(0) / shares.sum()).round().to(torch.int32)
    x, y = numbers(tokens, row["k"]), numbers(tokens, row["n"])
    if way == "weight gradient":
        return lambda: functional.grouped_mm(x.mT, y, offs=ends)
    matrices = numbers(experts, row["n"], row["k"])
    if way == "data gradient":
        return lambda: functional.grouped_mm(y, matrices, offs=ends)
    return lambda: functional.grouped_mm(x, matrices.mT, offs=ends)


def attention(row: Row, way: str) -> Kernel:
    """Return causal attention by one of PyTorch's kernels, or its gradients."""
    heads, widths = (row["heads"], row["kv_heads"]), (row["width"], row["value_width"])
    q, k, v = (
        numbers(row["batch"], count, row["length"], width).requires_grad_()
        for count, width in zip((heads[0], *heads[1:] * 2), (widths[0], *widths), strict=True)
    )

    def forward() -> Tensor:
        with sdpa_kernel(BACKENDS[row["kernel"]]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads[0] != heads[1]
            )

    if way == "forward":
        return torch.no_grad()(forward)
    y = forward()
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)


def update(parameters: int) -> Kernel:
    """Return an update of float32 parameters in one kernel."""
    x = torch.randn(parameters).requires_grad_()
    x.grad = torch.randn(parameters)
    optimizer = torch.optim.AdamW([x], fused=True)
    return optimizer.step


if __name__ == "__main__":
    main()
