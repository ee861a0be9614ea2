"""Plans of a model with what they take: whatever is told of one is its evaluation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from math import inf
from typing import Any

from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.evaluator import Evaluation
from shardwright.compiler.evaluation.factors import AS_SAID, Factors
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.ir.errors import ShardwrightError
from shardwright.search.named_plan import NamedPlan


@dataclass(frozen=True)
class Evaluated:
    """A plan with what it takes.

    Parameters
    ----------
    plan : NamedPlan
        The plan, with its data ranks and micro-batch.
    model : EvaluatedModel
        The model on its cluster.
    devices : int
        Number of ranks.
    evaluation : Evaluation
        What it takes.
    """

    plan: NamedPlan
    model: EvaluatedModel
    devices: int
    evaluation: Evaluation

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.evaluation.fits

    @property
    def seconds(self) -> float:
        """The step."""
        return self.evaluation.seconds

    @property
    def memory_bytes(self) -> float:
        """What a rank takes, of the fullest device group."""
        return self.evaluation.memory.peak_bytes

    @property
    def memory_by_kind(self) -> Mapping[str, float]:
        """The same by kind of tensor."""
        return self.evaluation.memory.by_kind

    def seconds_in(self, case: Factors) -> float:
        """Return the step of its program where figures of the cluster are other than said."""
        return self.seconds if case == AS_SAID else self.evaluation.seconds_in(case)


def evaluated(model: EvaluatedModel, plan: NamedPlan, devices: int) -> Evaluated | None:
    """Return a plan with what it takes; None where the model has no such plan."""
    try:
        return Evaluated(plan, model, devices, model.evaluation(plan, devices))
    except ShardwrightError:
        return None


def fastest(
    model: EvaluatedModel,
    plans: Iterable[Bound],
    case: Factors = AS_SAID,
    most: float = inf,
    best: Evaluated | None = None,
    tried: int | None = None,
    limit: float = inf,
) -> Evaluated | None:
    """Return the fastest plan that fits; None where none does.

    Plans are evaluated in the order of their bounds, until none that is left can be faster.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    plans : iterable of Bound
        The plans.
    case : Factors, optional
        Factors on the figures of the cluster.
    most : float
        How many plans that fit, or are slower than one that does, are evaluated: the fastest of
        them is maybe not that of all.
    best : Evaluated, optional
        One more plan that fits.
    tried : int, optional
        How many plans are evaluated, whether they fit or not; by default as many as it takes.
    limit : float
        Seconds of a step that are too many.
    """
    bounds = [bound if case == AS_SAID else replace(bound, factors=case) for bound in plans]
    # The step as a software runs it is known before the memory: does a slower plan matter?
    skips_slower = case == AS_SAID and model.software is not None
    by_seconds = ascending(model, bounds, lambda one: one.seconds, model.may_fit)

    def too_slow() -> float:
        return limit if best is None else min(limit, best.seconds_in(case))

    def matters(bound: Bound) -> bool:
        return bound.seconds < too_slow()

    def expect(bound: Bound) -> None:
        enough = too_slow() if skips_slower else inf
        model.expect(bound.plan, bound.devices, ("seconds", "fits", "memory"), enough)

    for bound in _begun(model, islice(by_seconds, tried), matters, expect):
        least = too_slow()
        own = evaluated(model, bound.plan, bound.devices)
        is_slower = own is not None and skips_slower and own.seconds >= least
        if own is None or not (is_slower or own.fits):
            continue
        if not is_slower and own.seconds_in(case) < least:
            best = own
        most -= 1
        if most <= 0:
            break
    return best


def _begun(
    model: EvaluatedModel,
    bounds: Iterator[Bound],
    matters: Callable[[Bound], bool],
    expect: Callable[[Bound], None],
) -> Iterator[Bound]:
    """Return bounds up to the first that does not matter: those behind it do not matter either.

    Each comes once as many behind it are begun as other processes take at once.
    """

    def begun() -> Iterator[Bound]:
        waiting = deque[Bound]()
        for bound in takewhile(matters, bounds):
            expect(bound)
            waiting.append(bound)
            if len(waiting) > model.workers:
                yield waiting.popleft()
        yield from waiting

    return takewhile(matters, begun())


def ascending(
    model: EvaluatedModel,
    bounds: Iterable[Bound],
    key: Callable[[Bound], Any],
    among: Callable[[Bound], bool] = lambda bound: True,
) -> Iterator[Bound]:
    """Yield bounds in ascending order of what they have, each once it is refined and simulated.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    bounds : iterable of Bound
        The bounds, maybe rough.
    key : callable
        Returns what they are in order of: no less for a refined or simulated bound.
    among : callable, optional
        Returns whether a bound is asked for; where not, nor is it once it is refined.
    """
    left = [(key(bound), number, bound) for number, bound in enumerate(bounds) if among(bound)]
    heapify(left)
    while left:
        _, number, bound = heappop(left)
        if bound.is_simulated:
            yield bound
            continue
        if bound.is_rough and model.expect_bound(bound.plan, bound.devices):
            for one in (one for *_, one in sorted(left) if one.is_rough):
                if model.is_busy:
                    break
                model.expect_bound(one.plan, one.devices)
        refined = model.refined(bound) if bound.is_rough else replace(bound, is_simulated=True)
        if refined is not None and among(refined):
            heappush(left, (key(refined), number, refined))


def least_memory(
    model: EvaluatedModel, plans: Iterable[Bound], tried: int | None = None
) -> Evaluated | None:
    """Return the plan whose program takes least memory in its order, of equal ones the first.

    It fits if any does, unless only some are tried.
    """
    best: Evaluated | None = None
    by_memory = ascending(model, plans, lambda one: (one.memory_bytes, one.seconds))

    def matters(bound: Bound) -> bool:
        return best is None or bound.memory_bytes < best.evaluation.fitted_bytes

    def expect(bound: Bound) -> None:
        model.expect(bound.plan, bound.devices, ("fitted_bytes",))

    for bound in _begun(model, islice(by_memory, tried), matters, expect):
        own = evaluated(model, bound.plan, bound.devices)
        least = None if best is None else best.evaluation.fitted_bytes
        if own is not None and (least is None or own.evaluation.fitted_bytes < least):
            best = own
    return best


def front(model: EvaluatedModel, plans: Iterable[Bound], count: int) -> list[Evaluated]:
    """Return plans that fit of which none beats another in step and memory, the fastest first.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    plans : iterable of Bound
        The plans. Of the front of their bounds so many are evaluated, its ends among them.
    count : int
        How many are evaluated.
    """
    best: list[Bound] = []
    for one in sorted(
        filter(model.may_fit, plans), key=lambda one: (one.seconds, one.memory_bytes)
    ):
        if not best or one.memory_bytes < best[-1].memory_bytes:
            best.append(one)
    last = len(best) - 1
    few = best if last < count else [best[i * last // (count - 1)] for i in range(count)]
    for one in few:
        model.expect(one.plan, one.devices, ("seconds", "fits", "memory"))
    known = [evaluated(model, one.plan, one.devices) for one in few]
    return unbeaten([one for one in known if one is not None and one.fits])


def unbeaten(plans: Iterable[Evaluated]) -> list[Evaluated]:
    """Return the plans that no other one beats in step and memory, the fastest first."""
    found: list[Evaluated] = []
    for one in sorted(plans, key=lambda one: (one.seconds, one.memory_bytes)):
        if not found or one.memory_bytes < found[-1].memory_bytes:
            found.append(one)
    return found
