"""The fronts of a site, searched once and kept for other programs of the same kinds of blocks.

They depend on the blocks, the mesh, the cluster and the options, and not on how many blocks there
are: a deeper model of the same layers has the same. What their search spends is told with them and
charged in either case, so no plan depends on what is kept.
"""

from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from pydantic import TypeAdapter

from shardwright.ir.decisions import Decisions
from shardwright.planner.cache import Kept, text_of
from shardwright.planner.fronts.front import BlockFront, BlockPlan
from shardwright.planner.fronts.site import Kind, Site
from shardwright.planner.plan.stage_plans import renamed
from shardwright.solver.work import Budget

# Options that tell how much is searched, and by whom, of which no front is a part.
_OTHERS = frozenset(
    {"cache", "workers", "executor", "effort", "time_limit", "explain_search", "gap", "stages"}
)


@dataclass(frozen=True)
class _Plan:
    """A plan of a block whose values have numbers instead of names."""

    decisions: Decisions
    seconds: tuple[tuple[float, ...], ...]
    held_bytes: float
    own_bytes: float
    after_bytes: float
    gathered_bytes: float
    each_bytes: float


@dataclass(frozen=True)
class _Fronts:
    """The fronts of all kinds of blocks, and the seconds of work that their search takes."""

    work_seconds: float
    plans: tuple[tuple[_Plan, ...], ...]


_KEPT = Kept("front of blocks", TypeAdapter(_Fronts))


def fronts_of(site: Site, in_flight: int = 1) -> list[tuple[BlockPlan, ...]]:
    """Return the plans of each kind of block of a site, and charge their search.

    Parameters
    ----------
    site : Site
        The blocks.
    in_flight : int
        Micro-batches in flight on a stage at most.
    """
    key = _key(site, in_flight) if site.options.cache else None
    known = None if key is None else _KEPT.read(key)
    if known is not None and len(known.plans) == len(site.kinds):
        site.budget.charge(known.work_seconds)
        pairs = zip(site.kinds, known.plans, strict=True)
        return [tuple(_named(site, kind, plan) for plan in plans) for kind, plans in pairs]
    alone = replace(site, budget=Budget(work=site.budget.work.anew()))
    found = [BlockFront(alone, kind, in_flight).plans for kind in alone.kinds]
    spent = alone.budget.spent
    site.budget.charge(spent)
    if key is not None and not site.budget.work.is_stopped:
        each = zip(alone.kinds, found, strict=True)
        plans = tuple(tuple(_numbered(site, kind, one) for one in front) for kind, front in each)
        _KEPT.write(key, _Fronts(spent, plans))
    return found


def _key(site: Site, in_flight: int) -> str | None:
    """Return what the fronts of a site depend on; None where something is not told by fields."""
    chosen = {n: v for n, v in vars(site.options).items() if n not in _OTHERS}
    kinds = site.kinds
    told = [(site.blocks.told(one.first), *site.shapes(one).values()) for one in kinds]
    frequent = sorted(range(len(kinds)), key=lambda number: -len(kinds[number].places))
    try:
        is_staged = site.options.stages != 1
        text = text_of((site.cluster, site.mesh, chosen, told, frequent, in_flight, is_staged))
    except TypeError:
        return None
    return sha256(text.encode()).hexdigest()


def _numbered(site: Site, kind: Kind, plan: BlockPlan) -> _Plan:
    values = site.blocks.values(kind.first)
    names = {name: str(number) for number, name in enumerate(values)}
    decisions, seconds = renamed(plan.decisions, names), tuple(map(tuple, plan.seconds.tolist()))
    sizes = plan.held_bytes, plan.own_bytes, plan.after_bytes, plan.gathered_bytes, plan.each_bytes
    return _Plan(decisions, seconds, *sizes)


def _named(site: Site, kind: Kind, plan: _Plan) -> BlockPlan:
    names = {str(n): name for n, name in enumerate(site.blocks.values(kind.first))}
    decisions, seconds = renamed(plan.decisions, names), np.array(plan.seconds)
    sizes = plan.held_bytes, plan.own_bytes, plan.after_bytes, plan.gathered_bytes, plan.each_bytes
    return BlockPlan(decisions, seconds, *sizes)
