"""The plan that takes the least memory, for models whose plans exceed the memory limit."""

from shardwright.search.method import SearchResult
from shardwright.search.options import SearchOptions
from shardwright.search.solving import no_assignment
from shardwright.search.space.space import SearchSpace
from shardwright.search.symmetry.alignment import align
from shardwright.solver.evaluate import evaluate
from shardwright.solver.exact.least_memory import minimize_memory

_GAP = 3e-3  # relative gap at which the least memory is near enough for a message


def search_least_memory(space: SearchSpace, options: SearchOptions) -> SearchResult:
    """Return a plan that takes little memory; its `lower_bound` is one on the bytes of every plan.

    Raises
    ------
    InfeasibleError
        If no plan connects every tensor with its readers.
    """
    least = minimize_memory(space.problem, budget=options.budget, gap=_GAP)
    if least.assignment is None:
        raise no_assignment(SearchOptions(), proven=True)
    evaluation = evaluate(space.problem, least.assignment)
    alignment = align(space, least.assignment)
    return SearchResult(
        least.assignment,
        alignment.decisions,
        float(evaluation.cost) + space.constant + alignment.alignment_penalty,
        least.lower_bound,
        "feasible",
        float(evaluation.peak_usage),
        options.budget.spent,
        "least memory",
    )
