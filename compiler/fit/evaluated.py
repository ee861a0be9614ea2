"""Plans that the questions of `fit` speak of: whatever is told of one is its evaluation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwright.compiler.evaluation.evaluator import Evaluation
from shardwright.compiler.fit.estimates import Estimate
from shardwright.compiler.fit.model import FitModel
from shardwright.ir.errors import ShardwrightError
from shardwright.search.named_plan import NamedPlan

BELOW = 0.1
"""Share by which an estimate may exceed the limit of a plan that fits.

Estimates of memory are up to 7 % too high for models of 70 billion parameters and a mixture, and up
to 14 % for small ones (`benchmarks/fit_estimates.md`). At twice of it more plans are evaluated that
do not fit; at half some that fit are not.
"""
EVALUATED = 4
"""Plans of the least estimates that are evaluated, to choose among them.

Estimates of steps are up to 15 % off, since they do not know what overlaps: with 2, the plan that
is chosen for Llama 3 70B on 64 H100 is as good as with 4; with 1 its step is 17 % longer.
"""
_MOST = 12  # that are evaluated until one fits; then only the smallest may
_REFINED = 12  # estimates whose schedules are simulated


@dataclass(frozen=True)
class Evaluated:
    """A plan with what it takes.

    Parameters
    ----------
    plan : NamedPlan
        The plan, with its data ranks and micro-batch.
    model : FitModel
        The model on its cluster.
    devices : int
        Number of ranks.
    evaluation : Evaluation
        What it takes.
    """

    plan: NamedPlan
    model: FitModel
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


def evaluated(model: FitModel, plan: NamedPlan, devices: int) -> Evaluated | None:
    """Return a plan with what it takes; None where the model has no such plan."""
    try:
        return Evaluated(plan, model, devices, model.evaluation(plan, devices))
    except ShardwrightError:
        return None


def may_fit(one: Estimate) -> bool:
    """Return whether a plan may fit, by its estimate."""
    return one.memory_bytes <= (1 + BELOW) * one.model.limit_bytes


def fastest(plans: Iterable[Estimate], count: int = EVALUATED) -> list[Evaluated]:
    """Return plans that fit, the fastest first: of the least estimates, by their evaluations.

    Parameters
    ----------
    plans : iterable of Estimate
        The plans.
    count : int
        How many are evaluated; more where none of these fits.
    """
    possible = sorted(filter(may_fit, plans), key=lambda one: one.seconds)
    refined = sorted(possible[: max(_REFINED, count)], key=lambda one: one.refined_seconds)
    found: list[Evaluated] = []
    for number, one in enumerate(refined[:_MOST]):
        if number >= count and found:
            break
        own = evaluated(one.model, one.plan, one.devices)
        if own is not None and own.fits:
            found.append(own)
    smallest = None if found else least_memory(possible)
    if smallest is not None and smallest.fits:
        found.append(smallest)
    return sorted(found, key=lambda one: one.seconds)


def least_memory(plans: Iterable[Estimate]) -> Evaluated | None:
    """Return the plan of the least estimate of memory, of equal ones the fastest."""
    listed = sorted(plans, key=lambda one: (one.memory_bytes, one.seconds))
    found = (evaluated(one.model, one.plan, one.devices) for one in listed)
    return next((one for one in found if one is not None), None)


def front(plans: Iterable[Estimate], count: int) -> list[Evaluated]:
    """Return plans that fit of which none beats another in step and memory, the fastest first.

    Parameters
    ----------
    plans : iterable of Estimate
        The plans. Of the front of their estimates so many are evaluated, its ends among them.
    count : int
        How many are evaluated.
    """
    best: list[Estimate] = []
    for one in sorted(filter(may_fit, plans), key=lambda one: (one.seconds, one.memory_bytes)):
        if not best or one.memory_bytes < best[-1].memory_bytes:
            best.append(one)
    last = len(best) - 1
    few = best if last < count else [best[i * last // (count - 1)] for i in range(count)]
    known = [evaluated(one.model, one.plan, one.devices) for one in few]
    return unbeaten([one for one in known if one is not None and one.fits])


def unbeaten(plans: Iterable[Evaluated]) -> list[Evaluated]:
    """Return the plans that no other one beats in step and memory, the fastest first."""
    found: list[Evaluated] = []
    for one in sorted(plans, key=lambda one: (one.seconds, one.memory_bytes)):
        if not found or one.memory_bytes < found[-1].memory_bytes:
            found.append(one)
    return found
