"""The text of ``program.py`` for PyTorch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardwright.cost_model.roofline import computing_nodes
from shardwright.exports.emission.program_writer import ProgramWriter, table
from shardwright.exports.emission.vocabulary import Vocabulary
from shardwright.exports.emission.writing import Code, code, fixed, in_parentheses
from shardwright.exports.torch.placements import placements

TF32_SWITCH: Final = fixed(
    """torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
"""
)
"""The lines that let PyTorch compute products and convolutions of float32 in TF32."""
VOCABULARY: Final = Vocabulary(
    "PyTorch",
    "torch",
    "processes",
    "Tensor",
    Path(__file__).parent / "support",
    {"all_reduce": ("sum", "max", "min", "prod"), "reduce_scatter": ("sum", "max", "min", "prod")},
    TF32_SWITCH,
    has_stages=True,
    has_rows=True,
)
PLACEMENTS: Final = fixed(
    """from torch.distributed.tensor.placement_types import (
    Placement,
    Replicate,
    Shard,
    _StridedShard,
)"""
)
"""The import of what the layouts of parameters are made of."""


class TorchProgram(ProgramWriter):
    """Writes the program of a plan for PyTorch."""

    vocabulary = VOCABULARY
    runs = fixed("Every process runs these functions on its own slices.")
    imports = code("from torch import Tensor\n{}", PLACEMENTS)
    names = fixed("Mesh, Totals")

    def tables(self) -> Iterator[Code]:
        """Yield the lines of the tables, placements among them."""
        yield code("GROUPS = {}", self.expressions.groups)
        yield from super().tables()
        yield code(
            "# The operator in the line of a variable: its work, bytes moved besides, alignment."
        )
        kind = code(": dict[str, tuple[str, float, float, int]]")
        yield from table("WORK", self._work(), kind)
        yield code(
            "# How DTensor holds parameters and states; those with uneven parts are left out."
        )
        kind = code(": dict[str, tuple[Placement, ...]]")
        yield from table("PLACEMENTS", self._placements(), kind)

    def _work(self) -> Iterator[Code]:
        for node, work in computing_nodes(self.program):
            variable = self.expressions.name(node.results[0].name)
            row = (work.operator, work.amount, work.traffic, work.alignment)
            yield code("{}: {}", str(variable), row)

    def _placements(self) -> Iterator[Code]:
        ranks = self.plan.mesh.of_ranks
        for parameter in self.program.parameters:
            value = parameter.value
            layout = value.known_layout
            if layout.is_even(value.type.shape, ranks):
                yield code("{}: {}", value.name, in_parentheses(placements(layout, ranks)))
