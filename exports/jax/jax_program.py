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
_RUNS = """\
`trainer.py` maps these functions over the devices by `jax.shard_map`; each sees the parts of its
own device."""


class JaxProgram(ProgramWriter):
    """Writes the program of a plan for JAX."""

    vocabulary = VOCABULARY
    runs, imports = fixed(_RUNS), fixed("from jax import Array")
    names = fixed("Mesh, Totals, again")

    def tables(self) -> Iterator[Code]:
        """Yield the lines of the tables, and the parameters that have a gradient."""
        yield from super().tables()
        yield code("GRADIENTS = [")
        yield from (code("    {},", name) for name in self.gradients)
        yield code("]")
