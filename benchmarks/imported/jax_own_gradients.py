"""Small functions of kinds that people write in JAX, against JAX's own gradients.

    OMP_NUM_THREADS=1 python benchmarks/imported/jax_own_gradients.py [--write] [NAME ...]

Each is imported in float64, and its loss and gradients on one rank and on four compared with those
of JAX: RIGHT if none differs by more than 1e-9, REFUSED with the sentence that says why, or WRONG.
`--write` writes `jax_own_gradients.md`; rows of cases that were not run stay. Needs `jax`.
"""

import argparse
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_enable_x64", True)

import jax_compare as compare  # noqa: E402
import jax_posted  # noqa: E402
import numpy as np  # noqa: E402

from shardwright.frontends.jax import import_function  # noqa: E402
from shardwright.ir.errors import ShardwrightError  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
TOLERANCE = 1e-9


def judged(use: Any, devices: int = 4) -> tuple[str, str]:
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
        return "REFUSED", re.sub(r"0x[0-9a-f]+|\d{12,}", "...", str(error))
    found = compare.gradients_differ(loss, arguments, imported)
    many = compare.on_ranks(loss, arguments, devices, cluster="cpu", effort=1 / 6)
    one = max(found.loss, found.gradient)
    text = f"{one:.0e}, {max(many):.0e}" + f", missing {found.missing}" * bool(found.missing)
    is_right = max(one, *many) < TOLERANCE and not found.missing
    return "RIGHT" if is_right else "WRONG", text


def main() -> int:
    """Print the verdict on every case."""
    cases = jax_posted.CASES
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*cases, []], metavar="NAME")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = {}
    for name in options.names or cases:
        rows[name] = judged(cases[name])
        print(f"{rows[name][0]:8}{name}: {rows[name][1]}", flush=True)
    if options.write:
        known = _rows_of_page() | rows
        PAGE.write_text(_page({name: known[name] for name in cases if name in known}))
    return any(verdict == "WRONG" for verdict, _ in rows.values())


def _rows_of_page() -> dict[str, tuple[str, str]]:
    """Return the rows that the page has."""
    text = PAGE.read_text() if PAGE.exists() else ""
    found = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", text, re.MULTILINE)
    return {name: (verdict, told.replace("\\|", "|")) for name, verdict, told in found}


def _page(rows: dict[str, tuple[str, str]]) -> str:
    verdicts = [verdict for verdict, _ in rows.values()]
    told = ", ".join(f"{verdicts.count(v)} {v}" for v in ("RIGHT", "REFUSED", "WRONG"))
    lines = [f"| `{n}` | {v} | {t.replace('|', chr(92) + '|')} |" for n, (v, t) in rows.items()]
    head = (
        "# Functions of JAX, against its gradients\n\n"
        "Written by `jax_own_gradients.py --write`. Largest relative difference of the loss and "
        "all gradients\nin float64, on one rank and on four; or the sentence that refuses.\n\n"
        f"JAX {jax.__version__}, {len(rows)} functions: {told}.\n\n"
        "| function | verdict | difference, or why not |\n|---|---|---|\n"
    )
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
