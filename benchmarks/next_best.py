"""Compare the page's prices of strategies with compiled plans: ``python benchmarks/next_best.py``.

Of random operators of several models, the next best strategy of the page's table is pinned, with
all other operators as they were, and with all others free, and both are compiled by the exact
search. A plan's serial step is longer by the price in the first case, and by at most the price in
the second.
"""

import random
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

import shardwright as sw
from shardwright.compiler.page.alternatives import alternatives
from shardwright.compiler.page.strategies import middle_operators, strategies_document
from shardwright.compiler.plans.accounting import operator_costs
from shardwright.operators.info import SplitCounts, info_of

MODELS = {
    "mlp:batch=4096,hidden=4096": (8, "2x4", "float32"),
    "gpt:layers=3,hidden=1024,heads=16,batch=16,sequence=512": (8, "2x4", "float32"),
    "llama:layers=3,hidden=1024,heads=16,inner=4096,batch=16,sequence=512,vocabulary=32000": (
        8,
        "2x4",
        "float32",
    ),
    "resnet18": (8, "2x4", "float32"),
    "vit:layers=3": (8, "8", "float32"),
    "wide_deep": (16, "2x8", "float32"),
    "gpt:layers=3,hidden=1024,heads=16,batch=64,sequence=512": (64, "8x8", "bfloat16"),
}
OPERATORS = 6  # of each model


def main() -> None:
    """Print a table of the models."""
    chosen = random.Random(1)
    print("| model | mesh | operators | difference, others pinned | others free, of the price |")
    print("|---|---|---|---|---|")
    for model, (devices, mesh, precision) in MODELS.items():
        rows = list(compared(model, devices, mesh, precision, chosen))
        apart = max(abs(pinned / price - 1) for price, pinned, _ in rows)
        shares = [free / price for price, _, free in rows]
        assert max(shares) <= 1 + 1e-6, "a price is no upper bound"
        print(
            f"| `{model}` | {mesh} | {len(rows)} | {apart:.0e} | {statistics.median(shares):.0%}, "
            f"{min(shares):.0%} to {max(shares):.0%} |",
            flush=True,
        )


def compared(
    model: str, devices: int, mesh: str, precision: str, chosen: random.Random
) -> Iterator[tuple[float, float, float]]:
    """Yield the price of random operators, and the compiled differences."""
    options: dict[str, Any] = {
        "mesh": mesh,
        "objective": "serial",
        "gap": 1e-6,
        "precision": precision,
        "cluster": "h100-pod:figures=datasheet",
        "effort": 2,
    }

    def seconds(strategies: Mapping[str, SplitCounts]) -> float:
        found = sw.compile(model, devices, strategies=strategies, **options)
        return found.plan.document.predicted_step_seconds

    base = sw.compile(model, devices, **options)
    graph, step = base.compiled.source, base.plan.document.predicted_step_seconds
    nodes = {node.name: node for node in graph.nodes}
    costs = [cost for cost in operator_costs(base.compiled, base.cluster) if cost.node is not None]
    # The casts of parameters follow their readers.
    counts = {c.node.name: c.split_counts for c in costs if c.node and c.node.operator != "cast"}
    names = middle_operators(strategies_document(base.compiled, base.cluster))
    others = alternatives(base.compiled, base.plan.document, base.cluster, names)
    priced = [(name, found[0]) for name, found in others.by_operator.items() if found]
    for name, other in chosen.sample(priced, min(OPERATORS, len(priced))):
        own = info_of(graph, nodes[name]).split_counts(other.strategy, base.compiled.mesh.of_ranks)
        yield (
            other.seconds,
            seconds({**counts, name: own}) - step,
            seconds({name: own}) - step,
        )


if __name__ == "__main__":
    main()
