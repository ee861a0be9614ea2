"""Small modules whose gradients are not those of their operators alone, against autograd.

    OMP_NUM_THREADS=1 python benchmarks/imported/torch_own_gradients.py [--write] [NAME ...]

Each is imported in float64, and its loss and gradients on one rank and on four compared with those
of PyTorch: RIGHT if none differs by more than 1e-9, REFUSED with the sentence that says why, or
WRONG. `--write` writes `torch_own_gradients.md`; rows of cases that were not run stay.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_compare as compare
import verdicts
from own_gradients import CASES
from own_gradients.layers import Case
from torch import nn

from shardwright.dataflow.cotangents import gradient_name
from shardwright.frontends.torch import import_module
from shardwright.ir.errors import ShardwrightError
from shardwright.passes.canonicalize import Canonicalize
from shardwright.passes.differentiate import Differentiate

PAGE = verdicts.Page(
    Path(__file__).with_suffix(".md"),
    "Modules that change gradients, against autograd",
    f"PyTorch {torch.__version__.split('+')[0]}",
    "module",
)


def judged(make: Callable[[], Case], devices: int = 4) -> verdicts.Verdict:
    """Return the verdict on a case, and what was measured or said."""
    torch.manual_seed(0)
    module, inputs = make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = import_module(module, inputs)
    except ShardwrightError as error:
        return verdicts.refused(error)
    found = compare.gradients_differ(module, inputs, imported)
    surplus = _surplus(module, inputs, imported)
    many = compare.on_ranks(module, inputs, devices, cluster="cpu", effort=1 / 6)
    return verdicts.compared(max(found.loss, found.gradient, surplus), many, found.missing)


def _surplus(module: nn.Module, inputs: Any, imported: Any) -> float:
    """Return the largest gradient of parameters that PyTorch does not train."""
    untrained = [n for n, p in module.named_parameters() if p.grad is None]
    graph = Differentiate().run(Canonicalize().run(imported.graph))
    names = [gradient_name(n) for n in untrained if gradient_name(n) in graph.values]
    if not names:
        return 0.0
    made = compare.run(graph, imported.initial, compare.arrays_of(imported, inputs), names)
    return max(float(np.abs(array).max()) for array in made.values())


if __name__ == "__main__":
    sys.exit(PAGE.run(__doc__, CASES, judged))
