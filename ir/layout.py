"""Layouts of tensors and strategies of operators on a mesh."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType, item_bytes


class _Interned(type):
    """Make layouts that are equal one object, so that comparing them mostly compares addresses."""

    _known: ClassVar[dict[object, Any]] = {}

    def __call__(
        cls,
        splits: tuple[tuple[str, ...], ...],
        partial: tuple[str, ...] = (),
        reduction: str = "sum",
        stage: int | None = None,
    ) -> Any:
        key = (cls, splits, partial, reduction, stage)
        found = cls._known.get(key)
        if found is None:
            if len(cls._known) >= _MOST_KNOWN:  # those that are made anew are equal, too
                cls._known.clear()
            found = cls._known[key] = super().__call__(splits, partial, reduction, stage)
        return found


_MOST_KNOWN = 1 << 16  # a search on eight axes has some thousands; half a kilobyte each


@dataclass(frozen=True)
class Layout(metaclass=_Interned):
    """The layout of one tensor on a mesh.

    Over an axis that neither splits a dimension nor is partial, the tensor is replicated. On a
    mesh with pipeline stages, the place is part of the layout.

    Parameters
    ----------
    splits : tuple of tuple of str
        The mesh axes that split each dimension, major to minor.
    partial : tuple of str
        Mesh axes, in mesh order, over which local values are a pending reduction.
    reduction : str
        The pending reduction: ``sum``, ``max`` or ``min``.
    stage : int, optional
        The pipeline stage whose ranks hold the tensor, from 0; by default every stage does.
    """

    splits: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()
    reduction: str = "sum"
    stage: int | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Layouts are hashed often; a cached property would be slower.
        parts = (self.splits, self.partial, self.reduction, self.stage)
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type["Layout"], tuple[object, ...]]:
        # It hashes anew: names hash otherwise in another process.
        return Layout, (self.splits, self.partial, self.reduction, self.stage)

    def __eq__(self, other: object) -> bool:
        # Equal ones are often the same object; the generated method would make two tuples.
        if self is other:
            return True
        if not isinstance(other, Layout):
            return NotImplemented
        return (
            self.splits == other.splits
            and self.partial == other.partial
            and self.reduction == other.reduction
            and self.stage == other.stage
        )

    @staticmethod
    def replicated(rank: int) -> "Layout":
        """Return the replicated layout of a tensor with `rank` dimensions."""
        return Layout(((),) * rank)

    @cached_property
    def split_axes(self) -> tuple[str, ...]:
        """The mesh axes that split some dimension."""
        return tuple(axis for axes in self.splits for axis in axes)

    def reduced(self) -> "Layout":
        """Return the layout without partial axes, which cotangents of the value have."""
        return Layout(self.splits, stage=self.stage) if self.partial else self

    def with_partial(self, axes: tuple[str, ...], reduction: str = "sum") -> "Layout":
        """Return the layout with exactly the partial axes `axes`."""
        return Layout(self.splits, axes, reduction if axes else "sum", self.stage)

    def at(self, stage: int | None) -> "Layout":
        """Return the layout in a pipeline stage; None for every stage."""
        if stage == self.stage:
            return self
        return Layout(self.splits, self.partial, self.reduction, stage)

    def mentions(self, axes: tuple[str, ...]) -> bool:
        """Return whether an axis splits a dimension, or values are partial over one."""
        return any(axis in self.partial or axis in self.split_axes for axis in axes)

    def without(self, dropped: tuple[str, ...]) -> "Layout":
        """Return the layout with some axes replicated."""
        if not self.mentions(dropped):
            return self
        splits = tuple(tuple(a for a in axes if a not in dropped) for axes in self.splits)
        partial = tuple(axis for axis in self.partial if axis not in dropped)
        return Layout(splits, partial, self.reduction if partial else "sum", self.stage)

    def along(self, other: "Layout", mesh: Mesh) -> "Layout":
        """Return the layout with the splits and partial axes of another as the major ones."""
        splits = tuple((*a, *b) for a, b in zip(other.splits, self.splits, strict=True))
        reduction = (other if other.partial else self).reduction
        partial = mesh.ordered((*other.partial, *self.partial))
        return Layout(splits, partial, reduction, self.stage)

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Layout":
        """Return the layout with axes renamed."""
        splits = tuple(tuple(names[axis] for axis in axes) for axes in self.splits)
        partial = mesh.ordered(names[a] for a in self.partial)
        return Layout(splits, partial, self.reduction, self.stage)

    def replacing(self, axes: Mapping[str, tuple[str, ...]], mesh: Mesh) -> "Layout":
        """Return the layout with several axes, or none, in the place of each."""
        splits = tuple([tuple([a for own in dim for a in axes[own]]) for dim in self.splits])
        partial = mesh.ordered(a for own in self.partial for a in axes[own])
        return Layout(splits, partial, self.reduction if partial else "sum", self.stage)

    def counts(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the number of slices of each dimension."""
        return tuple([mesh.extent(axes) for axes in self.splits])

    def check(self, shape: tuple[int, ...], mesh: Mesh) -> None:
        """Check that a tensor of shape `shape` can have the layout.

        Raises
        ------
        IRError
            If the number of dimensions differs, or one has fewer elements than slices.
        """
        if len(shape) != len(self.splits):
            raise IRError(
                f"a layout has {len(self.splits)} dimensions, the tensor {shape} has {len(shape)}"
            )
        for size, axes in zip(shape, self.splits, strict=True):
            if axes and size < mesh.extent(axes):
                raise IRError(
                    f"a dimension of size {size} cannot be split {mesh.extent(axes)} ways"
                )

    def is_even(self, shape: tuple[int, ...], mesh: Mesh) -> bool:
        """Return whether all slices are equally large."""
        counts = self.counts(mesh)
        return not any(size % count for size, count in zip(shape, counts, strict=True))

    def slice_shape(self, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
        """Return the shape of the largest slice, on rank 0, of a tensor of shape `shape`."""
        self.check(shape, mesh)
        return tuple(
            [
                -(-size // mesh.extent(axes)) if axes else size
                for size, axes in zip(shape, self.splits, strict=True)
            ]
        )

    def slices(self, shape: tuple[int, ...], mesh: Mesh, rank: int) -> tuple[slice, ...]:
        """Return the region of the whole tensor that `rank` holds."""
        self.check(shape, mesh)
        parts = (mesh.part(n, axes, rank) for n, axes in zip(shape, self.splits, strict=True))
        return tuple(slice(start, start + size) for start, size in parts)

    def tensor_map(self, mesh: Mesh) -> tuple[int | tuple[int, ...], ...]:
        """Return MindSpore's tensor map: mesh axes counted from the right, -1 where not split."""
        position = {name: len(mesh.axes) - 1 - i for i, name in enumerate(mesh.names)}
        maps = [tuple(position[axis] for axis in axes) for axes in self.splits]
        return tuple(-1 if not m else m[0] if len(m) == 1 else m for m in maps)

    def __repr__(self) -> str:
        return f"<Layout {self}>"

    def __str__(self) -> str:
        dims = ", ".join("@".join(axes) if axes else "*" for axes in self.splits)
        return f"[{dims}]{self.partial_text}{self.stage_text}"

    @property
    def partial_text(self) -> str:
        """The text of the partial axes, after a type: `` +x+y`` or `` +x:max``."""
        if not self.partial:
            return ""
        kind = "" if self.reduction == "sum" else f":{self.reduction}"
        return " " + "".join(f"+{axis}" for axis in self.partial) + kind

    @property
    def stage_text(self) -> str:
        """The text of the place, after a type: `` stage 1``; empty for every stage."""
        return "" if self.stage is None else f" stage {self.stage}"


def joined_stage(layouts: Iterable[Layout]) -> int | None:
    """Return the stage in which an operator on operands of these layouts runs.

    None, which is every stage, where each operand is on every stage.

    Raises
    ------
    StrategyError
        If operands are in different stages.
    """
    found: int | None = None
    for layout in layouts:
        if layout.stage is None or layout.stage == found:
            continue
        if found is not None:
            raise StrategyError(
                f"operands are in the stages {found} and {layout.stage}, they must be in one",
                hint="transfer one of them first",
            )
        found = layout.stage
    return found


def stage_of_results(operands: Sequence[Layout], results: Sequence[Layout | None]) -> int | None:
    """Return the stage that computes results: that of the operands.

    Where each operand is on every stage, one stage may compute the results alone.
    """
    stage = joined_stage(operands)
    if stage is not None:
        return stage
    return joined_stage([layout for layout in results if layout is not None])


@dataclass(frozen=True)
class Strategy:
    """The strategy of one operator: the mesh axes that split each factor of its rule.

    Parameters
    ----------
    assignment : tuple of (str, tuple of str)
        Factors with their mesh axes, major to minor; unsplit factors do not appear.

    Examples
    --------
    >>> print(Strategy.of({"m": ("x",), "k": (), "n": ("y", "z")}))
    m=x, n=y@z
    """

    assignment: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @staticmethod
    def of(assignment: Mapping[str, Iterable[str]]) -> "Strategy":
        """Return the strategy with the axes of each factor."""
        items = ((factor, tuple(axes)) for factor, axes in assignment.items())
        return Strategy(tuple(item for item in items if item[1]))

    @cached_property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Mesh axes by factor."""
        return dict(self.assignment)

    def without(self, dropped: tuple[str, ...]) -> "Strategy":
        """Return the strategy without some axes."""
        kept = {f: [a for a in axes if a not in dropped] for f, axes in self.assignment}
        return Strategy.of(kept) if dropped else self

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "Strategy":
        """Return the strategy with axes renamed."""
        return Strategy(tuple((f, tuple(names[a] for a in axes)) for f, axes in self.assignment))

    def of_factors(self, factors: Iterable[str]) -> tuple[str, ...]:
        """Return the axes of several factors in turn, major to minor."""
        axes = self.axes
        return tuple([axis for factor in factors for axis in axes.get(factor, ())])

    def __repr__(self) -> str:
        return f"<Strategy {self}>"

    def __str__(self) -> str:
        return ", ".join(f"{factor}={'@'.join(axes)}" for factor, axes in self.assignment)


@dataclass(frozen=True)
class SharedLayout:
    """The layout of a tensor that its readers share.

    Parameters
    ----------
    layout : Layout
        The tensor is redistributed to this layout once; readers of other layouts start from it.
    gradient : tuple of str
        The axes over which its cotangents are partial when they are added up.
    saved : bool
        Whether the first reader that saves the tensor for backward saves it in this layout; for
        the account of memory only.
    remade : int
        Whether and when the tensor is recomputed for backward; for the account of memory only.
    """

    layout: Layout
    gradient: tuple[str, ...] = ()
    saved: bool = False
    remade: int = 0

    @property
    def cotangent(self) -> Layout:
        """The layout in which cotangents are added up."""
        return self.layout.with_partial(self.gradient)

    def renamed(self, names: Mapping[str, str], mesh: Mesh) -> "SharedLayout":
        """Return the shared layout under a permutation of axes."""
        gradient = mesh.ordered(names[axis] for axis in self.gradient)
        return SharedLayout(self.layout.renamed(names, mesh), gradient, self.saved, self.remade)


@lru_cache(maxsize=2**16)  # an operator and its gradient ask repeatedly for few layouts
def local_bytes(tensor: TensorType, layout: Layout, mesh: Mesh) -> float:
    """Return the bytes of the largest slice that a rank holds of a tensor, where it is filled."""
    shape = layout.slice_shape(tensor.shape, mesh)
    return tensor.filled_elements(shape) * item_bytes(tensor.dtype)
