"""Communication operators, each with its exact transpose as gradient.

Each changes the layout of a tensor and nothing else. `exchange` defines an operator for the members
of one group; communicators run it or an equivalent. Axes are ordered major to minor.

In a model that calls these operators itself, tensors have no layouts and their types are those of
one rank; the attribute ``group_size`` is then the factor by which a dimension grows or shrinks, and
``groups`` are the ranks of each group, where not all ranks are one.
With ``in_passes``, a move that could come before a loop over micro-batches runs in every pass.
"""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, ClassVar

import numpy as np

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.graph import Value
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh
from shardwright.operators.halo import deal
from shardwright.operators.info import (
    Array,
    Emitter,
    Gradients,
    Linearization,
    OperatorInfo,
    operator_class,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, ShardView

REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
Groups = tuple[tuple[int, ...], ...]
_DIMENSIONS = ("dimension", "split_dimension", "concat_dimension")


class Communication(OperatorInfo):
    """An operator over groups of ranks along the mesh axes ``axes``.

    Where it is not collective, every rank does its part alone, in `own_part`.
    """

    flops_per_point = 0.0
    is_collective = True
    keeps_tensor = True
    priced_as: ClassVar[str] = ""  # the collective of the cost model; that of its name if empty

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of the groups, major to minor."""
        return tuple(self.attributes["axes"])

    @property
    def groups(self) -> Groups:
        """The ranks of each group; empty where the axes give them."""
        return tuple(self.attributes.get("groups", ()))

    @property
    def given(self) -> dict[str, Any]:
        """The attributes, without groups where the axes give them."""
        return {k: v for k, v in self.attributes.items() if k != "groups" or v}

    @property
    def places(self) -> dict[str, Any]:
        """The attributes that give the groups."""
        return {k: v for k, v in self.given.items() if k in ("axes", "group_size", "groups")}

    def place(self, rank: int, axes: tuple[str, ...], mesh: Mesh) -> tuple[int, tuple[int, ...]]:
        """Return the index of a rank in its group, and the sizes along which the group is split."""
        for group in self.groups:
            if rank in group:
                return group.index(rank), (len(group),)
        return mesh.index(rank, axes), tuple(mesh.sizes[axis] for axis in axes)

    def make_rule(self) -> Rule:
        """Keep the shape, except for ``group_size`` in a hand-written program."""
        shape = self.operand_types[0].shape
        self._check_groups(shape)
        for name in _DIMENSIONS:
            found = self.attributes.get(name, 0)
            if not 0 <= found < max(len(shape), 1):
                raise IRError(
                    f"`{name}` is {found}, the operand has {len(shape)} dimensions",
                    hint="dimensions are counted from 0",
                )
        names = [f"d{i}" for i in range(len(shape))]
        sizes = {f"r{i}": size for i, size in enumerate(self.own_shape(shape))}
        return resolve(f"{' '.join(names)} -> {' '.join(sizes)}", [shape], sizes)

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result on one rank of a hand-written program."""
        return shape

    def _check_groups(self, shape: tuple[int, ...]) -> None:
        """Refuse groups that share a rank, or whose sizes would give results of several shapes."""
        ranks = [rank for group in self.groups for rank in group]
        if len(set(ranks)) < len(ranks):
            raise IRError(f"`groups` is {self.groups}, expected each rank in one group")
        sizes = {len(group) for group in self.groups}
        reshapes = bool(self.groups) and self.own_shape(shape) != shape
        if reshapes and sizes != {self.attributes["group_size"]}:
            raise IRError(
                f"`groups` is {self.groups}, `{self.name}` expects groups of one size: its result "
                f"has one shape on all ranks"
            )

    def infer_layouts(
        self, operands: Sequence[Layout], mesh: Mesh, results: Sequence[Layout | None] = ()
    ) -> tuple[Strategy, tuple[Layout, ...]]:
        """Return the layout after the move; the strategy is empty.

        Raises
        ------
        StrategyError
            If the operator would not keep the whole tensor.
        """
        for axis in self.axes:
            if mesh.axis(axis).of_stages:
                raise StrategyError(
                    f"{self.name}: `axes` names `{axis}`, the axis of stages, which only a "
                    f"`transfer` crosses"
                )
        if len(set(self.axes)) < len(self.axes):
            raise StrategyError(f"{self.name}: `axes` is {list(self.axes)}, expected distinct axes")
        if self.groups:
            raise StrategyError(
                f"{self.name}: `groups` is {self.groups}, where tensors have layouts the axes give "
                f"the groups"
            )
        size, shape = self.attributes.get("group_size", 0), self.operand_types[0].shape
        if size > 1 and self.own_shape(shape) != shape:
            raise StrategyError(
                f"{self.name}: `group_size` is {size}, where tensors have layouts it must be 0"
            )
        return Strategy(), (self.moved(operands[0], mesh),)

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Return the layout after the move, which keeps the whole tensor.

        Raises
        ------
        StrategyError
            If the operand does not have the layout that the move begins from.
        """
        raise NotImplementedError

    def sent_share(self, mesh: Mesh) -> float:
        """Return the fraction of the operand that takes part in the move."""
        return 1.0

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Return the result of each member of a group.

        Parameters
        ----------
        parts : sequence of array
            The part of each member, by its index along the axes.
        extents : sequence of int
            Sizes of the axes.
        """
        return [self.own_part(part, i, extents) for i, part in enumerate(parts)]

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Return the result of a member of the group, where the operator is not collective."""
        raise IRError(f"`{self.name}` needs the other members of its group")

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Do nothing: on one device nothing moves."""
        return operands[0]


def _without_tail(layout: Layout, dimension: int, axes: tuple[str, ...], name: str) -> Layout:
    held = layout.splits[dimension]
    if not axes or held[-len(axes) :] != axes:
        raise StrategyError(
            f"{name}: dimension {dimension} is split over {list(held)}, "
            f"it must end with {list(axes)}"
        )
    return _with_split(layout, dimension, held[: -len(axes)])


def _with_tail(layout: Layout, dimension: int, axes: tuple[str, ...], name: str) -> Layout:
    used = set(layout.split_axes + layout.partial) & set(axes)
    if used:
        raise StrategyError(f"{name}: the axes {sorted(used)} are in use in {layout}")
    return _with_split(layout, dimension, layout.splits[dimension] + axes)


def _with_split(layout: Layout, dimension: int, axes: tuple[str, ...]) -> Layout:
    splits = (*layout.splits[:dimension], axes, *layout.splits[dimension + 1 :])
    return Layout(splits, layout.partial, layout.reduction, layout.stage)


def _without_partial(layout: Layout, axes: tuple[str, ...], reduction: str, name: str) -> Layout:
    if not axes or not set(axes) <= set(layout.partial) or layout.reduction != reduction:
        raise StrategyError(
            f"{name}: the operand is partial over {list(layout.partial)} ({layout.reduction}), "
            f"it must be partial over {list(axes)} ({reduction})"
        )
    return layout.with_partial(tuple(a for a in layout.partial if a not in axes), reduction)


@cache
def priced_as(operator: str) -> str:
    """Return the collective that the cost model prices an operator as; ``local_copy`` for none."""
    kind = operator_class(operator)
    assert issubclass(kind, Communication)
    return kind.priced_as or (operator if kind.is_collective else "local_copy")


def scaled(shape: tuple[int, ...], dimension: int, up: int, down: int) -> tuple[int, ...]:
    """Return a shape with one dimension multiplied and divided."""
    size = shape[dimension] * up
    if size % down:
        raise IRError(f"a dimension of size {size} cannot be divided among {down} ranks")
    return (*shape[:dimension], size // down, *shape[dimension + 1 :])


def reduction_gradient(
    build: Emitter, kind: str, x: Value, y: Value, dy: Value, info: Communication
) -> Value:
    """Return the gradient of a reduction over the members of a group, in a hand-written program.

    Equal extrema share the cotangent. Of a product it is that times the product of the other parts:
    with the product ``p`` of the parts that are not zero, ``p / x`` where no other part is zero.

    Parameters
    ----------
    build : Emitter
        Emits it.
    kind : str
        ``sum``, ``max``, ``min`` or ``prod``.
    x : Value
        The part of the rank.
    y, dy : Value
        The result and its cotangent, whole on every rank.
    info : Communication
        Gives the groups.
    """
    if kind == "sum":
        return dy
    if kind == "prod":
        zero = _indicator(build, x, build.emit("scale", x, factor=0.0))
        filled = build.emit("add", x, zero)
        product = build.emit("all_reduce", filled, reduction="prod", **info.places)
        others = build.emit("sub", build.emit("all_reduce", zero, **info.places), zero)
        alone = _indicator(build, others, build.emit("scale", others, factor=0.0))
        return build.emit("mul", dy, build.emit("mul", build.emit("div", product, filled), alone))
    attained = _indicator(build, x, y)
    count = build.emit("all_reduce", attained, **info.places)
    return build.emit("mul", dy, build.emit("div", attained, count))


def _indicator(build: Emitter, x: Value, y: Value) -> Value:
    """Return 1 where two values are equal, else 0."""
    return build.emit("cast", build.emit("equal", x, y), dtype=x.type.dtype)


def pieces(part: Array, extents: Sequence[int], dimension: int) -> list[Array]:
    """Return the slices of a part along each axis in turn, as `Mesh.part` splits."""
    before, runs = (slice(None),) * dimension, deal(part.shape[dimension], tuple(extents))
    return [part[(*before, slice(start, start + length))] for start, length in runs]


@register
class AllReduce(Communication):
    """Reduce partial values; every member gets the result."""

    name = "all_reduce"
    defaults: ClassVar = {
        "axes": (),
        "reduction": "sum",
        "fusion": 0,
        "group_size": 0,
        "groups": (),
    }
    reduces = True
    equalizes = True

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Drop the partial axes."""
        return _without_partial(layout, self.axes, self.attributes["reduction"], self.name)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Reduce in the order of the members, so that every member gets the same bits."""
        total = reduce(REDUCTIONS[self.attributes["reduction"]], parts)
        return [total] * len(parts)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Pass the cotangent: each part enters the sum once.

        Other reductions are differentiated in hand-written programs alone: elsewhere they are
        statistics that the gradient does not depend on.
        """
        kind, operand = self.attributes["reduction"], at.operands[0]
        if kind != "sum" and operand.layout is not None:
            return [None]
        return [reduction_gradient(build, kind, operand, at.results[0], at.cotangents[0], self)]


@register
class AllGather(Communication):
    """Concatenate the slices of one dimension; every member gets the whole."""

    name = "all_gather"
    defaults: ClassVar = {
        "axes": (),
        "dimension": 0,
        "group_size": 0,
        "groups": (),
        "in_passes": False,
    }
    equalizes = True

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Grow by the size of the group."""
        return scaled(shape, self.attributes["dimension"], self.attributes["group_size"] or 1, 1)

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Drop the minor axes of the dimension."""
        return _without_tail(layout, self.attributes["dimension"], self.axes, self.name)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Concatenate."""
        return [np.concatenate(parts, axis=self.attributes["dimension"])] * len(parts)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Keep the own slice."""
        return [build.emit("local_slice", at.cotangents[0], **self.given)]


@register
class LocalSlice(Communication):
    """Keep the own slice of one dimension; nothing moves."""

    name = "local_slice"
    defaults: ClassVar = {
        "axes": (),
        "dimension": 0,
        "group_size": 0,
        "groups": (),
        "in_passes": False,
    }
    is_collective = False

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shrink by the size of the group."""
        return scaled(shape, self.attributes["dimension"], 1, self.attributes["group_size"] or 1)

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Split the dimension further."""
        return _with_tail(layout, self.attributes["dimension"], self.axes, self.name)

    def own_part(self, part: Array, index: int, extents: Sequence[int]) -> Array:
        """Cut."""
        return pieces(part, extents, self.attributes["dimension"])[index]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Gather the slices."""
        return [build.emit("all_gather", at.cotangents[0], **self.given)]


@register
class ReduceScatter(Communication):
    """Reduce partial values; every member gets its slice of the result."""

    name = "reduce_scatter"
    defaults: ClassVar = {
        "axes": (),
        "dimension": 0,
        "reduction": "sum",
        "group_size": 0,
        "groups": (),
    }
    reduces = True

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shrink by the size of the group."""
        return scaled(shape, self.attributes["dimension"], 1, self.attributes["group_size"] or 1)

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Drop the partial axes and split the dimension by them."""
        reduced = _without_partial(layout, self.axes, self.attributes["reduction"], self.name)
        return _with_tail(reduced, self.attributes["dimension"], self.axes, self.name)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Reduce, then cut."""
        total = reduce(REDUCTIONS[self.attributes["reduction"]], parts)
        return pieces(total, extents, self.attributes["dimension"])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Gather the slices."""
        names = ("axes", "dimension", "group_size", "groups")
        attributes = {name: self.given[name] for name in names if name in self.given}
        gathered = build.emit("all_gather", at.cotangents[0], **attributes)
        kind, operand = self.attributes["reduction"], at.operands[0]
        if kind == "sum" or operand.layout is not None:
            return [gathered]
        whole = build.emit("all_gather", at.results[0], **attributes)
        return [reduction_gradient(build, kind, operand, whole, gathered, self)]


@register
class AllToAll(Communication):
    """Move the split from one dimension to another."""

    name = "all_to_all"
    defaults: ClassVar = {
        "axes": (),
        "split_dimension": 0,
        "concat_dimension": 0,
        "group_size": 0,
        "groups": (),
        "in_passes": False,
    }

    def own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Move the size of the group from one dimension to the other."""
        count = self.attributes["group_size"] or 1
        cut = scaled(shape, self.attributes["split_dimension"], 1, count)
        return scaled(cut, self.attributes["concat_dimension"], count, 1)

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Move the axes from the one dimension to the other."""
        split, concat = self.attributes["split_dimension"], self.attributes["concat_dimension"]
        if split == concat:
            raise StrategyError(
                f"all_to_all: `split_dimension` and `concat_dimension` are both {split}, they "
                f"must differ"
            )
        gathered = _without_tail(layout, concat, self.axes, self.name)
        return _with_tail(gathered, split, self.axes, self.name)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Send the i-th piece to the i-th member."""
        cut = [pieces(part, extents, self.attributes["split_dimension"]) for part in parts]
        columns = zip(*cut, strict=True)
        return [np.concatenate(c, axis=self.attributes["concat_dimension"]) for c in columns]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Run the inverse exchange."""
        inverse = {
            **self.given,
            "split_dimension": self.attributes["concat_dimension"],
            "concat_dimension": self.attributes["split_dimension"],
        }
        return [build.emit("all_to_all", at.cotangents[0], **inverse)]


@register
class CollectivePermute(Communication):
    """Reorder the axes that split one dimension: every member passes its slice to another.

    ``axes`` is the order afterwards, ``previous`` the order before.
    """

    name = "collective_permute"
    defaults: ClassVar = {
        "axes": (),
        "previous": (),
        "dimension": 0,
        "group_size": 0,
        "in_passes": False,
    }
    forwards_parts = True
    priced_as = "permute"

    def moved(self, layout: Layout, mesh: Mesh) -> Layout:
        """Put the axes in their new order."""
        dimension, previous = self.attributes["dimension"], tuple(self.attributes["previous"])
        if sorted(previous) != sorted(self.axes):
            raise StrategyError(
                f"collective_permute: `axes` is {list(self.axes)}, it must be an order of "
                f"`previous`, {list(previous)}"
            )
        size, count = self.operand_types[0].shape[dimension], layout.counts(mesh)[dimension]
        if size % count:
            raise StrategyError(
                f"collective_permute: dimension {dimension} of size {size} is split {count} ways, "
                f"its slices must be equally large"
            )
        bare = _without_tail(layout, dimension, previous, self.name)
        return _with_tail(bare, dimension, self.axes, self.name)

    def exchange(self, parts: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """Give each member the slice whose old index is the member's new one."""
        order = [self.axes.index(axis) for axis in self.attributes["previous"]]
        members = np.arange(len(parts)).reshape(tuple(extents)).transpose(order).ravel()
        return [parts[int(member)] for member in members]

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Restore the old order."""
        attributes = {**self.attributes, "axes": self.attributes["previous"], "previous": self.axes}
        return [build.emit("collective_permute", at.cotangents[0], **attributes)]
