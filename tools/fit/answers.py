"""The answers of `fit`: what is asked of a model on one number of devices, or on several."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

from shardwright.compilation import Compilation
from shardwright.compiler.evaluation.evaluator import Evaluator
from shardwright.compiler.fit.estimates import SPARE, Estimate
from shardwright.compiler.fit.family import family, fastest, front, least_memory
from shardwright.compiler.fit.model import FitModel
from shardwright.compiler.fit.questions import (
    Change,
    Longest,
    OnDevices,
    changes,
    fewest_devices,
    largest_micro_batch,
    longest_sequence,
    may_fit,
    on_devices,
)
from shardwright.compiler.fit.robust import Robust, errors_of, robust
from shardwright.cost_model.events import Timeline
from shardwright.cost_model.memory import peak_memory
from shardwright.ir.errors import ShardwrightError
from shardwright.tools.answers.kept import Kept
from shardwright.tools.answers.told import Told
from shardwright.tools.answers.training import Asked
from shardwright.tools.documents import timeline_of
from shardwright.tools.fit.subject import Subject

_TRIED = 2  # of the best plans, which are built until one fits
SIMULATED = 4
"""Plans of the least estimates of which those of one stage are simulated, to choose among them.

Estimates are up to 15 % off, since they do not know what overlaps: with 2, the plan that is chosen
for Llama 3 70B on 64 H100 is as good as with 4; with 1 its step is 17 % longer. Each takes up to 4
seconds of a core.
"""


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
        self.model: FitModel = subject.model()
        self.model.tells_links = errors is not None
        self.plans = family(self.model, devices)
        self.fastest = fastest(self.plans, SIMULATED)

    @cached_property
    def robust(self) -> Robust | None:
        """The robust choice, where it is asked for."""
        if self.stated is None:
            return None
        levels = len(self.model.cluster.levels_of(self.devices))
        return robust(self.plans, errors_of(self.model.cluster, self.stated, levels))

    @property
    def preferred(self) -> list[Estimate]:
        """The plans to build until one fits: the fastest, or of least regret; then the smallest."""
        found = self._simulated if self.simulates else self.fastest
        if self.robust is not None:
            candidates, regrets = self.robust.candidates, self.robust.choice.regrets
            order = sorted(range(len(candidates)), key=regrets.__getitem__)
            found = [candidates[i] for i in order]
        smallest = [one for one in self._smallest if one not in found[:_TRIED]]
        return [*found[:_TRIED], *smallest]

    @property
    def simulates(self) -> bool:
        """Whether the plan is chosen by simulation: estimates of a training software are near."""
        return self.software is None and self.stated is None

    @cached_property
    def _simulated(self) -> list[Estimate]:
        """The plans of the least estimates, by their evaluated steps."""
        model, cluster = self.model, self.model.cluster.used_by(self.devices)
        evaluator = Evaluator(model.graph, cluster, self.devices, model.options)

        def seconds(one: Estimate) -> float:
            try:
                found = evaluator.evaluation(one.plan)
            except ShardwrightError:
                return inf
            return found.seconds if found.fits else inf

        return sorted(self.fastest, key=seconds)

    @property
    def _smallest(self) -> list[Estimate]:
        """The plan of least memory, where it fits or may do so."""
        smallest = least_memory(self.plans)
        return [smallest] if smallest is not None and (smallest.fits or may_fit(smallest)) else []

    @cached_property
    def built(self) -> tuple[Estimate, Compilation] | None:
        """The best plan that fits once it is built, and its compilation."""
        return self.subject.built(self.preferred)

    @cached_property
    def _timed(self) -> Compilation:
        """The built plan on devices as the training software runs them."""
        assert self.built is not None
        cluster = self.subject.cluster.used_by(self.devices).run_by(self.software)
        return replace(self.built[1], cluster=cluster)

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
        return Told.of(self.built[1], *where, asked, self.kept)

    @property
    def software_name(self) -> str:
        """The name of the training software; empty without one."""
        return "" if self.software is None else self.software.name

    @cached_property
    def kept(self) -> Kept | None:
        """What the training software keeps of the built plan; None where unknown."""
        return None if self.built is None else self.subject.kept(self.built[1])

    @cached_property
    def subject_plan(self) -> Estimate | None:
        """The plan that changes are told of: the best, or where none fits the smallest."""
        if self.built is not None:
            return self.built[0]
        return self.preferred[0] if self.preferred else least_memory(self.plans)

    @property
    def exactly(self) -> float:
        """What the estimate of the plan may take, by what the plan took once it was built.

        It may grow by what the built plan leaves of the limit; by less, in the same ratio, where
        that took more than its estimate. Without a built plan a share is left to spare.
        """
        limit = self.model.limit_bytes
        if self.built is None:
            return (1 - SPARE) * limit
        one, compilation = self.built
        own = peak_memory(compilation.plan.program).peak_bytes  # without what is gathered ahead
        as_kept = 0.0 if self.kept is None else self.kept.report.peak_bytes
        estimated, built = one.memory_bytes, max(own, as_kept)
        return estimated + (limit - built) * min(1.0, estimated / built)

    @cached_property
    def fitting(self) -> list[Estimate]:
        """The plans that fit."""
        return [one for one in self.plans if one.fits]

    @cached_property
    def perhaps(self) -> list[Estimate]:
        """The plans that may fit once they are built, though their estimates leave little free."""
        return [one for one in self.plans if may_fit(one)]

    @cached_property
    def front(self) -> list[Estimate]:
        """The fitting plans that no other one beats in step and memory."""
        return front(self.fitting)

    @cached_property
    def fewest(self) -> OnDevices | None:
        """The fewest devices on which a plan fits."""
        return fewest_devices(self.model)

    @cached_property
    def micro_batch(self) -> tuple[int | None, int]:
        """The largest micro-batch of the plan, see `largest_micro_batch`."""
        assert self.subject_plan is not None
        return largest_micro_batch(self.subject_plan, self.exactly)

    @cached_property
    def sequences(self) -> tuple[Longest, Longest] | None:
        """The longest sequence of the plan, and of any; None where the model has no such size."""
        length, plan = self.subject.sequence, self.subject_plan
        if length is None or plan is None:
            return None
        models: dict[int, FitModel] = {length: self.model}

        def at(sequence: int) -> FitModel:
            if sequence not in models:
                models[sequence] = self.subject.model(sequence)
            return models[sequence]

        if not (self._has(2 * length) or self._has(length)):
            return None
        limit = (1 - SPARE) * self.model.limit_bytes
        own = longest_sequence(length, lambda n: _memory_of(plan, at(n)), self.exactly)
        tensor = max((one.plan.tensor for one in self.plans), default=1)
        most = _least_of(tensor, self.devices, at)
        return own, longest_sequence(length, most, limit)

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

    def _trained_otherwise(self, plan: Estimate) -> list[Change]:
        """Return the plan with gradients in float32, where they are in a lower type."""
        found = []
        wide_types: dict[str, Any] = {"accumulate_type": "float32", "reduce_type": "float32"}
        if self.model.stored.gradient < self.model.stored.master:
            wide = self.subject.model(**wide_types)
            text = "gradients reduced and accumulated in float32"
            found.append(Change("precision", text, _of_model(plan, wide)))
        for precision in ("float32", "bfloat16"):
            if precision != self.model.options.precision:
                other = self.subject.model(precision=precision)
                found.append(Change("precision", f"precision {precision}", _of_model(plan, other)))
        return found


def _of_model(plan: Estimate, model: FitModel) -> Estimate:
    return Estimate(plan.plan, model, plan.devices, plan.sharing)


def _memory_of(plan: Estimate, model: FitModel) -> float:
    """Return about what a plan takes with another sequence; infinite where there is none."""
    rules = model.rules(plan.plan.tensor)
    return _of_model(plan, model).memory_bytes if plan.plan.recompute in rules else float("inf")


def _least_of(tensor: int, devices: int, at: Callable[[int], FitModel]) -> Callable[[int], float]:
    """Return the memory of the smallest plan on most tensor ranks, by the sequence.

    It recomputes most, and divides what is stored or gathers it in every pass.
    """

    def most(sequence: int) -> float:
        model = at(sequence)
        plans = family(model, devices, micro_batches=(1,), tensors=(tensor,))
        rule = plans[-1].plan.recompute if plans else ""
        small = (one.memory_bytes for one in plans if one.plan.recompute == rule)
        return min(small, default=float("inf"))

    return most


def on_several(model: FitModel, counts: list[int]) -> list[OnDevices]:
    """Return the fastest plan on each number of devices."""
    return [on_devices(model, count) for count in counts]
