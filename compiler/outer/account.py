"""The account of a search over configurations: its tables for people, its document for scripts."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.ir.units import WHOLE_LIST, bytes_text, seconds_text
from shardwright.planner.choice.trace import MemoryPoint, Outcome, RankedPlan, SearchTrace, Tried

_GIB = 2**30
_ORDER: dict[Outcome, int] = {
    "compiled": 0,
    "cut": 1,
    "left": 2,
    "not found": 3,
    "infeasible": 4,
    "refused": 5,
}

CostText = Callable[[float], str]


@dataclass(frozen=True)
class AccountTable:
    """A table of the account.

    Parameters
    ----------
    title : str
        The line above it.
    headings : tuple of str
        One for each column.
    rows : sequence of tuple of str
        The cells.
    right : tuple of int
        Columns of numbers.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[int, ...]


def account_tables(
    trace: SearchTrace, cost_text: CostText, *, in_full: bool
) -> Iterator[AccountTable]:
    """Yield what was tried, the best plans, and what memory is worth."""
    yield _tried_table(trace, cost_text, None if in_full else WHOLE_LIST)
    if trace.plans:
        yield _plans_table(trace, cost_text)
    if trace.memory_points:
        yield _memory_table(trace, cost_text)


def outcomes_text(trace: SearchTrace) -> str:
    """Return how many configurations there were, and what became of them."""
    counts = Counter(item.outcome for item in trace.tried)
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _ORDER if counts[outcome])
    number = len(trace.tried)
    return f"{number} configuration{'s' if number > 1 else ''}: {told}"


def _tried_table(trace: SearchTrace, cost_text: CostText, most: int | None) -> AccountTable:
    tried = sorted(trace.tried, key=lambda item: (_ORDER[item.outcome], item.lower_bound))
    rows = [_tried_row(item, trace, cost_text) for item in tried[:most]]
    rest = len(tried) - len(rows)
    if rest:
        rows.append((f"{rest} more", "", "", "", "see them with `--full`"))
    headings = ("configuration", "at least", "plan", "memory", "what became of it")
    return AccountTable(f"search: {outcomes_text(trace)}", headings, rows, (1, 2, 3))


def _tried_row(item: Tried, trace: SearchTrace, cost_text: CostText) -> tuple[str, ...]:
    return (
        str(item.configuration),
        cost_text(item.lower_bound) if math.isfinite(item.lower_bound) else "",
        "" if item.cost is None else cost_text(item.cost),
        "" if item.memory_bytes is None else bytes_text(item.memory_bytes),
        _fate(item, trace),
    )


def _fate(item: Tried, trace: SearchTrace) -> str:
    """Return what became of a configuration, in words."""
    match item.outcome:
        case "compiled":
            chosen = item.configuration == trace.best
            return "the answer" if chosen else "compiled; the answer costs no more"
        case "cut":
            return f"cut: a plan costs no more than its bound ({item.proof})"
        case "left":
            why = "by the budget" if trace.is_cut_short else "since little was to be gained"
            return f"left out {why}; its bound counts ({item.proof})"
        case "not found":
            return f"no plan and no proof; its bound counts ({item.proof}): {item.reason}"
        case "infeasible":
            return f"proven that it has no plan: {item.reason}"
        case _:
            return f"has no form of the program: {item.reason}"


def _plans_table(trace: SearchTrace, cost_text: CostText) -> AccountTable:
    rows = [
        (
            str(plan.configuration),
            cost_text(plan.cost),
            bytes_text(plan.memory_bytes),
            "; ".join(plan.differs),
        )
        for plan in trace.plans
    ]
    title = "the best plans, each of another configuration"
    return AccountTable(title, ("configuration", "plan", "memory", "differs"), rows, (1, 2))


def _memory_table(trace: SearchTrace, cost_text: CostText) -> AccountTable:
    price = trace.memory_price()
    title = "price of memory around the limit"
    if price is not None:
        title += f": {cost_text(price * _GIB)} for each GiB" if price else ": none"
    rows = [_memory_row(point, cost_text) for point in trace.memory_points]
    headings = ("limit", "best plan found", "its memory", "no plan costs less than")
    return AccountTable(f"{title}, for {trace.best}", headings, rows, (0, 1, 2, 3))


def _memory_row(point: MemoryPoint, cost_text: CostText) -> tuple[str, ...]:
    unproven = "none found" if math.isfinite(point.lower_bound) else "proven: none"
    return (
        bytes_text(point.limit_bytes),
        unproven if point.cost is None else cost_text(point.cost),
        "" if point.memory_bytes is None else bytes_text(point.memory_bytes),
        cost_text(point.lower_bound) if math.isfinite(point.lower_bound) else "",
    )


def search_document(trace: SearchTrace | None) -> dict[str, Any] | None:
    """Return the account as a document; None where there was no search over configurations."""
    if trace is None:
        return None
    return {
        "lower_bound": trace.lower_bound,
        "cut_short": trace.is_cut_short,
        "tried": [_tried_document(item) for item in trace.tried],
        "plans": [
            {
                **_configuration(plan),
                "cost": plan.cost,
                "memory_bytes": plan.memory_bytes,
                "differs": list(plan.differs),
            }
            for plan in trace.plans
        ],
        "memory": [
            {
                "limit_bytes": point.limit_bytes,
                "cost": point.cost,
                "lower_bound": point.lower_bound,
                "memory_bytes": point.memory_bytes,
            }
            for point in trace.memory_points
        ],
        "price_of_a_byte": trace.memory_price(),
    }


def _tried_document(item: Tried) -> dict[str, Any]:
    return {
        **_configuration(item),
        "outcome": item.outcome,
        "lower_bound": item.lower_bound,
        "proof": item.proof,
        "cost": item.cost,
        "memory_bytes": item.memory_bytes,
        "reason": item.reason or None,
        "seconds": item.seconds,
    }


def _configuration(item: Tried | RankedPlan) -> dict[str, Any]:
    configuration = item.configuration
    return {
        "mesh": configuration.shape,
        "micro_batches": configuration.micro_batches,
        "stages": configuration.stages,
        "chunks": configuration.chunks,
        "schedule": configuration.schedule,
    }


def cost_text_of(cost_model: str) -> CostText:
    """Return what prints a cost of a cost model: seconds, or a number without unit."""
    return seconds_text if cost_model == "time" else "{:.6g}".format
