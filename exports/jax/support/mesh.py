"""The devices of a plan: their parts of tensors, and their collectives.

A dimension that is split over several axes is cut along each in turn, major to minor. Inside of a
step a function sees the part of its own device, and the place of the device is known when it runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from .rows import Rows, dense_of, taken

Axes = Sequence[str]
Splits = Sequence[Axes]
_REDUCTIONS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def again(x: Array, after: Array) -> Array:
    """Return `x`, so that XLA computes with it again, and not before `after` is known."""
    found: Array = lax.optimization_barrier((x, after))[0]
    return found


class Mesh:
    """Devices along named axes; the first axis is the most significant.

    Parameters
    ----------
    sizes : mapping of str to int
        The axes of devices.
    micro_batches : mapping of str to int
        The axis that is run in time, if there is one: `micro_batch` is the place along it.
    devices : sequence of Device, optional
        The devices, by default the first ones that JAX has.

    Attributes
    ----------
    devices : jax.sharding.Mesh
        The mesh of JAX.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        micro_batches: Mapping[str, int],
        devices: Sequence[Any] | None = None,
    ) -> None:
        self.sizes = {**micro_batches, **sizes}
        self.micro_batch = 0
        self._in_time = tuple(micro_batches)
        own, count = jax.devices() if devices is None else devices, prod(sizes.values())
        if len(own) < count:
            raise RuntimeError(f"the plan is for {count} devices, there are {len(own)}")
        arranged = np.array(own[:count], dtype=object).reshape(tuple(sizes.values()))
        self.devices = jax.sharding.Mesh(arranged, tuple(sizes))

    # Parts

    def index(self, axes: Axes) -> Any:
        """Return the place of this device along several axes, major to minor."""
        place: Any = 0
        for axis in axes:
            own = self.micro_batch if axis in self._in_time else lax.axis_index(axis)
            place = place * self.sizes[axis] + own
        return place

    def count(self, axes: Axes) -> int:
        """Return the number of parts of a dimension that is split over axes."""
        return prod(self.sizes[axis] for axis in axes)

    def start(self, size: int, *axes: str) -> Any:
        """Return where the part of this device begins, of a dimension that is split over axes."""
        return self.index(axes) * (size // self.count(axes))

    def spec(self, splits: Splits) -> PartitionSpec:
        """Return the partition of a tensor, by the axes that split its dimensions."""
        return PartitionSpec(*(tuple(axes) or None for axes in splits))

    def sharding(self, splits: Splits) -> NamedSharding:
        """Return the sharding of a tensor, by the axes that split its dimensions."""
        return NamedSharding(self.devices, self.spec(splits))

    # Inputs. A dimension that is split over micro-batches, too, is unfolded: a dimension for each
    # axis, and one of the elements of a part.

    def unfolded(self, splits: Splits) -> list[Axes]:
        """Return the axes that split the dimensions of an unfolded input."""
        found: list[Axes] = []
        for axes in splits:
            if self._is_in_time(axes):
                found += [() if axis in self._in_time else (axis,) for axis in axes]
            found.append(() if self._is_in_time(axes) else axes)
        return found

    def unfold(self, whole: Any, splits: Splits) -> Any:
        """Return a whole input with its dimensions unfolded."""
        shape: list[int] = []
        for size, axes in zip(whole.shape, splits, strict=True):
            counts = [self.sizes[axis] for axis in axes] if self._is_in_time(axes) else []
            shape += [*counts, size // prod(counts)]
        return whole.reshape(tuple(shape))

    def own(self, part: Array, splits: Splits) -> Array:
        """Return the part of this micro-batch of the unfolded part of this device."""
        place: list[Any] = []
        for axes in splits:
            if self._is_in_time(axes):
                place += [self.micro_batch if axis in self._in_time else 0 for axis in axes]
            place.append(slice(None))
        return part[tuple(place)]

    def _is_in_time(self, axes: Axes) -> bool:
        return not set(axes).isdisjoint(self._in_time)

    # Collectives

    def all_reduce(self, part: Array, axes: Axes, reduction: str = "sum") -> Array:
        """Return partial values reduced over axes, on every member."""
        if part.dtype == jnp.bool_:
            return _REDUCTIONS[reduction](part.astype(jnp.int8), tuple(axes)).astype(jnp.bool_)
        return _REDUCTIONS[reduction](part, tuple(axes))

    def all_gather(self, part: Array, axes: Axes, dimension: int, size: int) -> Array:
        """Return the slices of a dimension joined to one of `size` elements, on every member."""
        return lax.all_gather(part, tuple(axes), axis=dimension, tiled=True)

    def reduce_scatter(self, part: Array, axes: Axes, dimension: int) -> Array:
        """Return the own slice of partial values summed over axes."""
        return lax.psum_scatter(part, tuple(axes), scatter_dimension=dimension, tiled=True)

    def local_slice(self, part: Array, axes: Axes, dimension: int) -> Array:
        """Return the own slice of a dimension; nothing moves."""
        size = part.shape[dimension]
        start = self.start(size, *axes)
        return lax.dynamic_slice_in_dim(part, start, size // self.count(axes), dimension)

    def all_to_all(
        self, part: Array, axes: Axes, split_dimension: int, concat_dimension: int, size: int
    ) -> Array:
        """Move a split to another dimension; `size` is that of the joined one in the result."""
        return lax.all_to_all(part, tuple(axes), split_dimension, concat_dimension, tiled=True)

    def all_reduce_rows(self, part: Rows, axes: Axes, reduction: str = "sum") -> Rows:
        """Return partial rows of experts reduced over axes, whose members have the same rows."""
        return part.with_values(self.all_reduce(part.values, axes, reduction))

    def all_to_all_rows(
        self, part: Rows, axes: Axes, split_dimension: int, concat_dimension: int, size: int
    ) -> Rows:
        """Move a split of the rows of experts to another dimension: as `all_to_all`, of rows."""
        how = (tuple(axes), split_dimension, concat_dimension)
        mask = lax.all_to_all(part.mask, *how, tiled=True)
        return taken(lax.all_to_all(dense_of(part), *how, tiled=True), mask, part.most)

    def collective_permute(self, part: Array, axes: Axes, previous: Axes, dimension: int) -> Array:
        """Reorder the axes that split a dimension from `previous`: each passes its slice on."""
        own = [axis for axis in self.sizes if axis in axes]  # JAX asks for the mesh's order
        places = np.arange(self.count(axes)).reshape([self.sizes[axis] for axis in own])
        sources, targets = (
            places.transpose([own.index(axis) for axis in order]).reshape(-1).tolist()
            for order in (previous, axes)
        )
        return lax.ppermute(part, tuple(own), list(zip(sources, targets, strict=True)))

    def to_partial(self, part: Array, axes: Axes) -> Array:
        """Return equal copies as partial sums: one member keeps its copy, the others get zeros."""
        return jnp.where(self.index(axes) == 0, part, jnp.zeros_like(part))

    # Micro-batches

    def each_micro_batch(self) -> Iterator[int]:
        """Yield the places along the axis that is run in time, and stand there."""
        for number in range(self.count(self._in_time)):
            self.micro_batch = number
            yield number
        self.micro_batch = 0


class Totals:
    """What the passes over micro-batches add up, or write a part of."""

    def __init__(self) -> None:
        self._values: dict[str, Array] = {}
        self._parts: dict[str, tuple[list[Array], int]] = {}

    def before(self, *trees: Any) -> Any:
        """Return what a pass reads, once the pass before it is done: so they run one by one."""
        parts = {name: own for name, (own, _) in self._parts.items()}
        trees, self._values, parts = lax.optimization_barrier((trees, self._values, parts))
        self._parts = {name: (own, self._parts[name][1]) for name, own in parts.items()}
        return trees[0] if len(trees) == 1 else trees

    def reduce(self, name: str, part: Array, reduction: str = "sum") -> None:
        """Add the part of a pass."""
        function = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum}[reduction]
        old = self._values.get(name)
        self._values[name] = part if old is None else function(old, part)

    def append(self, name: str, part: Array, dimension: int) -> None:
        """Keep the slice of a pass."""
        self._parts.setdefault(name, ([], dimension))[0].append(part)

    def __getitem__(self, name: str) -> Array:
        """Return a value after the last pass."""
        if name in self._values:
            return self._values[name]
        parts, dimension = self._parts[name]
        return jnp.concatenate(parts, dimension)
