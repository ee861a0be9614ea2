"""The plan of a program of repeated blocks in one stage, put together from plans of its blocks."""

from math import inf

from shardwright.cost_model.cluster import Cluster
from shardwright.dataflow.schedules import make_schedule
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.planner.choice.stages import StagedBlocks
from shardwright.planner.choice.steps import StepSearch
from shardwright.planner.fronts.site import Site, is_repeated
from shardwright.planner.option_checks import SEARCHED
from shardwright.planner.options import CompileOptions
from shardwright.planner.whole.plan import Plan
from shardwright.search.method import SearchResult
from shardwright.solver.work import Budget


def plans_blocks(source: Graph, options: CompileOptions) -> bool:
    """Return whether the plan of a program may be put together from plans of its blocks.

    Not where tensors may be offloaded: blocks alone do not tell when that pays.
    """
    offloads = options.offload == SEARCHED or bool(source.offloaded)
    return options.objective == "overlapped" and not offloads and is_repeated(source, options)


def plan_of_blocks(
    source: Graph,
    cluster: Cluster,
    mesh: Mesh,
    options: CompileOptions,
    budget: Budget,
    below: float = inf,
) -> Plan:
    """Return the plan of the shortest step that was found, without a bound.

    Its blocks have plans of their fronts (`planner.choice.steps`).

    Parameters
    ----------
    source, cluster, mesh, options, budget
        As of `WholeSearch`.
    below : float
        Seconds that the step must undercut to be of use.

    Raises
    ------
    NotFoundError
        If none fits, or none is expected to be of use.
    """
    site = Site.of(source, cluster, mesh, options, budget)
    blocks = StagedBlocks(site, make_schedule("1f1b", 1, 1, options.passes))
    planner = StepSearch(blocks, below=below, budget=budget)
    best = planner.best()
    result = SearchResult(
        (),
        best.emitted.decisions,
        best.seconds,
        0.0,
        "feasible",
        best.emitted.memory.peak_bytes,
        budget.spent,
        f"plans of {site.words}, {len(planner.steps)} programs",
    )
    return Plan(result, best.emitted, site.limits, timeline=best.timeline)
