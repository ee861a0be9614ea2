"""The named plan that another system can say and that costs least instead of a plan.

A plan that was made by name is itself, where the system has its words. Else those are built that
differ from it in the fewest words, with the same degrees and micro-batches. For a searched plan, or
where none of these fits, named plans of all degrees on the same devices are built, those with the
stages of the plan and those with one stage. The fastest by the cost model that fits the memory
limit of the plan is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from math import inf
from typing import Any

from shardwright.compiler.plans.plan import Plan
from shardwright.compiler.plans.plan_timeline import timeline_of_plan
from shardwright.cost_model.pipelines.mixed import of_one_kind
from shardwright.dataflow.samples import samples_of
from shardwright.exports.degrees.best import BestNamedPlan, best_named_plan, candidate_plans
from shardwright.ir.errors import OptionError
from shardwright.ir.units import bytes_text, seconds_text
from shardwright.operators.models.loss_scale import loss_scale
from shardwright.search.named_plan import RECOMPUTE, NamedPlan
from shardwright.search.plan_dimensions import word_text
from shardwright.tracing import Definition, InputSpec

_ALIKE = "the nearest plan of another system is found on one kind of device"
_BY_NAME = "named_plan"
_TYPES = ("precision", "reduce_type", "accumulate_type")
_SAYABLE = {1: 2}  # the ZeRO stage next to one that a system has no word for


@dataclass(frozen=True)
class Words:
    """What another system can say.

    Parameters
    ----------
    system : str
        Its name.
    refusal : callable
        Why it cannot say a plan, in words after "it cannot say"; empty if it can.
    refusal_of_built : callable, optional
        Why it cannot say a plan that was built, in a clause; empty if it can. By default, no plan
        is refused for what its words do not show.
    """

    system: str
    refusal: Callable[[NamedPlan], str]
    refusal_of_built: Callable[[Plan], str] = lambda plan: ""

    def can_say(self, plan: NamedPlan) -> bool:
        """Return whether the system has words for a plan."""
        return not self.refused(plan)

    def refused(self, plan: NamedPlan) -> str:
        """Return what of a plan the system has no word for; empty if it has all."""
        return self.refusal(plan) or ", ".join(f"`{word_text(*word)}`" for word in plan.more)


@dataclass(frozen=True)
class Figures:
    """The overlapped step of a plan, and the peak memory of its fullest device."""

    step_seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Nearest:
    """A named plan instead of a plan.

    Parameters
    ----------
    plan : NamedPlan
        The named plan, with its data ranks and the samples of a micro-batch.
    built : Plan
        The same, compiled. Its model has the casts of the plan, so its document says its types.
    own, projected : Figures
        Those of the plan, and of the named one.
    reason : str
        Why the plan itself has no words; empty where the named plan is the plan.
    account : str
        How the named plan was chosen.
    """

    plan: NamedPlan
    built: Plan
    own: Figures
    projected: Figures
    reason: str = ""
    account: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether the named plan is the plan."""
        return not self.reason

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a person must know of it."""
        own, other = self.own, self.projected
        step, memory = seconds_text(own.step_seconds), bytes_text(own.memory_bytes)
        if self.is_exact:
            said = f"the plan itself, {self.plan}: step {step}, {memory} on each device, estimated"
            return (said,)
        change = other.step_seconds / own.step_seconds - 1
        return (
            f"not the plan itself: {self.reason}",
            f"the nearest that can be said: {self.plan} (the fastest: {self.account})",
            f"what that costs, estimated: step {step} -> {seconds_text(other.step_seconds)} "
            f"({change:+.1%}), memory of a device {memory} -> {bytes_text(other.memory_bytes)}",
        )


def figures(plan: Plan) -> Figures:
    """Return the figures of a plan, by its cost model."""
    return Figures(timeline_of_plan(plan).step_seconds, plan.document.memory.peak_bytes)


def named(plan: Plan) -> NamedPlan | None:
    """Return the named plan that a plan was made from, in full; None if it was searched."""
    if plan.document.search != _BY_NAME:
        return None
    return in_full(NamedPlan.parse(plan.document.how), samples(plan), plan.document.devices)


def in_full(plan: NamedPlan, batch: int, devices: int) -> NamedPlan:
    """Return a named plan with its data ranks, micro-batch and schedule written out.

    Examples
    --------
    >>> in_full(NamedPlan.parse("tensor=2,pipeline=2"), 8, 8).text
    'tensor=2,pipeline=2,data=2,micro_batch=4,schedule=1f1b'
    """
    plan = plan.on(devices)
    each = batch // (plan.data or 1)
    schedule = plan.order if plan.pipeline > 1 else None
    return replace(plan, micro_batch=plan.micro_batch or each, schedule=schedule)


def samples(plan: Plan) -> int:
    """Return the samples of a step.

    Raises
    ------
    OptionError
        If the inputs of the model have no common batch.
    """
    found = samples_of(plan.model)
    if found is None:
        raise OptionError(
            f"the inputs of `{plan.document.model}` have no common batch for degrees to divide",
            hint="export `placements`, which need none",
        )
    return found


def nearest(plan: Plan, words: Words, refusal: str = "") -> Nearest:
    """Return the named plan of a system that stands for a plan.

    Parameters
    ----------
    plan : Plan
        A compiled training step.
    words : Words
        What the system can say.
    refusal : str
        What `words.refusal_of_built` says of the plan; empty where it has not been asked.

    Raises
    ------
    OptionError
        If no plan that it can say fits.
    """
    own, by_name = figures(plan), named(plan)
    reason = _reason(plan, by_name, words, refusal)
    if by_name is not None and not reason:
        return Nearest(by_name, plan, own, own)
    _check_again(plan, words)
    best = BestNamedPlan()
    for candidates in _in_turn(plan, by_name, words):
        best = _best(plan, words, candidates)
        if best.plan is not None:
            break
    if best.plan is None or best.compilation is None:
        raise _none_fits(reason, words, best)
    found = in_full(best.plan, samples(plan), plan.document.devices)
    built = best.compilation.plan
    types = {name: getattr(plan.document, name) for name in _TYPES}
    typed = replace(built, document=built.document.model_copy(update=types))
    return Nearest(found, typed, own, figures(built), reason, best.account)


def _none_fits(reason: str, words: Words, best: BestNamedPlan) -> OptionError:
    """Return the error of a plan that no other stands for."""
    none = f"no plan that {words.system} can say fits: {best.account}"
    if best.declined and not best.evaluated:
        none = f"none of {best.declined} named plans on these devices has such a form"
    return OptionError(f"{reason}, and {none}", hint="export `placements`, which says any plan")


def _reason(plan: Plan, by_name: NamedPlan | None, words: Words, refusal: str) -> str:
    """Return why a plan has no words, in a clause; empty if it has."""
    if by_name is not None and not words.can_say(by_name):
        return f"{words.system} cannot say {words.refused(by_name)}"
    if refusal := refusal or words.refusal_of_built(plan):
        return refusal
    if by_name is None:
        return f"it was searched, and {words.system} names plans by their degrees"
    return ""


def _best(plan: Plan, words: Words, candidates: Sequence[NamedPlan]) -> BestNamedPlan:
    """Return the fastest of some combinations of degrees that fits."""
    document, batch = plan.document, samples(plan)

    def is_allowed(one: NamedPlan) -> bool:
        return words.can_say(in_full(one, batch, document.devices))

    return best_named_plan(
        _definition(plan),
        of_one_kind(document.cluster, _ALIKE),
        document.devices,
        among=lambda graph: candidates,
        allowed=is_allowed,
        accepted=lambda built: not words.refusal_of_built(built),
        memory_limit=inf if document.memory.limit is None else document.memory.limit,
        cost_model=document.cost_model,
    )


def _check_again(plan: Plan, words: Words) -> None:
    """Refuse a plan whose model cannot be compiled again from what the plan has."""
    if plan.document.micro_batch_statistics:
        raise OptionError(
            f"`{plan.document.model}` has statistics of each micro-batch of this plan, so other "
            f"plans of {words.system} cannot be estimated from it",
            hint="compile the model with `--plan` and what you want to export",
        )


def _definition(plan: Plan) -> Definition:
    """Return the model of a plan, with its casts; what it computes again is left to the plans."""
    document = plan.document
    return Definition(
        replace(plan.model, recomputed=()),
        tuple(InputSpec(one.name, one.tensor, one.high) for one in document.inputs),
        initial=plan.initial,
        optimizer=document.optimizer.optimizer,
        loss_scale=loss_scale(document.loss_scale),
    )


def _in_turn(plan: Plan, by_name: NamedPlan | None, words: Words) -> Iterator[Sequence[NamedPlan]]:
    """Yield combinations of degrees, the nearest first: of other words, then of all degrees."""
    if by_name is not None:
        variants = [one for one in _variants(by_name) if one != by_name and words.can_say(one)]
        changes = {one: _changes(one, by_name) for one in variants}
        for count in sorted(set(changes.values())):
            yield [one for one in variants if changes[one] == count]
    yield _degrees(plan, words)


def _degrees(plan: Plan, words: Words) -> Sequence[NamedPlan]:
    """Return combinations of degrees: with the stages of the plan, and with one stage."""
    devices, graph = plan.document.devices, plan.model
    cluster = of_one_kind(plan.document.cluster, _ALIKE)
    groups, batch = plan.mesh.stages, samples(plan)
    found = list(candidate_plans(graph, cluster, devices))
    if groups > 1:
        chunks = max(plan.program.stages // groups, 1)
        for one in candidate_plans(graph, cluster, devices // groups):
            each = batch // ((one.data or 1) * plan.mesh.passes)
            micro = each if each and batch % ((one.data or 1) * each) == 0 else 1
            found.append(replace(one, pipeline=groups, chunks=chunks, micro_batch=micro))
    return [
        one if words.can_say(one) else replace(one, zero=_SAYABLE.get(one.zero, one.zero))
        for one in found
    ]


def _variants(plan: NamedPlan) -> list[NamedPlan]:
    """Return a named plan with all other words: its degrees and micro-batches stay."""
    divides = (plan.data or 1) * plan.context > 1
    choices: dict[str, tuple[Any, ...]] = {
        "schedule": (plan.schedule, "1f1b")
        if plan.chunks == 1 < plan.pipeline
        else (plan.schedule,),
        "sequence_parallel": (False, True) if plan.tensor > 1 else (False,),
        "ring": (False, True) if plan.context > 1 else (False,),
        "recompute": RECOMPUTE,
        "zero": (0, 1, 2, 3) if divides else (0,),
        "shard": tuple(dict.fromkeys((plan.shard, 1))),
        "more": tuple(dict.fromkeys((plan.more, ()))),
    }
    found: dict[NamedPlan, None] = {}
    for row in product(*choices.values()):
        with suppress(OptionError):  # a further word that has no effect beside the others
            found[replace(plan, **dict(zip(choices, row, strict=True)))] = None
    return [*found]


def _changes(one: NamedPlan, other: NamedPlan) -> int:
    """Return the number of words in which two named plans differ."""
    return sum(getattr(one, each.name) != getattr(other, each.name) for each in fields(one))
