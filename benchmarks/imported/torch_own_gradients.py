"""Small modules whose gradients are not those of their operators alone, against autograd.

    OMP_NUM_THREADS=1 python benchmarks/imported/torch_own_gradients.py [--write] [NAME ...]

Each is imported in float64, and its loss and gradients on one rank and on four compared with those
of PyTorch: RIGHT if none differs by more than 1e-9, REFUSED with the sentence that says why, or
WRONG. `--write` writes `torch_own_gradients.md`; rows of cases that were not run stay.
"""

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_compare as compare
from own_gradients import CASES
from own_gradients.layers import Case
from torch import nn

from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.torch import import_module
from shardwright.ir.errors import ShardwrightError
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate

PAGE = Path(__file__).with_suffix(".md")
TOLERANCE = 1e-9


def judged(make: Callable[[], Case], devices: int = 4) -> tuple[str, str]:
    """Return the verdict on a case, and what was measured or said."""
    torch.manual_seed(0)
    module, inputs = make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = import_module(module, inputs)
    except ShardwrightError as error:
        return "REFUSED", re.sub(r"0x[0-9a-f]+|\d{12,}", "...", str(error))
    found = compare.gradients_differ(module, inputs, imported)
    surplus = _surplus(module, inputs, imported)
    many = compare.on_ranks(module, inputs, devices, cluster="cpu", effort=1 / 6)
    one = max(found.loss, found.gradient, surplus)
    text = f"{one:.0e}, {max(many):.0e}" + f", missing {found.missing}" * bool(found.missing)
    is_right = max(one, *many) < TOLERANCE and not found.missing
    return "RIGHT" if is_right else "WRONG", text


def _surplus(module: nn.Module, inputs: Any, imported: Any) -> float:
    """Return the largest gradient of parameters that PyTorch does not train."""
    untrained = [n for n, p in module.named_parameters() if p.grad is None]
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    names = [gradient_name(n) for n in untrained if gradient_name(n) in graph.values]
    if not names:
        return 0.0
    made = compare.run(graph, imported.initial, compare.arrays_of(imported, inputs), names)
    return max(float(np.abs(array).max()) for array in made.values())


def main() -> int:
    """Print the verdict on every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.names or CASES:
        verdict, text = judged(CASES[name])
        rows.append((name, verdict, text))
        print(f"{verdict:8}{name}: {text}", flush=True)
    if options.write:
        known = {name: (name, verdict, text) for name, verdict, text in _rows_of_page()}
        known.update((row[0], row) for row in rows)
        PAGE.write_text(_page([known[name] for name in CASES if name in known]))
    return any(verdict == "WRONG" for _, verdict, _ in rows)


def _rows_of_page() -> list[tuple[str, str, str]]:
    """Return the rows that the page has."""
    found = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [(name, verdict, text.replace("\\|", "|")) for name, verdict, text in found]


def _page(rows: list[tuple[str, str, str]]) -> str:
    counts = {v: sum(verdict == v for _, verdict, _ in rows) for v in ("RIGHT", "REFUSED", "WRONG")}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"| `{n}` | {v} | {t.replace('|', chr(92) + '|')} |" for n, v, t in rows]
    head = (
        "# Modules that change gradients, against autograd\n\n"
        "Written by `torch_own_gradients.py --write`. Largest relative difference of the loss and "
        "all gradients\nin float64, on one rank and on four; or the sentence that refuses.\n\n"
        f"PyTorch {torch.__version__.split('+')[0]}, {len(rows)} modules: {told}.\n\n"
        "| module | verdict | difference, or why not |\n|---|---|---|\n"
    )
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
