"""What a search over configurations tells its reader of other plans."""

from collections import Counter
from collections.abc import Sequence

from shardwright.compiler.plans.compiled import Compiled
from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.units import MOST_NAMES
from shardwright.planner.choice.entries import Entry
from shardwright.planner.choice.trace import RankedPlan

EXPLAINED = 10
"""Most plans that an explained search keeps, and tells of: each is a line of a table."""


def ranked_plans(entries: Sequence[Entry[Compiled]]) -> tuple[RankedPlan, ...]:
    """Return the best plans of different configurations, with their differences from the best."""
    found = [(entry, entry.found) for entry in entries if entry.found is not None]
    found.sort(key=lambda item: item[1].cost)
    best = found[0][1].plan
    return tuple(
        RankedPlan(entry.configuration, plan.cost, plan.memory_bytes, differences(best, plan.plan))
        for entry, plan in found[:EXPLAINED]
    )


def differences(best: Compiled, other: Compiled) -> tuple[str, ...]:
    """Return what a plan decides otherwise than the best one, in words."""
    if other is best:
        return ()
    told = [
        *_split_otherwise(best, other),
        *_stored_otherwise(best, other),
        *_recomputed_otherwise(best, other),
    ]
    return tuple(told) or ("the same decisions",)


def _split_otherwise(best: Compiled, other: Compiled) -> list[str]:
    kinds = {node.name: node.operator for node in best.source.nodes}
    ours, theirs = _splits(best), _splits(other)
    changed = Counter(kinds[name] for name, splits in ours.items() if splits != theirs.get(name))
    if not changed:
        return []
    named = ", ".join(f"{count} {kind}" for kind, count in changed.most_common(MOST_NAMES))
    rest = sum(changed.values()) - sum(n for _, n in changed.most_common(MOST_NAMES))
    return [f"splits {named}{f' and {rest} more operators' if rest else ''} otherwise"]


def _splits(compiled: Compiled) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the number of slices of every result, by operator."""
    if compiled.decisions is None:
        return {}
    mesh, program = compiled.mesh, compiled.program
    made = {
        node.name: tuple(_counts(value.layout, mesh) for value in node.results)
        for node in program.nodes
        if node.provenance.role == "forward"
    }
    return {node.name: made[node.name] for node in compiled.source.nodes if node.name in made}


def _counts(layout: Layout | None, mesh: Mesh) -> tuple[int, ...]:
    """Return the number of slices of each dimension, over the ranks."""
    if layout is None:
        return ()
    ranks = mesh.of_ranks
    return tuple(
        ranks.extent([axis for axis in axes if axis in ranks.names]) for axes in layout.splits
    )


def _stored_otherwise(best: Compiled, other: Compiled) -> list[str]:
    ours, theirs = (
        {p.name: _counts(p.value.layout, one.mesh) for p in one.program.parameters}
        for one in (best, other)
    )
    changed = sum(counts != theirs.get(name) for name, counts in ours.items())
    return [f"stores {changed} of {len(ours)} parameters otherwise"] if changed else []


def _recomputed_otherwise(best: Compiled, other: Compiled) -> list[str]:
    ours, theirs = (
        len(one.decisions.recomputed) if one.decisions is not None else 0 for one in (best, other)
    )
    return [] if ours == theirs else [f"recomputes {theirs} operators instead of {ours}"]
