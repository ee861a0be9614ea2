"""The text of ``program.py`` for JAX, and that of the layouts for XLA."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shardwright.exports.emission.program_writer import ProgramWriter
from shardwright.exports.emission.vocabulary import Vocabulary
from shardwright.exports.emission.writing import Code, code, fixed

_TF32 = """jax.config.update("jax_default_matmul_precision", "tensorfloat32")
"""
VOCABULARY: Final = Vocabulary(
    "JAX",
    "jax",
    "devices",
    "Array",
    Path(__file__).parent / "support",
    {"all_reduce": ("sum", "max", "min"), "reduce_scatter": ("sum",)},
    fixed(_TF32),
    has_uneven_parts=False,
    has_rows=True,
    repeat="again",
)
_HEAD = '''"""{summary}

`trainer.py` maps these functions over the devices by `jax.shard_map`; each sees the parts of its
own device.

{description}
"""

from collections.abc import Mapping

from jax import Array

from . import (
    attention,
    layers,
    losses,
    matrices,
    pointwise,
    recurrent,
    routing,
    rows,
    tensors,
    updates,
    windows,
)
from .mesh import Mesh, Totals, again
'''


class JaxProgram(ProgramWriter):
    """Writes the program of a plan for JAX.

    Parameters
    ----------
    plan : Plan
        A compiled training step.
    """

    vocabulary = VOCABULARY

    def head(self, told: Code, description: Code) -> Code:
        """Return docstring and imports: a sentence on the plan, and how the file is read."""
        return code(_HEAD, summary=told, description=description)

    def tables(self) -> Iterator[Code]:
        """Yield the lines of the tables, and the parameters that have a gradient."""
        yield from super().tables()
        yield code("GRADIENTS = [")
        yield from (code("    {},", name) for name in self.gradients)
        yield code("]")
