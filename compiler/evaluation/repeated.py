"""A model in canonical form, and with few of its equal layers."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from shardwright.dataflow.placement import stages_of
from shardwright.ir.decisions import Decisions
from shardwright.ir.graph import Graph
from shardwright.ir.mesh import Mesh
from shardwright.planner.evaluation.lengthening import NotRepeatedError
from shardwright.planner.evaluation.repeats import KEPT, Kept, Overrides
from shardwright.planner.evaluation.tiles import Shortened, shortened
from shardwright.search.named_plan import NamedPlan

T = TypeVar("T")
_KEPT: tuple[Kept, ...] = ((1, 1), (2, 1), KEPT)  # layers that stay at the ends of equal ones


@dataclass(frozen=True)
class RepeatedModel:
    """A model in canonical form, and with few of its equal layers, the fewest first.

    Which of the shorter ones repeats is remembered for plans with sequence parallelism and without.

    Parameters
    ----------
    whole : Graph
        The model, with the cuts of its stages.
    overrides : mapping
        Settings of the optimizer for single parameters, by name.
    """

    whole: Graph
    overrides: Overrides
    _shorter: dict[Kept, Shortened | None] = field(default_factory=dict)
    _first: dict[bool, int] = field(default_factory=dict)

    def repeated(self, plan: NamedPlan, of: Callable[[Shortened], T]) -> T | None:
        """Return what is found with few layers that repeat under a plan; None where none do."""
        begin = self._first.get(plan.sequence_parallel, 0)
        for number, kept in enumerate(_KEPT[begin:], begin):
            few = self._few(kept)
            with suppress(NotRepeatedError):
                found = None if few is None else of(few)
                if found is not None:
                    self._first[plan.sequence_parallel] = number
                    return found
        return None

    def _few(self, kept: Kept) -> Shortened | None:
        """Return the model with few layers: of those in one stage, or of equal stages."""
        if kept not in self._shorter:
            places = [{}, stages_of(self.whole)] if self.whole.cuts else [{}]
            told = (Decisions(Mesh(()), {}, {}, stages=stages) for stages in places)
            each = (shortened(self.whole, one, self.overrides, kept) for one in told)
            fewer = [one for one in each if one is not None]
            self._shorter[kept] = min(fewer, key=lambda one: len(one.graph), default=None)
        return self._shorter[kept]
