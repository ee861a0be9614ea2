"""Prices of pins: how much cheaper the plan is without each."""

from collections.abc import Mapping
from dataclasses import replace

from shardwright.planner.search_request import SearchRequest
from shardwright.planner.whole.plan import Plan
from shardwright.solver.solution import relative_gap
from shardwright.solver.work import Budget

_MOST_PINS = 16  # each price is a search; a file that pins every operator gets none


def pin_prices(request: SearchRequest, plan: Plan, budget: Budget) -> Mapping[str, float]:
    """Return the price of each pin, in the unit of the profile: what the plan without it saves.

    Where the overlapped step is minimised, the prices are of the serial step.

    Without a proof that the plan is good there are none: a difference of costs says nothing of the
    pin. Where the budget ends the searches, the later pins get none.

    Parameters
    ----------
    request : SearchRequest
        The search with all pins.
    plan : Plan
        Its plan.
    budget : Budget
        What all searches may spend.
    """
    pins, limits, result = request.options.pins, plan.limits, plan.result
    proven = relative_gap(result.cost, result.lower_bound) <= limits.gap
    if request.options.mode != "auto_parallel" or not (proven or result.status == "optimal"):
        return {}
    if len(pins) > _MOST_PINS:
        return {}
    prices = {}
    for name in sorted(pins):
        others = {other: pin for other, pin in pins.items() if other != name}
        space = request.space_with(others, recompute=plan.recomputes)
        if budget.is_spent:
            break
        without = request.solve(space, replace(limits, budget=budget.within(budget.left)))
        prices[name] = max(result.cost - without.cost, 0.0)
    return prices
