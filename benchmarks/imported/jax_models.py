"""Imports models of flax and equinox, and compares them with JAX.

    python benchmarks/imported/jax_models.py [model ...]

Needs jax, flax, equinox and optax. Writes the table of `docs/jax.md`.
"""

import sys
import traceback
import warnings
from pathlib import Path

import jax
from documents import put_rows
from jax_compare import cast, gradients_differ, on_ranks, outputs_differ
from jax_zoo import LIBRARIES, MODELS

from shardwright.ir.errors import ShardwrightError

DOCUMENT = Path(__file__).parents[2] / "docs" / "jax.md"
RANKS = 4
_HEAD = (
    "| model | library | trained | outputs, float32 | loss | gradients | "
    "4 ranks: loss, gradients | nodes | import |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(name: str) -> str:
    """Return the row of a model, which may be why it is refused."""
    try:
        function, arguments = MODELS[name]()
        outputs = outputs_differ(function, cast(arguments, "float32"))
        wide = cast(arguments, "float64")
        found = gradients_differ(function, wide)
        loss, gradient = on_ranks(
            function, wide, RANKS, effort=1 / 3, dataset_strategy="data_parallel"
        )
    except ShardwrightError as error:
        return f"| {name} | {' '.join(str(error).split())} {'|' * 8}"
    except Exception as error:
        traceback.print_exc()
        return f"| {name} | {type(error).__name__}: {str(error).splitlines()[0][:200]} {'|' * 8}"
    trained = sum(p.trainable for p in found.imported.graph.parameters)
    cells = [
        name,
        LIBRARIES[name],
        f"{trained - len(found.extra)} of {trained - len(found.extra) + len(found.missing)}",
        f"{outputs:.0e}",
        f"{found.loss:.0e}",
        f"{found.gradient:.0e}",
        f"{loss:.0e}, {gradient:.0e}",
        str(len(found.imported.graph)),
        f"{found.seconds:.1f} s",
    ]
    return f"| {' | '.join(cells)} |"


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    for name in models or MODELS:
        found = row(name)
        print(found, flush=True)
        if DOCUMENT.exists():
            put_rows(DOCUMENT, _HEAD, [found], [(each,) for each in MODELS])


if __name__ == "__main__":
    main(*sys.argv[1:])
