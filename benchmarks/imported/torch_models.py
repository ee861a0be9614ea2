"""Imports networks of torchvision and of our own writing, and compares them with PyTorch.

    python benchmarks/imported/torch_models.py [MODEL ...]

Small models with random weights. For each: all outputs in float32, loss and every gradient in
float64 against autograd, the same of a plan for four ranks, and what is trained. Writes the rows of
the models that were asked for, or all, into the table of `docs/torch.md`. Needs `torch` and
`torchvision`. Those of transformers are compared by `architectures.py`.
"""

import logging
import resource
import sys
import traceback
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from documents import put_rows
from torch_compare import Gradients, Wide, first_of, gradients_differ, on_ranks, outputs_differ
from torch_zoo import MODELS, Made

from shardwright.ir.errors import ShardwrightError

DOCUMENT = Path(__file__).parents[2] / "docs" / "torch.md"
RANKS = 4
_HEAD = """| model | trained | outputs, float32 | loss | gradients | 4 ranks: loss, gradients | \
nodes | import |
|---|---|---|---|---|---|---|---|"""


@dataclass
class Row:
    """What became of a model.

    Parameters
    ----------
    name : str
        The model.
    outputs : float
        Largest difference of the outputs in float32, relative to the largest element.
    step : Gradients
        The training step of one device in float64.
    ranks : tuple of float
        Differences of loss and gradients on four ranks.
    parameters : int
        Number of parameters of the module that get a gradient.
    seconds : float
        Seconds of processor time of an import.
    """

    name: str
    outputs: float
    step: Gradients
    ranks: tuple[float, float]
    parameters: int
    seconds: float

    @property
    def text(self) -> str:
        """The row of the table."""
        step = self.step
        trained = f"{self.parameters - len(step.missing)} of {self.parameters}"
        cells = (
            self.name,
            trained + (f", and {len(step.extra)} more" if step.extra else ""),
            f"{self.outputs:.0e}",
            f"{step.loss:.0e}",
            f"{step.gradient:.0e}",
            f"{self.ranks[0]:.0e}, {self.ranks[1]:.0e}",
            str(len(step.imported.graph)),
            f"{self.seconds:.1f} s",
        )
        return f"| {' | '.join(cells)} |"


class Squares(torch.nn.Module):
    """A module with the mean square of its first output as a loss, unless that is one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the loss."""
        output = first_of(self.module(*args, **kwargs))
        return output if not output.shape else output.square().mean()


def compared(name: str, made: Made) -> Row:
    """Return a model compared with PyTorch."""
    module, inputs = made
    outputs = outputs_differ(module, inputs)
    wide = Squares(Wide(deepcopy(module).double()))
    doubled = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    start = _processor()
    step = gradients_differ(wide, doubled)
    seconds = _processor() - start
    count = sum(p.grad is not None for p in wide.parameters())
    options = {"dataset_strategy": "data_parallel", "effort": 1 / 3}
    ranks = on_ranks(wide, doubled, RANKS, **options)
    return Row(name, outputs, step, ranks, count, seconds)


def _processor() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def row(name: str) -> str:
    """Return the row of a model, which may be why it is refused."""
    torch.manual_seed(0)
    try:
        return compared(name, MODELS[name]()).text
    except ShardwrightError as error:
        return f"| {name} | {' '.join(str(error).split())} {'|' * 7}"
    except Exception as error:
        traceback.print_exc()
        return f"| {name} | {type(error).__name__}: {str(error).splitlines()[0][:200]} {'|' * 7}"


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    for name in models or MODELS:
        found = row(name)
        print(found, flush=True)
        if DOCUMENT.exists():
            put_rows(DOCUMENT, _HEAD, [found], [(each,) for each in MODELS])


if __name__ == "__main__":
    main(*sys.argv[1:])
