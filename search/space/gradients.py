"""The types of gradients: as readers return them, and as they are reduced and accumulated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost_model.profile import CostProfile, EdgeLayout
from shardwright.ir.graph import Graph
from shardwright.ir.layout import Layout
from shardwright.ir.types import TensorType
from shardwright.operators.models.precision import accumulate_type, is_narrower

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GradientTypes:
    """The types of the gradient of a tensor.

    Parameters
    ----------
    tensor : TensorType
        The type of the tensor, and of the gradient as a reader returns it.
    reduced : TensorType
        As it is reduced over ranks, and added up over readers.
    accumulated : TensorType
        As passes over micro-batches add it up.
    accumulates : bool
        Whether adding it up costs: else passes stand for one that is all of a step.
    """

    tensor: TensorType
    reduced: TensorType
    accumulated: TensorType
    accumulates: bool = True

    @property
    def is_converted(self) -> bool:
        """Whether what a reader returns is converted before it is reduced."""
        return self.reduced != self.tensor

    def conversions(self, profile: CostProfile, layouts: Sequence[Layout]) -> Floats:
        """Return the cost of converting what a reader returns, in each layout."""
        if not self.is_converted:
            return np.zeros(len(layouts))
        dtype = self.reduced.dtype
        return np.array([profile.convert(self.tensor, dtype, layout) for layout in layouts])

    def edges(
        self, profile: CostProfile, sources: Sequence[EdgeLayout], targets: Sequence[EdgeLayout]
    ) -> Floats:
        """Return the cost of redistributing the tensor once, and its gradient back."""
        if not self.is_converted:
            return profile.edges(self.tensor, sources, targets)
        starts = [EdgeLayout(edge.layout, None) for edge in sources]
        ends = [EdgeLayout(edge.layout, None) for edge in targets]
        table = profile.edges(self.tensor, starts, ends)
        due = [EdgeLayout(e.cotangent, None) for e in sources if e.cotangent is not None]
        back = [i for i, edge in enumerate(targets) if edge.cotangent is not None]
        if back and len(due) == len(starts):
            returned = [EdgeLayout(e.cotangent, None) for e in targets if e.cotangent is not None]
            table[:, back] += profile.of_gradients.edges(self.reduced, returned, due).T
        return table

    def accumulation(
        self,
        profile: CostProfile,
        layout: Layout,
        passes: float,
        *,
        of_parameters: bool = False,
    ) -> float:
        """Return the cost of adding up the gradients that all passes over micro-batches return.

        `of_parameters` says that the tensor is made of parameters alone.
        """
        if not self.accumulates:
            return 0.0
        if self.accumulated == self.reduced:
            return passes * profile.accumulation(self.reduced, layout)
        wide, narrow = self.accumulated.dtype, self.reduced.dtype
        each = profile.convert(self.reduced, wide, layout)
        each += profile.accumulation(self.accumulated, layout)
        once = profile.in_step(1, of_parameters)
        return passes * each + once.convert(self.accumulated, narrow, layout)

    def sum_of_values(self, profile: CostProfile, layout: Layout, passes: float) -> float:
        """Return the cost of adding up the values that all passes make."""
        if not self.accumulates:
            return 0.0
        if self.accumulated == self.reduced:
            return passes * profile.addition(self.reduced, layout)
        wide, narrow = self.accumulated.dtype, self.reduced.dtype
        each = profile.conversion(self.reduced, wide, layout)
        each += profile.addition(self.accumulated, layout)
        once = profile.in_step(1, of_parameters=False)
        return passes * each + once.conversion(self.accumulated, narrow, layout)


def gradient_types(graph: Graph, *, accumulates: bool = True) -> Callable[[str], GradientTypes]:
    """Return the function from a value to the types of its gradient.

    What passes over micro-batches add up, they add up in the type that any copy of a parameter asks
    for; the gradient of a copy may be reduced in another type.
    """
    casts = {node.name: node for node in graph.nodes if node.operator == "cast"}
    wide = accumulate_type(graph)

    @cache
    def types_of(tensor: TensorType, dtype: object) -> GradientTypes:
        reduced = replace(tensor, dtype=str(dtype)) if dtype else tensor
        accumulated = reduced
        if wide is not None and is_narrower(reduced, wide):
            accumulated = replace(reduced, dtype=wide)
        return GradientTypes(tensor, reduced, accumulated, accumulates)

    def types(name: str) -> GradientTypes:
        dtype = casts[name].attributes.get("reduce") if name in casts else None
        return types_of(graph.values[name].type, dtype)

    return cache(types)
