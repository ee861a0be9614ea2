"""Strategies on the page: what each operator costs, equal layers folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.compiler.accounting import OperatorCost, operator_costs
from shardwright.compiler.compiled import Compiled
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.units import pattern


def strategies_document(compiled: Compiled, cluster: Cluster) -> list[dict[str, Any]]:
    """Return the operators with their strategies, in the order of the model.

    Parameters
    ----------
    compiled : Compiled
        The compiled model.
    cluster : Cluster
        The devices that times are predicted for.
    """
    folds: dict[object, list[OperatorCost]] = {}
    for cost in operator_costs(compiled, cluster):
        if cost.seconds or cost.communication:
            folds.setdefault(_key(compiled, cost), []).append(cost)
    return [_row(fold) for fold in folds.values()]


def _key(compiled: Compiled, cost: OperatorCost) -> object:
    if cost.node is None:
        return "optimizer"
    types = tuple(value.type for value in compiled.source.operand_values(cost.node))
    return cost.node.operator, pattern(cost.node.scope), types, str(cost.strategy)


def _row(fold: Sequence[OperatorCost]) -> dict[str, Any]:
    first = fold[0]
    node = first.node
    path = "optimizer and seed" if node is None else f"{node.scope}/{node.operator}".lstrip("/")
    return {
        "path": path if len(fold) == 1 else pattern(path),
        "operators": [] if node is None else [cost.node.name for cost in fold if cost.node],
        "count": len(fold),
        "split_counts": " ".join("x".join(map(str, c)) or "1" for c in first.split_counts),
        "strategy": str(first.strategy or ""),
        "seconds": sum(cost.seconds for cost in fold),
        "communication": _traffic(fold),
        "alternatives": [],
    }


def _traffic(fold: Sequence[OperatorCost]) -> Mapping[str, Mapping[str, float]]:
    total: dict[str, dict[str, float]] = {}
    for cost in fold:
        for kind, volume in cost.communication.items():
            own = total.setdefault(kind, {"count": 0, "bytes": 0.0})
            own["count"] += volume.count
            own["bytes"] += volume.bytes
    return total
