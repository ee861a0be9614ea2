"""The simplest of the plans that published steps do not tell from the fastest one.

Two plans of a model on the same devices cannot be told apart where their predicted steps differ by
less than the ratios of published ones did from predicted ratios
(`cost_model.efficiency.intervals.Apart`). Simpler is the plan with fewer kinds of parallelism; of
as many kinds the faster one.
"""

from collections.abc import Sequence

from shardwright.compiler.evaluation.evaluated import Evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.search.named_plan import NamedPlan


def kinds(plan: NamedPlan) -> int:
    """Return how many kinds of parallelism a plan has: its degrees above 1.

    Examples
    --------
    >>> kinds(NamedPlan.parse("tensor=4,data=2,zero=1,micro_batch=1"))
    2
    """
    degrees = (plan.tensor, plan.pipeline, plan.context, plan.expert, plan.data or 1)
    return sum(degree > 1 for degree in degrees)


def simplest(
    model: EvaluatedModel, plans: Sequence[Bound], best: Evaluated, share: float
) -> Evaluated:
    """Return the simplest plan that fits and is not told from the fastest one.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    plans : sequence of Bound
        The plans.
    best : Evaluated
        The fastest that fits.
    share : float
        By which share of the faster step two steps have to differ to be told apart.
    """
    limit = best.seconds * (1 + share)
    for count in range(kinds(best.plan)):
        own = [one for one in plans if kinds(one.plan) == count and one.seconds < limit]
        found = fastest(model, own, limit=limit)
        if found is not None:
            return found
    return best
