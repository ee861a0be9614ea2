"""Small functions of kinds that people write in JAX, against JAX's own gradients.

    OMP_NUM_THREADS=1 python benchmarks/imported/jax_own_gradients.py [--write] [NAME ...]

Each is imported in float64, and its loss and gradients on one rank and on four compared with those
of JAX: RIGHT if none differs by more than 1e-9, REFUSED with the sentence that says why, or WRONG.
`--write` writes `jax_own_gradients.md`; rows of cases that were not run stay. Needs `jax`.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import jax_compare as compare  # noqa: E402
import jax_posted  # noqa: E402
import numpy as np  # noqa: E402
import verdicts  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ShardwrightError  # noqa: E402

PAGE = verdicts.Page(
    Path(__file__).with_suffix(".md"),
    "Functions of JAX, against its gradients",
    f"JAX {jax.__version__}",
    "function",
)


def judged(use: Any, devices: int = 4) -> verdicts.Verdict:
    """Return the verdict on a function of features, and what was measured or said."""
    random = np.random.default_rng(0)
    weights = {"a": random.normal(size=(6, 8)) / 2, "b": random.normal(size=(8, 3)) / 3}
    x, y = random.normal(size=(8, 6)), random.normal(size=(8, 3))

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((use(x @ p["a"], p, x) @ p["b"] - y) ** 2).mean()

    arguments = ({name: jax.numpy.asarray(w) for name, w in weights.items()}, x, y)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = import_function(loss, arguments)
    except ShardwrightError as error:
        return verdicts.refused(error)
    found = compare.gradients_differ(loss, arguments, imported)
    many = compare.on_ranks(loss, arguments, devices, cluster="cpu", effort=1 / 6)
    return verdicts.compared(max(found.loss, found.gradient), many, found.missing)


if __name__ == "__main__":
    sys.exit(PAGE.run(__doc__, jax_posted.CASES, judged))
