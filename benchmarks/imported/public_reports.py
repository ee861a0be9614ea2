"""Inputs made after public reports of people who bring models: right, refused, or wrong.

    python benchmarks/imported/public_reports.py

Writes `public_reports.md`. Modules are compared with PyTorch's autograd and functions with JAX,
loss and all gradients in float64; ONNX nodes with onnxruntime. The inputs are our own, a source is
where the kind was reported: repository and number of the issue. Needs torch, jax, onnx and
onnxruntime.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax_compare
import numpy as np
import onnx_runtime
import torch_compare
from onnx_cases import Case
from public_reports_files import FILES
from public_reports_modules import FUNCTIONS, MODULES

from shardwright.ir.errors import ShardwrightError

PAGE = Path(__file__).with_name("public_reports.md")
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Row:
    """What became of one input.

    Parameters
    ----------
    source, what : str
        Where its kind was reported, and what it is.
    outcome : str
        ``right``, ``refused`` or ``WRONG``.
    why : str
        The message of a refusal; the difference of what is wrong.
    """

    source: str
    what: str
    outcome: str
    why: str = ""


def judged(source: str, what: str, compare: Callable[[], float]) -> Row:
    """Return the row of a comparison, which returns the largest relative difference."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = compare()
    except ShardwrightError as error:
        return Row(source, what, "refused", " ".join(str(error).split()))
    return (
        Row(source, what, "right")
        if found < TOLERANCE
        else Row(source, what, "WRONG", f"{found:.2g}")
    )


def of_module(made: Callable[[], Any]) -> float:
    """Return how loss and gradients of a module differ from autograd's."""
    module, inputs = made()
    found = torch_compare.gradients_differ(module, inputs)
    if found.missing or found.extra:
        return float("inf")
    return max(found.loss, found.gradient)


def of_function(made: Callable[[], Any]) -> float:
    """Return how loss and gradients of a function differ from those of JAX; NaN equals NaN."""
    function, arguments = made()
    loss, right = jax_compare.of_jax(function, arguments)
    found = jax_compare.gradients_differ(function, arguments)
    bad = any(np.isnan(g).any() for g in (loss, *right.values()))
    worst = max(found.loss, found.gradient)
    return 0.0 if bad and np.isnan(worst) else worst


def of_file(case: Case) -> float:
    """Return zero where a node computes what onnxruntime does."""
    right, ours = onnx_runtime.of_runtime(case), onnx_runtime.of_import(case)
    assert not isinstance(right, str), right
    if isinstance(ours, str):
        raise ShardwrightError(ours.removeprefix("refused: "))
    return 0.0 if onnx_runtime.equal(ours, right) else float("inf")


def rows() -> Iterator[Row]:
    """Yield the rows of all inputs."""
    for source, what, made in MODULES:
        yield judged(source, f"module: {what}", lambda made=made: of_module(made))
    for source, what, made in FUNCTIONS:
        yield judged(source, f"function: {what}", lambda made=made: of_function(made))
    for source, what, case in FILES:
        yield judged(source, f"file: {what}", lambda case=case: of_file(case))


def main() -> None:
    """Run all inputs, print them and write the page."""
    found = []
    for row in rows():
        found.append(row)
        print(row.outcome, row.source, row.what, row.why[:250], flush=True)
    PAGE.write_text(page(found))
    sys.exit(any(row.outcome == "WRONG" for row in found))


def page(found: list[Row]) -> str:
    """Return the page."""
    counts = {kind: sum(r.outcome == kind for r in found) for kind in ("right", "refused", "WRONG")}
    lines = "\n".join(
        f"| {r.what} | {r.source} | {r.outcome}{': ' + r.why.replace('|', ' ') if r.why else ''} |"
        for r in found
    )
    return f"""# Public reports

`python benchmarks/imported/public_reports.py`: small inputs made after reports of people who bring
models; the inputs are our own, the source is the repository and number of an issue. Modules are
compared with PyTorch and functions with JAX (loss and all gradients in float64, to {TOLERANCE:g}),
nodes of files with onnxruntime. {len(found)} inputs: {counts["right"]} right,
{counts["refused"]} refused, {counts["WRONG"]} wrong.

| input | source | here |
|---|---|---|
{lines}
"""


if __name__ == "__main__":
    main()
