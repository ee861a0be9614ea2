"""The base of operators over windows: factors with halos, and the form on runs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from shardwright.ir.attributes import Attributes
from shardwright.operators.halo import Halo
from shardwright.operators.info import Array, OperatorInfo
from shardwright.operators.rule import Shape, ShardView
from shardwright.operators.windows.geometry import Index, Windows


class Windowed(OperatorInfo):
    """An operator between a space and the windows over it.

    The factor of the windows along dimension ``d`` is ``s<d>``, and of the space ``s<d>~``, or
    ``s<d>`` where windows are single distinct elements.

    On runs (see `halo_exchange`) the attribute ``slices`` is the number of slices along each
    dimension and ``space`` the true size of the space; the operand then holds the runs of all
    slices.
    """

    windows: Windows
    space: Shape  # of the whole space, never of the runs

    @property
    def slices(self) -> Shape:
        """Number of runs along each dimension of the space; 1 without a halo exchange."""
        given: Shape = self.attributes["slices"]
        return given or (1,) * len(self.space)

    def true_space(self, held: Shape) -> Shape:
        """Return the size of the space from the size of the tensor that holds it."""
        slices, space = self.attributes["slices"], self.attributes["space"]
        if not slices:
            return held
        return tuple(n if s == 1 else t for n, s, t in zip(held, slices, space, strict=True))

    @cached_property
    def _every_halo(self) -> dict[str, Halo]:
        count, windows = self.windows.count(self.space), self.windows
        return {
            f"s{d}": Halo(n, count[d], windows.stride[d], windows.padding[d][0], windows.span[d])
            for d, n in enumerate(self.space)
            if not windows.is_pointwise(d)
        }

    @cached_property
    def halos(self) -> Mapping[str, Halo]:
        """The halos of the dimensions without runs."""
        return {f: h for f, h in self._every_halo.items() if self.slices[int(f[1:])] == 1}

    @property
    def runs(self) -> Mapping[str, int]:
        """The dimensions with runs."""
        return {f"s{d}": n for d, n in enumerate(self.slices) if n > 1}

    def on_runs(self, slices: Mapping[str, int]) -> Attributes:
        """Add ``space`` and ``slices``, and explicit padding, which belongs to the space."""
        padding = {"padding": self.windows.padding} if "padding" in self.defaults else {}
        return {
            **self.attributes,
            **padding,
            "space": self.space,
            "slices": tuple(slices.get(f"s{d}", 1) for d in range(len(self.space))),
        }

    def held(self) -> Shape:
        """Return the size of the tensor that holds the space."""
        return tuple(
            n if slices == 1 else slices * self._every_halo[f"s{d}"].length(slices)
            for d, (n, slices) in enumerate(zip(self.space, self.slices, strict=True))
        )

    # On one rank

    def own_windows(self, view: ShardView) -> Windows:
        """Return the windows over the elements of a rank; runs include their padding."""
        if not self.runs:
            return self.windows
        pairs = zip(self.windows.padding, self.slices, strict=True)
        return replace(self.windows, padding=tuple(p if n == 1 else (0, 0) for p, n in pairs))

    def own_index(self, view: ShardView) -> Index:
        """Return the index of a rank's elements in its run; a last run may be longer."""
        return (
            ...,
            *(
                slice(None) if n == 1 else slice(0, self._needed(d, view))
                for d, n in enumerate(self.slices)
            ),
        )

    def _needed(self, d: int, view: ShardView) -> int:
        return self._every_halo[f"s{d}"].needed(view.sizes[f"s{d}"])

    def own(self, x: Array, view: ShardView) -> Array:
        """Return the elements that a rank's windows read."""
        return x[self.own_index(view)] if self.runs else x

    def own_filled(self, x: Array, view: ShardView, value: float) -> Array:
        """Return the elements that a rank's windows read, with `value` in the padding."""
        x = self.own(x, view)
        for d, n in enumerate(self.slices):
            if n == 1:
                continue
            begin = self._every_halo[f"s{d}"].begin(view.starts[f"s{d}"])
            outside = (np.arange(x.shape[2 + d]) + begin < 0) | (
                np.arange(x.shape[2 + d]) + begin >= self.space[d]
            )
            if outside.any():
                shape = (-1, *(1,) * (len(self.space) - 1 - d))
                x = np.where(outside.reshape(shape), x.dtype.type(value), x)
        return x

    def with_rest(self, x: Array, view: ShardView, at: int) -> Array:
        """Return a rank's elements in the shape of its run, zero where the run is longer."""
        shape = view.result_shapes[at]
        if not self.runs or x.shape == shape:
            return x
        result = np.zeros(shape, x.dtype)
        result[self.own_index(view)] = x
        return result

    def own_shape(self, view: ShardView, shape: Shape) -> Shape:
        """Return the shape of a rank's elements in a run of shape `shape`."""
        sizes = (
            held if n == 1 else self._needed(d, view)
            for d, (held, n) in enumerate(zip(shape[2:], self.slices, strict=True))
        )
        return (*shape[:2], *sizes)


PLACEMENT: dict[str, Any] = {"space": (), "slices": ()}  # attributes of the form on runs
