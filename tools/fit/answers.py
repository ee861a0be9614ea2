"""The answers of `fit`: what is asked of a model on one number of devices, or on several."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

from shardwright.compilation import Compilation
from shardwright.compiler.evaluation.evaluated import (
    Evaluated,
    evaluated,
    fastest,
    front,
    least_memory,
    unbeaten,
)
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import family
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.compiler.fit.questions import (
    Change,
    Longest,
    OnDevices,
    changes,
    expect_changes,
    fewest_devices,
    improved,
    largest_fitting,
    largest_micro_batch,
    longest_sequence,
    on_devices,
)
from shardwright.compiler.fit.robust import Robust, errors_of, robust
from shardwright.compiler.fit.simplest import simplest
from shardwright.cost_model.efficiency.intervals import Apart, Step, told_apart
from shardwright.cost_model.efficiency.published import SHORT
from shardwright.cost_model.events import Timeline
from shardwright.ir.errors import ShardwrightError
from shardwright.operators.models.precision import recipe_of
from shardwright.operators.models.recipes import FLOAT4
from shardwright.search.named_plan import NamedPlan
from shardwright.tools.answers.kept import Kept
from shardwright.tools.answers.told import Told, is_dense
from shardwright.tools.answers.training import Asked
from shardwright.tools.fit.subject import Subject
from shardwright.tools.reports.documents import timeline_of

FRONT = 8
"""Plans of the table of step against memory."""


class Answers:
    """What is answered of a model on a number of devices.

    Parameters
    ----------
    subject : Subject
        The model.
    devices : int
        Number of devices.
    errors : mapping of str to float, optional
        Relative errors of figures that the user states; with them, even none, the robust plan is
        chosen, else the fastest.
    """

    def __init__(
        self,
        subject: Subject,
        devices: int,
        errors: Mapping[str, float] | None = None,
    ) -> None:
        self.subject, self.devices, self.stated = subject, devices, errors
        self.software = subject.software
        self.model: EvaluatedModel = subject.model()

    @cached_property
    def plans(self) -> list[Bound]:
        """The plans of the family."""
        return family(self.model, self.devices)

    @cached_property
    def robust(self) -> Robust | None:
        """The robust choice, where it is asked for."""
        if self.stated is None:
            return None
        levels = len(self.model.cluster.levels_of(self.devices))
        return robust(self.model, self.plans, errors_of(self.model.cluster, self.stated, levels))

    @cached_property
    def fastest(self) -> Evaluated | None:
        """The fastest plan that fits; None where none was found."""
        found = fastest(self.model, self.plans)
        return found and improved(found)

    @cached_property
    def apart(self) -> Apart | None:
        """By how much steps differ that are told apart; None where no published step tells."""
        precision, best = self.model.options.precision, self.fastest
        recipe = recipe_of(precision)
        is_told = precision in SHORT or (recipe is not None and recipe.rate != FLOAT4)
        if best is None or self.subject.tokens is None or not is_told:
            return None
        named = recipe.name if recipe is not None else ""
        passes = best.plan.passes(self.subject.samples, self.devices)
        of_layer = best.seconds * best.plan.pipeline / (self.model.layers * passes)
        where = self.model.run_on, is_dense(self.model.graph), named
        return told_apart(Step(best.seconds, of_layer, *where))

    @cached_property
    def best(self) -> Evaluated | None:
        """The plan that is chosen; None where none was found.

        The simplest of the plans that are not told from the fastest, or that of least regret.
        """
        if self.robust is not None:
            return self.robust.plan
        if self.fastest is None or self.apart is None:
            return self.fastest
        return simplest(self.model, self.plans, self.fastest, self.apart.share)

    @cached_property
    def built(self) -> Compilation | None:
        """The compilation of the best plan, whose changes other processes evaluate meanwhile."""
        if self.best is None:
            return None
        expect_changes(self.best)
        return self.subject.built(self.best)

    @cached_property
    def _timed(self) -> Compilation:
        """The built plan on devices as the training software runs them."""
        assert self.built is not None
        cluster = self.subject.cluster.used_by(self.devices).run_by(self.software)
        return replace(self.built, cluster=cluster)

    @cached_property
    def _timeline(self) -> Timeline:
        return timeline_of(self._timed, self.model.limit_bytes)

    @property
    def step_seconds(self) -> float:
        """The step of the built plan, as the training software runs it."""
        return self._timeline.step_seconds

    def told(self, asked: Asked) -> Told | None:
        """Return what is told first of the built plan; None where none was built."""
        if self.built is None:
            return None
        where = self._timed.cluster, self._timeline, self.model.limit_bytes
        return Told.of(self.built, *where, asked, self.kept)

    @property
    def software_name(self) -> str:
        """The name of the training software; empty without one."""
        return "" if self.software is None else self.software.name

    @cached_property
    def kept(self) -> Kept | None:
        """What the training software keeps of the built plan; None where unknown."""
        return None if self.built is None else self.subject.kept(self.built)

    @cached_property
    def subject_plan(self) -> Evaluated | None:
        """The plan that changes are told of: the best, or where none fits the smallest."""
        return self.best or least_memory(self.model, self.plans)

    @cached_property
    def is_beyond(self) -> bool:
        """Whether the plan that changes are told of is none of the family, but a change to one."""
        chosen = self.subject_plan
        return chosen is not None and all(one.plan != chosen.plan for one in self.plans)

    @cached_property
    def points(self) -> list[Bound]:
        """The plans of the family, and the one that changes are told of, which may be beyond it."""
        chosen = self.subject_plan
        if chosen is None or not self.is_beyond:
            return self.plans
        bound = self.model.bound(chosen.plan, self.devices)
        return self.plans if bound is None else [*self.plans, bound]

    @cached_property
    def larger(self) -> int:
        """How many plans take more than the memory limit, at least."""
        return sum(not self.model.may_fit(one) for one in self.plans)

    @cached_property
    def front(self) -> list[Evaluated]:
        """Some plans that fit of which none beats another in step and memory."""
        known = [] if self.best is None else [self.best]
        return unbeaten([*known, *front(self.model, self.plans, FRONT)])

    @cached_property
    def fewest(self) -> OnDevices | None:
        """The fewest devices on which a plan fits."""
        return fewest_devices(self.model)

    @cached_property
    def micro_batch(self) -> tuple[int | None, int]:
        """The largest micro-batch of the plan that fits.

        Of those that divide the batch, None where none fits; and whatever the batch is, with as
        many micro-batches, 0 where none fits.
        """
        plan = self.subject_plan
        assert plan is not None
        one, data = plan.plan, plan.plan.data or 1
        passes = one.passes(self.subject.samples, self.devices)

        def most(size: int) -> float:
            model = self.subject.model(batch=size * data * passes)
            return _taken(model, replace(one, micro_batch=size), self.devices)

        start = one.micro_batch or 1
        free, _ = largest_fitting(start, most, self.model.limit_bytes)
        return largest_micro_batch(plan), free

    @cached_property
    def sequences(self) -> tuple[Longest, Longest] | None:
        """The longest sequence of the plan, and of any; None where the model has no such size."""
        length, plan = self.subject.sequence, self.subject_plan
        if length is None or plan is None:
            return None
        models: dict[int, EvaluatedModel] = {length: self.model}

        def at(sequence: int) -> EvaluatedModel:
            if sequence not in models:
                models[sequence] = self.subject.model(sequence)
            return models[sequence]

        def most(sequence: int) -> float:
            return _taken(at(sequence), plan.plan, self.devices)

        if not (self._has(2 * length) or self._has(length)):
            return None
        limit = self.model.limit_bytes
        tensor = max((one.plan.tensor for one in self.plans), default=1)
        least = _least_of(tensor, self.devices, at)
        return longest_sequence(length, most, limit), longest_sequence(length, least, limit)

    def _has(self, sequence: int) -> bool:
        """Return whether the model has a size `sequence` and can have this one."""
        try:
            self.subject.model(sequence)
        except ShardwrightError:
            return False
        return True

    @cached_property
    def changes(self) -> list[Change]:
        """Plans that differ from the best, or from the smallest, in one thing."""
        plan = self.subject_plan
        return [] if plan is None else [*changes(plan), *self._trained_otherwise(plan)]

    def tells(self, change: Change) -> bool | None:
        """Return whether a change makes a step that is told from the one without it.

        None where no published step tells: also of other numbers of devices or precisions.
        """
        plan = self.subject_plan
        if self.apart is None or plan is None or change.kind in ("devices", "precision"):
            return None
        return self.apart.tells(plan.seconds, change.then.seconds)

    def _trained_otherwise(self, plan: Evaluated) -> Iterator[Change]:
        """Yield the plan with gradients in float32, and in other precisions."""
        wide_types: dict[str, Any] = {"accumulate_type": "float32", "reduce_type": "float32"}
        others: dict[str, dict[str, Any]] = {}
        if self.model.stored.gradient < self.model.stored.master:
            others["gradients reduced and accumulated in float32"] = wide_types
        for precision in ("float32", "bfloat16"):
            if precision != self.model.options.precision:
                others[f"precision {precision}"] = {"precision": precision}
        for text, options in others.items():
            then = evaluated(self.subject.model(**options), plan.plan, plan.devices)
            if then is not None:
                yield Change("precision", text, then)


def _taken(model: EvaluatedModel, plan: NamedPlan, devices: int) -> float:
    """Return what a plan takes of the limit; more than that where it does not fit."""
    found = evaluated(model, plan, devices)
    if found is None:
        return inf
    return found.evaluation.fitted_bytes


def _least_of(
    tensor: int, devices: int, at: Callable[[int], EvaluatedModel]
) -> Callable[[int], float]:
    """Return the memory of the smallest plan on most tensor ranks, by the sequence.

    It recomputes most, and divides what is stored or gathers it in every pass.
    """

    def most(sequence: int) -> float:
        model = at(sequence)
        plans = family(model, devices, micro_batches=(1,), tensors=(tensor,))
        rule = plans[-1].plan.recompute if plans else ""
        small = least_memory(model, (one for one in plans if one.plan.recompute == rule))
        return inf if small is None else small.evaluation.fitted_bytes

    return most


def on_several(model: EvaluatedModel, counts: list[int]) -> list[OnDevices]:
    """Return the fastest plan on each number of devices."""
    found = [on_devices(model, count) for count in counts]
    return [replace(one, best=one.best and improved(one.best)) for one in found]
