"""What ``shardwright compile`` tells a person: strategies, layouts, costs, how good it is."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.api import Compilation
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.passes.accounting import OperatorCost, Volume, operator_costs
from shardwright.passes.plan_document import PlanDocument
from shardwright.tools.tables import print_table

_ROWS = 30  # of a table; the rest is summed up


@dataclass
class _Fold:
    """Operators of repeated layers, in one row."""

    first: OperatorCost
    count: int = 0
    seconds: float = 0.0
    communication: dict[str, Volume] = field(default_factory=dict)

    def add(self, cost: OperatorCost) -> None:
        self.count += 1
        self.seconds += cost.seconds
        for kind, volume in cost.communication.items():
            self.communication[kind] = self.communication.get(kind, Volume()) + volume


def print_compilation(compilation: Compilation, directory: Path) -> None:
    """Print all there is to know about a compiled model."""
    document = compilation.plan.document
    mesh = " ".join(f"{axis.name}={axis.size}" for axis in document.mesh)
    search = "" if document.search == "none" else f", search {document.search}"
    print(
        f"{document.model} on {document.devices} devices of {document.cluster.name}, "
        f"mesh {mesh or '1'}: {document.mode}{search}\n"
    )
    _print_strategies(compilation)
    _print_parameters(document)
    _print_communication(document)
    _print_summary(compilation, directory)


def _print_strategies(compilation: Compilation) -> None:
    costs = operator_costs(compilation.compiled, compilation.cluster)
    folds: dict[object, _Fold] = {}
    for cost in costs:
        if cost.seconds or cost.communication:
            folds.setdefault(_key(compilation, cost), _Fold(cost)).add(cost)
    total = sum(fold.seconds for fold in folds.values())
    by_seconds = sorted(folds.values(), key=lambda fold: -fold.seconds)
    shown = {id(fold) for fold in by_seconds[:_ROWS]}
    rows = [_strategy_row(fold, total) for fold in folds.values() if id(fold) in shown]
    rest = by_seconds[_ROWS:]
    if rest:
        share = sum(fold.seconds for fold in rest) / total
        rows.append((f"{len(rest)} more", "", "", "", "", f"{share:.1%}"))
    headings = ("operator", "scope", "", "split counts", "sends", "share")
    print_table("strategies, with their gradients", headings, rows, right=(2, 5))


def _key(compilation: Compilation, cost: OperatorCost) -> object:
    """Return what operators of repeated layers have in common."""
    if cost.node is None:
        return "optimizer"
    types = [value.type for value in compilation.compiled.source.operand_values(cost.node)]
    counts = tuple(sorted((kind, volume.count) for kind, volume in cost.communication.items()))
    scope = _pattern(cost.node.scope)
    return cost.node.operator, scope, tuple(types), cost.split_counts, counts


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _strategy_row(fold: _Fold, total: float) -> tuple[str, ...]:
    node = fold.first.node
    name, scope = ("optimizer", "") if node is None else (node.operator, node.scope)
    counts = " ".join("x".join(map(str, counts)) or "1" for counts in fold.first.split_counts)
    return (
        name,
        scope if fold.count == 1 else _pattern(scope),
        f"{fold.count}x" if fold.count > 1 else "",
        counts,
        traffic_text(fold.communication),
        f"{fold.seconds / total:.1%}",
    )


def traffic_text(communication: Mapping[str, Volume]) -> str:
    """Return collectives on one line: how many of each, and the bytes that a device sends."""
    parts = [
        (f"{volume.count} " if volume.count > 1 else "") + f"{kind} {bytes_text(volume.bytes)}"
        for kind, volume in sorted(communication.items())
    ]
    return ", ".join(parts)


def _print_parameters(document: PlanDocument) -> None:
    folds: dict[tuple[str, str, str, tuple[int, ...]], list[str]] = {}
    for name, item in document.parameters.items():
        if not _is_state(name, document):
            key = (_pattern(name), item.type, item.layout, item.slice_shape)
            folds.setdefault(key, []).append(name)
    rows = [
        (
            names[0] if len(names) == 1 else pattern,
            f"{len(names)}x" if len(names) > 1 else "",
            kind,
            layout,
            str(list(shape)),
        )
        for (pattern, kind, layout, shape), names in folds.items()
    ]
    if len(rows) > _ROWS:
        rows = [*rows[:_ROWS], (f"{len(rows) - _ROWS} more", "", "", "", "")]
    headings = ("parameter", "", "whole", "split over", "a device holds")
    print_table("parameters; their gradients and optimizer states lie alike", headings, rows, (1,))


def _is_state(name: str, document: PlanDocument) -> bool:
    """Return whether a parameter is a state of the optimizer, which lies as its parameter does."""
    base, _, _ = name.rpartition(".")
    states = document.optimizer.optimizer.states
    return base in document.parameters and any(name == f"{base}.{state}" for state in states)


def _print_communication(document: PlanDocument) -> None:
    rows = [
        (kind, str(volume.count), bytes_text(volume.bytes))
        for kind, volume in document.communication.items()
    ]
    if rows:
        headings = ("collective", "in a step", "a device sends")
        print_table("communication", headings, rows, right=(1, 2))


def _print_summary(compilation: Compilation, directory: Path) -> None:
    document, compiled = compilation.plan.document, compilation.compiled
    memory = document.memory
    parts = _joined(
        f"{kind} {bytes_text(size)}" for kind, size in memory.by_kind.items() if round(size)
    )
    print(f"predicted step    {seconds_text(document.predicted_step_seconds)}")
    print(
        f"memory            {bytes_text(memory.peak_bytes)} of "
        f"{bytes_text(document.cluster.device.memory_bytes)} on each device: {parts}"
    )
    print(f"plan              {_quality_text(document)}")
    for name, price in document.pin_prices.items():
        print(f"pin               `{name}` costs {_cost_text(price, document)}")
    seconds = compiled.result.seconds if compiled.result else 0.0
    print(
        f"took              {seconds_text(compiled.seconds)}, "
        f"of which the search {seconds_text(seconds)}"
    )
    print(f"written to        {directory}")


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _quality_text(document: PlanDocument) -> str:
    if document.lower_bound <= 0:
        return f"{document.status}, no lower bound is known ({document.how})"
    return (
        f"{document.status}: cost {_cost_text(document.objective, document)}, lower bound "
        f"{_cost_text(document.lower_bound, document)}, gap {document.gap:.3%} ({document.how})"
    )


def _cost_text(cost: float, document: PlanDocument) -> str:
    return seconds_text(cost) if document.cost_model == "time" else f"{cost:.6g}"
