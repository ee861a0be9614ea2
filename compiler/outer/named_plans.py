"""The named plan that a search gives where it has found no other: of its configurations, by bounds.

Few are evaluated (`compiler.evaluation`), those of the least bounds first; nothing is searched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shardwright.compiler.evaluation.evaluated import fastest, least_memory
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.family import MICRO_BATCHES, family
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.planner.choice.configuration import USUAL, Configuration, divides_axes
from shardwright.search.named_plan import NamedPlan, divisors

_COMPARED = 2
"""Plans that fit, of which the fastest is built.

An evaluation takes 0.5 to 0.8 s of a core for 80 layers."""

_TRIED = 8
"""Plans of the least bounds that are evaluated until as many fit, and of the least memory then."""


@dataclass(frozen=True)
class NamedPlans:
    """The named plans of a model that are among the plans of some configurations.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    devices : int
        Number of devices.
    configurations : sequence of Configuration
        The configurations.
    """

    model: EvaluatedModel
    devices: int
    configurations: Sequence[Configuration]

    def best(self) -> tuple[Configuration, NamedPlan] | None:
        """Return a plan that fits, and the configuration whose plans it is among."""
        bounds = self._bounds
        found = fastest(self.model, bounds, most=_COMPARED, tried=_TRIED)
        if found is None:
            found = least_memory(self.model, bounds, _TRIED)
        one = None if found is None or not found.fits else self._configuration_of(found.plan)
        return None if found is None or one is None else (one, found.plan)

    @property
    def _bounds(self) -> list[Bound]:
        def is_asked_for(plan: NamedPlan) -> bool:
            return self._configuration_of(plan) is not None

        samples = self._micro_batches
        return family(self.model, self.devices, samples, among=is_asked_for) if samples else []

    @property
    def _micro_batches(self) -> list[int]:
        """The samples of a micro-batch that are tried: for each number of data ranks the fewest."""
        counts = {one.micro_batches for one in self.configurations}
        found = set[int]()
        for ranks in divisors(self.devices):
            samples = (divmod(self.model.samples, ranks * count) for count in counts)
            found.update(sorted(each for each, rest in samples if not rest)[: len(MICRO_BATCHES)])
        return sorted(found)

    def _configuration_of(self, plan: NamedPlan) -> Configuration | None:
        """Return the configuration whose plans a plan is among; None without one."""
        passes = plan.passes(self.model.samples, self.devices)
        known = self._by_form.get((plan.pipeline, plan.chunks, plan.order, passes), ())
        mesh = plan.mesh(self.model.cluster, self.devices) if known else None
        return next((o for o in known if o.mesh and mesh and divides_axes(o.mesh, mesh)), None)

    @cached_property
    def _by_form(self) -> dict[tuple[int, int, str, int], list[Configuration]]:
        found: dict[tuple[int, int, str, int], list[Configuration]] = {}
        for one in self.configurations:
            form = one.stages, one.chunks, one.schedule or USUAL, one.micro_batches
            found.setdefault(form, []).append(one)
        return found
