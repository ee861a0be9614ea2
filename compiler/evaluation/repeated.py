"""A model in canonical form, and with few of its equal layers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from shardwright.dataflow.placement import stages_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.planner.evaluation.few_layers import FewLayers, few_layers
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.repeats import KEPT, Kept, Overrides
from shardwright.planner.evaluation.tiles import Shortened, shortened
from shardwright.search.named_plan import NamedPlan

T = TypeVar("T")
_KEPT: tuple[Kept, ...] = ((1, 1), (2, 1), KEPT)  # layers that stay at the ends of equal ones


@dataclass(frozen=True)
class RepeatedModel:
    """A model in canonical form, and with few of its equal layers, the fewest first.

    Which of the shorter ones repeats is remembered for plans with sequence parallelism and without,
    and tried first where the model has other stages.

    Parameters
    ----------
    whole : Graph
        The model, with the cuts of its stages.
    overrides : mapping
        Settings of the optimizer for single parameters, by name.
    first : dict of (bool, bool) to int
        Which of the shorter ones is tried first, with stages, and with sequence parallelism.
    """

    whole: Graph
    overrides: Overrides
    first: dict[tuple[bool, bool], int] = field(default_factory=dict)
    _shorter: dict[Kept, Shortened | None] = field(default_factory=dict)

    def repeated(self, plan: NamedPlan, of: Callable[[Shortened], T]) -> T | None:
        """Return what is found with few layers that repeat under a plan; None where none do."""
        key, numbers = (bool(self.whole.cuts), plan.sequence_parallel), range(len(_KEPT))
        begin = self.first.get(key, 0)
        for number in (*numbers[begin:], *numbers[:begin]):
            few = self._few(_KEPT[number])
            with suppress(NotRepeatedError):
                found = None if few is None else of(few)
                if found is not None:
                    self.first[key] = number
                    return found
        return None

    def of_few_layers(self, of: Callable[[FewLayers], T]) -> T | None:
        """Return what is found with few layers of each kind; None where periods leave out more."""
        if self._few_layers is None:
            return None
        with suppress(NotRepeatedError):
            return of(self._few_layers)
        return None

    @cached_property
    def _few_layers(self) -> FewLayers | None:
        """Few layers of each kind, where they are fewer than those of equal periods."""
        repeated, few = self._few(_KEPT[0]), few_layers(self.whole, self.overrides)
        known = self.whole if repeated is None else repeated.graph
        return None if few is None or len(few.graph) >= len(known) else few

    def _few(self, kept: Kept) -> Shortened | None:
        """Return the model with few layers: of those in one stage, or of equal stages."""
        if kept not in self._shorter:
            places = [{}, stages_of(self.whole)] if self.whole.cuts else [{}]
            told = (Decisions(Mesh(()), {}, {}, stages=stages) for stages in places)
            each = (shortened(self.whole, one, self.overrides, kept) for one in told)
            fewer = [one for one in each if one is not None]
            self._shorter[kept] = min(fewer, key=lambda one: len(one.graph), default=None)
        return self._shorter[kept]
