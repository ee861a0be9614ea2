"""The text of ``program.py`` for PyTorch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardwright.compiler.plans.plan import Plan
from shardwright.cost_model.roofline import computing_nodes
from shardwright.exports.emission.program import DESCRIPTION, ProgramWriter, table
from shardwright.exports.emission.vocabulary import Vocabulary
from shardwright.exports.placements import placements
from shardwright.ir.layout import Layout

VOCABULARY: Final = Vocabulary(
    "PyTorch",
    "torch",
    "processes",
    "Tensor",
    Path(__file__).parent / "support",
    {"all_reduce": ("sum", "max", "min", "prod"), "reduce_scatter": ("sum", "max", "min", "prod")},
    has_stages=True,
    has_rows=True,
)
_HEAD = f'''"""{{summary}}

Every process runs these functions on its own slices.

{DESCRIPTION}
"""

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor.placement_types import (
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)

from . import (
    attention,
    layers,
    losses,
    matrices,
    pointwise,
    recurrent,
    rings,
    routing,
    rows,
    tensors,
    updates,
    windows,
)
from .mesh import Mesh, Totals
'''


class TorchProgram(ProgramWriter):
    """Writes the program of a plan for PyTorch.

    Parameters
    ----------
    plan : Plan
        A compiled training step.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, VOCABULARY)

    def head(self) -> str:
        """Return docstring and imports."""
        return _HEAD

    def tables(self) -> Iterator[str]:
        """Yield the lines of the tables, placements among them."""
        yield f"GROUPS = {self.expressions.groups!r}"
        yield from super().tables()
        yield "# The operator in the line of a variable: its work, bytes moved besides, alignment."
        yield from table("WORK", self._work(), ": dict[str, tuple[str, float, float, int]]")
        yield "# How DTensor holds parameters and states; those with uneven parts are left out."
        yield from table("PLACEMENTS", self._placements(), ": dict[str, tuple[Placement, ...]]")

    def _work(self) -> Iterator[str]:
        for node, work in computing_nodes(self.program):
            variable = self.expressions.name(node.results[0].name)
            row = (work.operator, work.amount, work.traffic, work.alignment)
            yield f"{variable!r}: {row!r}"

    def _placements(self) -> Iterator[str]:
        ranks = self.plan.mesh.of_ranks
        for parameter in self.program.parameters:
            value = parameter.value
            layout = value.layout or Layout.replicated(value.type.rank)
            if layout.is_even(value.type.shape, ranks):
                items = ", ".join(placements(layout, ranks))
                comma = "," if len(ranks.axes) == 1 else ""
                yield f"{value.name!r}: ({items}{comma})"
