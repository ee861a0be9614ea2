"""Sharding rules: the factors of an operator's iteration space, and how they may be split.

A rule names the factors of every dimension of every operand and result. Layouts follow from an
assignment of mesh axes to factors (a strategy), and the strategy follows from layouts: both
directions are here, and the rest of the compiler is derived from them. `operators.notation` has the
text form.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from shardwright.ir.attributes import Attributes
from shardwright.ir.errors import IRError, StrategyError
from shardwright.ir.layout import Layout, Strategy
from shardwright.ir.mesh import Mesh

Shape = tuple[int, ...]
Dims = tuple[tuple[str, ...], ...]  # the factors of each dimension of a tensor, major to minor
_UNSPLIT = Strategy()
# The kinds of factors by their marks.
KINDS = {None: "parallel", "^": "whole", "~": "halo", "+": "sum", "+max": "max", "+min": "min"}


@dataclass(frozen=True)
class ShardView:
    """The part of an operator that one rank computes: an interval of every factor.

    Parameters
    ----------
    starts, sizes : mapping of str to int
        First global index and local extent of each factor.
    operand_shapes, result_shapes : tuple of tuple of int
        Local shapes.
    """

    starts: Mapping[str, int]
    sizes: Mapping[str, int]
    operand_shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Form:
    """Another operator that ranks may run, in which they send to each other.

    A strategy asks for it by a mark: the axes of a factor, written again under another name.

    Parameters
    ----------
    mark : str
        A whole factor that is then split, too, or a name that no tensor has.
    factor : str
        The factor with the same axes.
    operator : str
        The operator; its attribute ``axes`` has these axes.
    attributes : mapping
        Its other attributes.
    more : tuple of str
        Names of its results after those of the operator: what its gradient reads.
    """

    mark: str
    factor: str
    operator: str
    attributes: Attributes
    more: tuple[str, ...] = ()

    def along(self, strategy: Strategy) -> tuple[Attributes, Strategy]:
        """Return the attributes and the strategy of the operator."""
        rest = tuple(item for item in strategy.assignment if item[0] != self.mark)
        return {**self.attributes, "axes": strategy.axes[self.factor]}, Strategy(rest)


@dataclass(frozen=True, eq=False)
class Rule:
    """The sharding rule of an operator on operands of known shapes.

    Parameters
    ----------
    operands, results : tuple of Dims
        Factors of every dimension.
    sizes : mapping of str to int
        Whole extent of each factor.
    kinds : mapping of str to str
        ``parallel``, ``whole``, or the reduction ``sum``, ``max``, ``min`` of a contracted factor;
        ``halo`` of a factor ``h~``, which is split like ``h``.
    forms : tuple of Form
        Other operators that ranks may run, where a strategy has their marks.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int]
    kinds: Mapping[str, str]
    forms: tuple[Form, ...] = ()

    @cached_property
    def result_shapes(self) -> tuple[Shape, ...]:
        """Whole shape of each result."""
        return tuple(self._shape(dims, self.sizes) for dims in self.results)

    @cached_property
    def marks(self) -> Mapping[str, str]:
        """The factor that has the same axes as each mark of a form."""
        return {form.mark: form.factor for form in self.forms}

    @cached_property
    def points(self) -> int:
        """Size of the iteration space: the product of all factors."""
        return prod(self.sizes.values())

    @staticmethod
    def _shape(dims: Dims, sizes: Mapping[str, int]) -> Shape:
        return tuple(prod(sizes[factor] for factor in factors) for factors in dims)

    @cached_property
    def text(self) -> str:
        """The rule in its notation; ``()`` is a scalar."""
        marks = {kind: mark or "" for mark, kind in KINDS.items() if kind != "halo"}

        def tensor(dims: Dims) -> str:
            names = [[f + marks.get(self.kinds[f], "") for f in factors] for factors in dims]
            texts = [f"({' '.join(n)})" if len(n) > 1 else (n or ["1"])[0] for n in names]
            return " ".join(texts) or "()"

        operands, results = (", ".join(map(tensor, side)) for side in (self.operands, self.results))
        return f"{operands} -> {results}".strip()

    # From a strategy to layouts

    def operand_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """Return the layout of each operand under a strategy."""
        return tuple([_layout(dims, strategy) for dims in self._split_by[0]])

    def result_layouts(self, strategy: Strategy, mesh: Mesh) -> tuple[Layout, ...]:
        """Return the layout of each result under a strategy, partial where contracted."""
        return tuple([self._result_layout(dims, strategy, mesh) for dims in self._split_by[1]])

    @cached_property
    def _split_by(self) -> tuple[tuple[Dims, ...], tuple[Dims, ...]]:
        """The factors whose axes split each dimension of each operand, and of each result."""

        def plain(side: tuple[Dims, ...]) -> tuple[Dims, ...]:
            return tuple(tuple(tuple(map(base, factors)) for factors in dims) for dims in side)

        return plain(self.operands), plain(self.results)

    def _result_layout(self, dims: Dims, strategy: Strategy, mesh: Mesh) -> Layout:
        layout, present = (
            _layout(dims, strategy),
            {factor for factors in dims for factor in factors},
        )
        contracted = {
            factor: axes
            for factor, axes in strategy.assignment
            if factor not in self.marks
            and factor not in present
            and self.kinds[factor] != "parallel"
        }
        if not contracted:
            return layout
        first, *others = {self.kinds[factor]: None for factor in contracted}
        if others:
            raise StrategyError(
                f"a result would be partial in two ways at once: {[first, *others]}"
            )
        partial = [axis for axes in contracted.values() for axis in axes]
        return layout.with_partial(mesh.ordered(partial), first)

    def mirror_axes(self, operand: int, strategy: Strategy, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes over which the gradient of an operand is partial.

        These axes split factors that the operand lacks: each rank uses its copy of the operand for
        another part of the work.
        """
        present = _present(self.operands[operand])
        split = strategy.of_factors(present) if self.forms else ()
        return mesh.ordered(
            a for f, axes in strategy.assignment if f not in present for a in axes if a not in split
        )

    # From layouts to a strategy

    def strategy_from(
        self,
        operands: Sequence[Layout],
        mesh: Mesh,
        results: Sequence[Layout | None] = (),
    ) -> Strategy:
        """Return the strategy under which operands and results have exactly these layouts.

        Parameters
        ----------
        operands : sequence of Layout
            Layouts of the operands; their partial axes are ignored.
        mesh : Mesh
            The mesh.
        results : sequence of Layout or None
            Layouts of results, which bind factors that no operand has.

        Raises
        ------
        StrategyError
            If two tensors split one factor differently; names the factor and both splits.
        """
        found: dict[str, tuple[str, ...]] = {}
        tensors = [
            *zip(self.operands, operands, strict=True),
            *zip(self.results, results, strict=False),
        ]
        for dims, layout in tensors:
            if layout is None:
                continue
            for factors, axes in zip(dims, layout.splits, strict=True):
                for factor, part in self._divide(factors, axes, mesh):
                    factor = base(factor)
                    if found.setdefault(factor, part) != part:
                        raise StrategyError(
                            f"factor `{factor}` is split over {list(found[factor])} in one tensor "
                            f"and over {list(part)} in another"
                        )
        return Strategy.of({factor: found[factor] for factor in self.sizes if factor in found})

    def _divide(
        self, factors: tuple[str, ...], axes: tuple[str, ...], mesh: Mesh
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Assign the axes of one dimension to its factors, major factors first."""
        position, filled = 0, True
        for factor in factors:
            first, room = position, self.sizes[factor]
            even = factor in self._compound and factor != factors[-1]
            while filled and position < len(axes):
                count = mesh.sizes[axes[position]]
                if room % count if even else room < count:
                    break
                room //= count
                position += 1
            yield factor, axes[first:position]
            filled = filled and room == 1
        if position < len(axes):
            raise StrategyError(
                f"a dimension of factors {list(factors)} cannot be split over {list(axes)}"
            )

    # Legality and enumeration

    def check(self, strategy: Strategy, mesh: Mesh) -> None:
        """Check that an assignment is legal.

        Raises
        ------
        StrategyError
            With the reason, if it is not.
        """
        used: set[str] = set()
        self._check_marks(strategy, mesh)
        for factor, axes in strategy.assignment:
            if factor in self.marks:
                continue
            if factor not in self.sizes or factor != base(factor):
                factors = tuple(f for f in self.sizes if f == base(f))
                raise StrategyError(
                    f"there is no factor `{factor}`", hint=f"the factors are {factors}"
                )
            if self.kinds[factor] == "whole":
                raise StrategyError(f"factor `{factor}` must stay whole on a device")
            for axis in axes:
                mesh.axis(axis)
            if used & set(axes) or len(set(axes)) != len(axes):
                raise StrategyError(f"a mesh axis is used twice in `{strategy}`")
            used |= set(axes)
            if not self._fits(factor, mesh.extent(axes), self._is_last(factor, strategy, mesh)):
                raise StrategyError(
                    f"factor `{factor}` of size {self.sizes[factor]} cannot be split "
                    f"{mesh.extent(axes)} ways"
                )
        for dims in (*self.operands, *self.results):
            for factors in dims:
                self._check_compound(factors, strategy, mesh)

    def _check_marks(self, strategy: Strategy, mesh: Mesh) -> None:
        """Refuse marks of two forms, and one with other axes than its factor."""
        marks = [mark for mark in self.marks if mark in strategy.axes]
        if len(marks) > 1:
            raise StrategyError(f"`{strategy}` asks for two forms, by {marks}")
        for mark in marks:
            axes, factor = strategy.axes[mark], self.marks[mark]
            if axes != (split := strategy.axes.get(factor, ())):
                raise StrategyError(
                    f"factor `{mark}` is split over {list(axes)}, it must be whole or split like "
                    f"`{factor}`, over {list(split)}"
                )
            if mark in self.sizes and not self._fits(mark, mesh.extent(axes)):
                raise StrategyError(
                    f"factor `{mark}` of size {self.sizes[mark]} cannot be split "
                    f"{mesh.extent(axes)} ways"
                )

    def form_of(self, strategy: Strategy) -> Form | None:
        """Return the form that a strategy asks for, if any."""
        return next((form for form in self.forms if form.mark in strategy.axes), None)

    def refuse_forms(self, strategy: Strategy) -> None:
        """Refuse layouts that only a form has: another operator has to run."""
        if (form := self.form_of(strategy)) is not None:
            what = f"factor `{form.mark}` is split, and every rank reads all of it"
            raise StrategyError(what, hint=f"use `{form.operator}`")

    def _fits(self, factor: str, count: int, is_last: bool = False) -> bool:
        """Return whether a factor can be split `count` ways; unevenly, unless it is compound.

        The slices of a dimension of several factors would not be slices of its factors, except of
        the last factor where the others are split fully. Such splits are legal, but `strategies`
        leaves them out.
        """
        size = min(self.sizes[factor], self.sizes.get(f"{factor}~", self.sizes[factor]))
        even = factor in self._compound and not is_last
        return size % count == 0 if even else size >= count

    def _is_last(self, factor: str, strategy: Strategy, mesh: Mesh) -> bool:
        """Return whether a factor is the last of its dimensions, the others split fully."""
        for dims in (*self.operands, *self.results):
            for factors in dims:
                if factor not in factors:
                    continue
                majors = factors[: factors.index(factor)]
                full = all(mesh.extent(strategy.of_factors((f,))) == self.sizes[f] for f in majors)
                if factors[-1] != factor or not full:
                    return False
        return True

    @cached_property
    def _compound(self) -> frozenset[str]:
        """The factors that share a dimension with others."""
        dims = (factors for dims in (*self.operands, *self.results) for factors in dims)
        several = ([f for f in factors if self.sizes[f] > 1] for factors in dims)
        return frozenset(f for factors in several if len(factors) > 1 for f in factors)

    def _check_compound(self, factors: tuple[str, ...], strategy: Strategy, mesh: Mesh) -> None:
        """Refuse a minor factor that would not be contiguous on a rank."""
        for major, minor in pairwise(factors):
            split = mesh.extent(strategy.axes.get(major, ()))
            if strategy.axes.get(minor) and split != self.sizes[major]:
                raise StrategyError(
                    f"factor `{minor}` can be split only where `{major}`, of size "
                    f"{self.sizes[major]}, is split fully; it is split {split} ways"
                )

    def strategies(
        self, mesh: Mesh, kinds: Mapping[str, int] | None = None
    ) -> tuple[Strategy, ...]:
        """Return every legal assignment with the axes of a factor in mesh order.

        The order is fixed: earlier factors take earlier axes first, and the assignment that splits
        nothing comes last, so that ties go to the larger split of a leading factor. Forms come
        after the assignment without them.

        Parameters
        ----------
        mesh : Mesh
            The mesh.
        kinds : mapping, optional
            A kind for each axis: of assignments that differ by permuting axes of one kind, one is
            returned. By default every axis has its own kind.
        """
        factors = self.kinds.items()
        splittable = [f for f, k in factors if k not in ("whole", "halo") and self.sizes[f] > 1]
        kinds = kinds or {name: i for i, name in enumerate(mesh.names)}
        found = self._extended((), splittable, mesh, kinds)
        if not self.forms:
            return tuple(found)
        return tuple(strategy for plain in found for strategy in self._with_forms(plain, mesh))

    def _with_forms(self, strategy: Strategy, mesh: Mesh) -> Iterator[Strategy]:
        """Yield an assignment, then with the mark of each form that is possible."""
        yield strategy
        for form in self.forms:
            axes = strategy.axes.get(form.factor)
            if axes and (form.mark not in self.sizes or self._fits(form.mark, mesh.extent(axes))):
                yield Strategy((*strategy.assignment, (form.mark, axes)))

    def _extended(
        self,
        taken: tuple[int, ...],
        splittable: Sequence[str],
        mesh: Mesh,
        kinds: Mapping[str, int],
    ) -> Iterator[Strategy]:
        """Yield the legal assignments whose first axes go to the factors at `taken`.

        An axis of the same kind as an earlier one goes to the same factor or a later one.
        """
        axes = mesh.names[: len(taken)]
        chosen: dict[int, tuple[str, ...]] = {}
        first = 0
        for axis, factor in zip(axes, taken, strict=True):
            chosen[factor] = (*chosen.get(factor, ()), axis)
            if len(taken) < len(mesh.names) and kinds[axis] == kinds[mesh.names[len(taken)]]:
                first = factor
        if len(taken) == len(mesh.names):
            split = {f: chosen[i] for i, f in enumerate(splittable) if i in chosen}
            strategy = Strategy.of({f: split[f] for f in self.sizes if f in split})
            if self._is_representable(strategy, mesh):
                yield strategy
            return
        following = mesh.axes[len(taken)]
        for i in range(first, len(splittable)):
            held = (*chosen.get(i, ()), following.name)
            if following.size > 1 and self._fits(splittable[i], mesh.extent(held)):
                yield from self._extended((*taken, i), splittable, mesh, kinds)
        yield from self._extended((*taken, len(splittable)), splittable, mesh, kinds)

    @cached_property
    def _has_compound(self) -> bool:
        return any(len(f) > 1 for dims in (*self.operands, *self.results) for f in dims)

    def _is_representable(self, strategy: Strategy, mesh: Mesh) -> bool:
        reductions = {self.kinds[f] for f, _ in strategy.assignment} - {"parallel"}
        if len(reductions) > 1:
            return False
        if not self._has_compound:
            return True
        try:
            self.check(strategy, mesh)
        except StrategyError:
            return False
        return True

    # What a rank sees

    def view(
        self, strategy: Strategy = _UNSPLIT, mesh: Mesh | None = None, rank: int = 0
    ) -> ShardView:
        """Return the part of the work of `rank`; without a mesh, all of it."""
        sizes, starts = dict(self.sizes), dict.fromkeys(self.sizes, 0)
        for factor, axes in strategy.assignment if mesh else ():
            assert mesh is not None
            for name in (factor, f"{factor}~"):
                if name in self.sizes:
                    starts[name], sizes[name] = mesh.part(self.sizes[name], axes, rank)
        return ShardView(
            starts,
            sizes,
            tuple(self._shape(dims, sizes) for dims in self.operands),
            tuple(self._shape(dims, sizes) for dims in self.results),
        )


def dimension(axis: int, rank: int) -> int:
    """Return a dimension as counted from the front; a negative `axis` counts from the back.

    Raises
    ------
    IRError
        If a tensor of `rank` dimensions has no such dimension.
    """
    if not -rank <= axis < rank:
        raise IRError(f"dimension {axis} is asked of a tensor with {rank} dimensions")
    return axis % rank


def base(factor: str) -> str:
    """Return the factor that a factor is split like: ``h`` for ``h~``, else itself."""
    return factor.removesuffix("~")


def _present(dims: Dims) -> set[str]:
    return {base(factor) for factors in dims for factor in factors}


def _layout(dims: Dims, strategy: Strategy) -> Layout:
    return Layout(tuple([strategy.of_factors(factors) for factors in dims]))
