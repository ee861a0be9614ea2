"""Strategies on the page: what each operator costs, equal layers folded."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.compiler.page.alternatives import Alternatives
from shardwright.compiler.plans.accounting import OperatorCost, operator_costs
from shardwright.compiler.plans.compiled import Compiled
from shardwright.cost_model.pipelines.mixed import AnyCluster
from shardwright.ir.units import pattern


def strategies_document(compiled: Compiled, cluster: AnyCluster) -> list[dict[str, Any]]:
    """Return the operators with their strategies, in the order of the model."""
    return [_row(fold) for fold in _folds(compiled, cluster)]


def with_alternatives(rows: list[dict[str, Any]], others: Alternatives) -> list[dict[str, Any]]:
    """Return the operators with the other strategies of the middle one of equal ones.

    Parameters
    ----------
    rows : list of dict
        The operators.
    others : Alternatives
        The other strategies of the operators.
    """
    return [{**row, "alternatives": _listed(row, others)} for row in rows]


def middle_operators(rows: list[dict[str, Any]]) -> list[str]:
    """Return the operator in the middle of the equal ones of each row."""
    return [name for row in rows for name in _middle(row["operators"])]


def _middle(names: Sequence[str]) -> Sequence[str]:
    return names[len(names) // 2 :][:1]


def _listed(row: dict[str, Any], others: Alternatives) -> list[dict[str, Any]]:
    return [
        {"strategy": str(other.strategy), "seconds": other.seconds}
        for name in _middle(row["operators"])
        for other in others.by_operator.get(name, ())
    ]


def _folds(compiled: Compiled, cluster: AnyCluster) -> list[list[OperatorCost]]:
    """Return the costs of operators; those of equal layers together."""
    folds: dict[object, list[OperatorCost]] = {}
    for cost in operator_costs(compiled, cluster):
        if cost.seconds or cost.communication:
            folds.setdefault(_key(compiled, cost), []).append(cost)
    return [*folds.values()]


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
    }


def _traffic(fold: Sequence[OperatorCost]) -> Mapping[str, Mapping[str, float]]:
    total: dict[str, dict[str, float]] = {}
    for cost in fold:
        for kind, volume in cost.communication.items():
            own = total.setdefault(kind, {"count": 0, "bytes": 0.0})
            own["count"] += volume.count
            own["bytes"] += volume.bytes
    return total
