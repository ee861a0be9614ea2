"""Options that share a layout: what follows from the layout alone is computed once."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.layout import Layout

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class DistinctLayouts:
    """The distinct layouts of options.

    Parameters
    ----------
    layouts : sequence of Layout
        The layout of each option.

    Attributes
    ----------
    layouts : tuple of Layout
        Each once, in the order of first appearance.
    place : array of int, shape (options,)
        Which of these each option has.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.layouts = tuple(dict.fromkeys(layouts))
        self._index: dict[Layout | None, int] = {layout: i for i, layout in enumerate(self.layouts)}
        self.place = self.places(layouts)

    def places(self, layouts: Sequence[Layout | None]) -> Integers:
        """Return which of the distinct layouts others are; -1 for one that is none of them."""
        return np.array([self._index.get(layout, -1) for layout in layouts], dtype=np.int64)

    def each(self, number: Callable[[Layout], float]) -> Floats:
        """Return a number for each option."""
        return np.array([number(layout) for layout in self.layouts])[self.place]
