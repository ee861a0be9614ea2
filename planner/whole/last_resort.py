"""A plan by rule, where the budget of a search is spent before it has a plan that fits."""

from dataclasses import replace
from itertools import product

from shardwright.dataflow.recompute_rules import RULES
from shardwright.ir.errors import ShardwrightError, StrategyError
from shardwright.passes.recompute import Recompute
from shardwright.planner.whole.plan import Plan
from shardwright.planner.whole.problem import PlanProblem
from shardwright.solver.work import Budget

_RULES = ("data_parallel", "fully_sharded", "tensor_parallel")


def plan_by_rule(problem: PlanProblem) -> Plan | None:
    """Return the cheapest plan that fits of those that rules build, without a bound.

    Rules need no search, so the work of it is not counted. What is recomputed is marked by rule,
    too, as far as the search decides that.

    Parameters
    ----------
    problem : PlanProblem
        The problem of the serial step.
    """
    request, limit = problem.request, problem.limits.limit_bytes
    options = request.options
    exact = request.method.minimizes_step and options.cost_model == "time"
    if not exact or options.pins or options.result_pins or options.input_layouts:
        return None
    searched = options.recompute == "search"
    marks: tuple[str | None, ...] = (None, *RULES) if searched else (None,)
    found: list[Plan] = []
    for mark, rule in product(marks, _RULES):
        try:
            source = request.source if mark is None else Recompute(mark).run(request.source)
        except StrategyError:  # the model has no repeated block, or no attention
            continue
        own = replace(
            request,
            source=source,
            options=replace(options, search=rule, objective="serial"),
            known_micro=None if mark else request.micro,
            budget=Budget(),
            known=None,
            others={},
        )
        alone = replace(problem, request=own, limits=replace(problem.limits, budget=Budget()))
        try:
            plan = problem.emit(alone.solve(None))
        except ShardwrightError:
            continue
        if plan.fits(limit):
            how = f"{plan.result.how}, recompute={mark}" if mark else plan.result.how
            found.append(replace(plan, result=replace(plan.result, how=how)))
    return min(found, key=lambda plan: plan.result.cost, default=None)
