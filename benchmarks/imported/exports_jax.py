"""Runs exported plans in JAX, on 8 devices of the CPU, and compares them with `jax.grad`.

    python benchmarks/imported/exports_jax.py [MODEL ...]

For each model of flax or equinox and each plan: loss and every gradient of the exported program in
float64 against JAX on one device, the loss after three steps of Adam against `optax.adam`, and the
collectives in the HLO that XLA compiles against those of the plan. Writes the rows of the models
that were asked for, or all, into the table of `docs/export.md`. Needs jax, flax, equinox and optax.
"""

import logging
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

# For CPUs, XLA drops barriers early, and then takes what is computed again for what was computed
# before: without that pass its HLO can be compared. The last flag makes it compile faster.
_FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_disable_hlo_passes=cse_barrier_expander "
    "--xla_backend_optimization_level=0"
)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"

import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from compared import difference, least_of  # noqa: E402
from documents import put_rows  # noqa: E402
from jax_compare import Function, cast, of_jax  # noqa: E402
from jax_zoo import MODELS as ZOO  # noqa: E402

import shardwright  # noqa: E402
from shardwright.exports.table import export, write_export  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
DEVICES, BATCH, RATE, STEPS = 8, 8, 1e-3, 3
MODELS = ("gpt", "encoder", "vit", "attention", "experts")
WITHOUT_SEQUENCE = ("vit", "experts")  # they have no sequence that it can split
PLANS: dict[str, dict[str, Any]] = {
    "data parallel": {"plan": "data=8"},
    "tensor and sequence parallel": {"plan": "tensor=2,data=4,sequence_parallel"},
    "fully sharded": {"plan": "data=8,zero=3"},
    "found": {"dataset_strategy": "data_parallel", "cluster": "cpu"},
}
KINDS = ("all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter")
_HEAD = """| model | plan | loss | gradients | loss after 3 steps | collectives of a step | \
in the compiled HLO |
|---|---|---|---|---|---|---|"""


def made(name: str) -> tuple[Function, tuple[Any, ...]]:
    """Return a model's loss and its arguments, in float64, with samples for all devices."""
    function, (params, *inputs) = ZOO[name]()
    rng = np.random.default_rng(3)

    def one(leaf: Any) -> Any:
        shape = (BATCH, *leaf.shape[1:])
        if np.issubdtype(leaf.dtype, np.floating):
            return jax.numpy.asarray(rng.normal(size=shape), leaf.dtype)
        return jax.numpy.asarray(rng.integers(0, int(leaf.max()) + 1, shape), leaf.dtype)

    return function, cast((params, *jax.tree.map(one, tuple(inputs))), "float64")


def counts_in(hlo: str) -> dict[str, int]:
    """Return the number of collectives of each kind in the text of HLO.

    XLA joins several to one of several operands, each of which is counted; an all-to-all has one
    for each rank of its group.
    """
    groups = r"(?:.*?replica_groups=\{\{([\d,]+))?"
    found = re.findall(r" ([a-z-]+?)(?:-start)?\((%[^)]*)\)" + groups, hlo)
    counts: Counter[str] = Counter()
    for name, operands, group in found:
        ranks = len(group.split(",")) if name == "all-to-all" else 1
        counts[name.replace("-", "_")] += operands.count("%") // ranks
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def row(name: str, plan: str) -> str:
    """Return the row of a model and a plan."""
    function, arguments = made(name)
    options = PLANS[plan]
    if name in WITHOUT_SEQUENCE and "sequence" in plan:
        options = {"plan": "tensor=2,data=4"}
    compilation = shardwright.compile(
        function,
        DEVICES,
        example_inputs=arguments,
        optimizer="adam",
        effort=1 / 3,
        **options,
    )
    package = f"{name}_{plan.replace(' ', '_')}"
    with tempfile.TemporaryDirectory() as folder:
        write_export(Path(folder) / package, export(compilation.plan, "jax"))
        sys.path.insert(0, folder)
        trainer = import_module(package).Trainer(arguments[0])
        sys.path.remove(folder)
        cells = _compared(trainer, function, arguments)
    volumes = compilation.plan.document.communication
    expected = {kind: volume.count for kind, volume in volumes.items() if volume.count}
    found = counts_in(trainer.lowered(*arguments[1:]).compile().as_text())
    same = "the same" if found == expected else _counts(found)
    return f"| {name} | {plan} | {' | '.join(cells)} | {_counts(expected)} | {same} |"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"


def _compared(trainer: Any, function: Function, arguments: tuple[Any, ...]) -> list[str]:
    """Return the differences from JAX: of the loss, the gradients, and the loss after steps."""
    params, *inputs = arguments
    loss, right = of_jax(function, arguments)
    gradients = trainer.gradients(*inputs)
    (own, *_) = trainer.outputs.values()
    unread = {n for n, g in right.items() if np.abs(g).max() > 0} - gradients.keys()
    assert not unread, unread
    least = least_of(right)
    worst = max(difference(np.asarray(gradients[n]), right[n], least) for n in gradients)
    for _ in range(STEPS):
        trainer.step(*inputs)
    trainer.gradients(*inputs)
    (after, *_) = trainer.outputs.values()
    pairs = ((own, loss), (after, _trained(function, params, inputs)))
    first, last = (difference(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return [f"{first:.0e}", f"{worst:.0e}", f"{last:.0e}"]


def _trained(function: Function, params: Any, inputs: list[Any]) -> Any:
    """Return the loss after some steps of `optax.adam`."""

    def scalar(params: Any) -> Any:
        found = function(params, *inputs)
        return found[0] if isinstance(found, tuple) else found

    optimizer = optax.adam(RATE)
    state = optimizer.init(params)
    for _ in range(STEPS):
        updates, state = optimizer.update(jax.jit(jax.grad(scalar))(params), state)
        params = optax.apply_updates(params, updates)
    return scalar(params)


def main(*models: str) -> None:
    """Compare all models, or those that are named."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    for name in models or MODELS:
        for plan in PLANS:
            found = row(name, plan)
            print(found, flush=True)
            if DOCUMENT.exists():
                put_rows(DOCUMENT, _HEAD, [found], [(m, p) for m in MODELS for p in PLANS])


if __name__ == "__main__":
    main(*sys.argv[1:])
