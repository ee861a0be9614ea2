"""MindSpore's tensor redistribution: the operators that it infers between two layouts.

A change of layout is first written in common terms. Mesh axes that both layouts treat equally are
taken as one, and each tensor dimension is cut into *pieces*, such that either layout splits a piece
over at most one such run of axes. Then operators are inferred piece by piece: split what only the
target splits, exchange what is split elsewhere, gather what the target leaves whole.

The search weighs these operators with ``mindspore``'s cost profile; the program that is emitted in
the end comes from the planner of `shardwright.cost_model.redistribution.planner`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf, prod
from operator import mul

from shardwright.ir.layout import Layout
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType

Axes = tuple[str, ...]
# MindSpore's factors on the bytes of a slice, by operator.
_SCALES = {"split": 0.0, "all_gather": 0.5, "all_to_all": 2.0, "reshape": 2.0}


@dataclass(frozen=True, slots=True)
class RedistributionOperator:
    """One operator of a redistribution.

    Parameters
    ----------
    kind : str
        ``split``, ``all_gather`` or ``all_to_all``.
    piece : int
        Position of the piece that is split or gathered; the one gathered by an ``all_to_all``.
    devices : int
        Number of devices in a group.
    axes : tuple of str
        The axes over which a piece is split, or was until now.
    split : int, optional
        The piece that an ``all_to_all`` splits.
    """

    kind: str
    piece: int
    devices: int
    axes: Axes = ()
    split: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor dimension, and the run of axes over which either layout splits it."""

    size: int
    source: Axes
    target: Axes


@dataclass(frozen=True, slots=True)
class RedistributionVolume:
    """What a redistribution takes, in bytes on each device."""

    computation: float = 0.0
    forward: float = 0.0
    backward: float = 0.0


@lru_cache(maxsize=1 << 18)
def redistribution_volume(
    tensor: TensorType, source: Layout, target: Layout, mesh: Mesh
) -> RedistributionVolume:
    """Return the computation and communication of a redistribution.

    Every operator is charged for the slice that a device holds at the outset, S bytes; n is the
    number of devices of a group:

    ============ =============== ================ ======================================
    operator     forward         backward         computation
    ============ =============== ================ ======================================
    split        0               0                S
    all_gather   n S / 2         S / 2            2 S on the first piece, else 2 S + 2 n S
    all_to_all   2 S             2 S              2 S on the first piece, else 2 S + 2 n S
    ============ =============== ================ ======================================

    Where pieces differ from dimensions, the slices are reshaped: 2 S more computation. Partial axes
    of the layouts are ignored, since MindSpore's operators reduce their results themselves. Where
    the mesh cannot be brought to common terms, the tensor is gathered whole and split again.
    """
    slice_bytes = prod(source.slice_shape(tensor.shape, mesh)) * (tensor.nbytes // tensor.elements)
    pieces = common_pieces(tensor.shape, source, target, mesh)
    if pieces is None:
        whole = Layout.replicated(tensor.rank)
        gather = redistribution_volume(tensor, source, whole, mesh)
        split = redistribution_volume(tensor, whole, target, mesh)
        return RedistributionVolume(
            gather.computation + split.computation, gather.forward, gather.backward
        )
    operators = infer_operators(pieces, mesh)
    if not operators:
        return RedistributionVolume()
    computation = sum(_computation(operator) for operator in operators)
    if _reshapes(tensor.shape, source, target, pieces, mesh):
        computation += _SCALES["reshape"]
    forward = sum(_forward(operator) for operator in operators)
    backward = sum(_backward(operator) for operator in operators)
    if tensor.dtype == "bool" and forward:
        forward = inf  # booleans are not communicated
    return RedistributionVolume(
        computation * slice_bytes, forward * slice_bytes, backward * slice_bytes
    )


def _computation(operator: RedistributionOperator) -> float:
    """Return the slices that an operator moves in memory."""
    if operator.kind == "split":
        return 1.0
    return 2.0 if operator.piece == 0 else 2.0 + 2.0 * operator.devices


def _forward(operator: RedistributionOperator) -> float:
    """Return the slices that an operator communicates; a gather has one from each device."""
    slices = operator.devices if operator.kind == "all_gather" else 1
    return slices * _SCALES[operator.kind]


def _backward(operator: RedistributionOperator) -> float:
    return _SCALES[operator.kind]


def _reshapes(
    shape: Sequence[int], source: Layout, target: Layout, pieces: Sequence[Piece], mesh: Mesh
) -> bool:
    """Return whether a slice has another shape in pieces than in dimensions."""
    before = tuple(piece.size // mesh.extent(piece.source) for piece in pieces)
    after = tuple(piece.size // mesh.extent(piece.target) for piece in pieces)
    return (before, after) != (
        source.slice_shape(tuple(shape), mesh),
        target.slice_shape(tuple(shape), mesh),
    )


# Common terms


def common_pieces(
    shape: Sequence[int], source: Layout, target: Layout, mesh: Mesh
) -> tuple[Piece, ...] | None:
    """Return the pieces in which both layouts can be written, major to minor.

    Dimensions of size one are left out. A run of axes is divided where a cut of the other layout
    falls inside it.

    Returns
    -------
    tuple of Piece or None
        None where that cannot be, as on a mesh with axes of 2 and 3.
    """
    layouts = [_without_unit_axes(layout, mesh) for layout in (source, target)]
    heads = _run_heads(layouts, mesh)
    while True:
        runs = [[_runs(axes, heads) for axes in layout] for layout in layouts]
        cuts = [_cuts(a, b, mesh) for a, b in zip(*runs, strict=True)]
        inside = _divided(runs, cuts, mesh)
        if inside is None:
            return None
        if inside <= heads:
            break
        heads |= inside
    dimensions = zip(shape, cuts, *runs, strict=True)
    pieces = [
        piece
        for size, points, a, b in dimensions
        if size > 1
        for piece in _pieces(size, points, a, b, mesh)
    ]
    fits = prod(piece.size for piece in pieces) == prod(shape) and all(
        piece.size % mesh.extent(run) == 0
        for piece in pieces
        for run in (piece.source, piece.target)
    )
    return tuple(pieces) if fits else None


def _without_unit_axes(layout: Layout, mesh: Mesh) -> tuple[Axes, ...]:
    return tuple(tuple(a for a in axes if mesh.sizes[a] > 1) for axes in layout.splits)


def _run_heads(layouts: Sequence[tuple[Axes, ...]], mesh: Mesh) -> set[str]:
    """Return the axes that begin a run: all but those that follow their neighbour in both."""
    names = [axis.name for axis in mesh.axes if axis.size > 1]
    followers = [_followers(layout, names) for layout in layouts]
    return set(names) - (followers[0] & followers[1])


def _followers(layout: tuple[Axes, ...], names: Sequence[str]) -> set[str]:
    """Return the axes that stand in a layout right after their neighbour in the mesh."""
    free = [name for name in names if all(name not in axes for axes in layout)]
    pairs = {pair for axes in layout for pair in pairwise(axes)}
    return {
        minor
        for major, minor in pairwise(names)
        if (major, minor) in pairs or (major in free and minor in free)
    }


def _runs(axes: Axes, heads: set[str]) -> list[Axes]:
    runs: list[Axes] = []
    for axis in axes:
        if axis in heads or not runs:
            runs.append((axis,))
        else:
            runs[-1] += (axis,)
    return runs


def _ends(runs: Iterable[Axes], mesh: Mesh) -> list[int]:
    """Return into how many parts a dimension is split after each run."""
    return list(accumulate((mesh.extent(run) for run in runs), mul))


def _cuts(first: list[Axes], second: list[Axes], mesh: Mesh) -> list[int]:
    """Return where a dimension is cut: before every run but the first, in either layout."""
    return sorted({*_ends(first[:-1], mesh), *_ends(second[:-1], mesh)})


def _divided(
    runs: Sequence[Sequence[list[Axes]]], cuts: Sequence[Sequence[int]], mesh: Mesh
) -> set[str] | None:
    """Return the axes at which a cut divides a run; None where it would divide an axis."""
    heads = set()
    for layout in runs:
        for dimension, points in zip(layout, cuts, strict=True):
            axes = [axis for run in dimension for axis in run]
            ends = _ends(((axis,) for axis in axes), mesh)
            for point in points:
                if ends and point < ends[-1]:
                    if point not in ends:
                        return None
                    heads.add(axes[ends.index(point) + 1])
    return heads


def _pieces(
    size: int, cuts: Sequence[int], source: list[Axes], target: list[Axes], mesh: Mesh
) -> list[Piece]:
    points = [1, *cuts]
    sizes = [b // a for a, b in zip(points, [*cuts, size], strict=True)]
    starts = [dict(zip([1, *_ends(runs, mesh)], runs, strict=False)) for runs in (source, target)]
    return [
        Piece(size, starts[0].get(point, ()), starts[1].get(point, ()))
        for size, point in zip(sizes, points, strict=True)
    ]


# Inference


def infer_operators(pieces: Sequence[Piece], mesh: Mesh) -> tuple[RedistributionOperator, ...]:
    """Return the operators that bring every piece from its source to its target.

    Repeat until every piece is done: split and exchange while possible, then gather what the target
    does not use at all; where nothing could be done, gather the first piece that is left.
    """
    inference = _Inference(
        [piece.target for piece in pieces],
        {i: piece.source for i, piece in enumerate(pieces)},
        mesh,
    )
    return tuple(inference.run())


@dataclass
class _Inference:
    """Pieces still to be done, with the axes that split each now."""

    target: list[Axes]
    left: dict[int, Axes]
    mesh: Mesh

    def run(self) -> list[RedistributionOperator]:
        """Return all operators."""
        found: list[RedistributionOperator] = []
        while self.left:
            before = len(found)
            found += self._until_stuck()
            found += self._gathers()
            if len(found) == before and self.left:
                first = min(self.left)
                found.append(self._operator("all_gather", first, self.left[first]))
                self.left[first] = ()
        return found

    def _operator(
        self, kind: str, piece: int, axes: Axes, split: int | None = None
    ) -> RedistributionOperator:
        return RedistributionOperator(kind, piece, self.mesh.extent(axes), axes, split)

    def _until_stuck(self) -> list[RedistributionOperator]:
        found: list[RedistributionOperator] = []
        while True:
            new = self._splits()
            while exchanged := self._exchanges():
                new += exchanged
            if not new:
                return found
            found += new

    def _splits(self) -> list[RedistributionOperator]:
        """Split pieces that are whole over axes that no other piece holds."""
        found = []
        for piece in sorted(self.left):
            wanted = self.target[piece]
            if self.left[piece] == wanted:
                del self.left[piece]
            elif not self.left[piece] and wanted not in self.left.values():
                found.append(self._operator("split", piece, wanted))
                del self.left[piece]
        return found

    def _exchanges(self) -> list[RedistributionOperator]:
        """Split pieces that are whole over axes taken from another piece."""
        found = []
        for piece in sorted(self.left):
            wanted = self.target[piece]
            if self.left[piece] == wanted:
                del self.left[piece]
            elif not self.left[piece]:
                holder = next((i for i, axes in self.left.items() if axes == wanted), None)
                if holder is None:
                    continue
                found.append(self._operator("all_to_all", holder, wanted, piece))
                del self.left[piece]
                self.left[holder] = ()
        return found

    def _gathers(self) -> list[RedistributionOperator]:
        """Gather pieces whose axes the target does not use."""
        found = []
        for piece in sorted(self.left):
            axes = self.left[piece]
            if axes and axes not in self.target:
                found.append(self._operator("all_gather", piece, axes))
                self.left[piece] = ()
                if not self.target[piece]:
                    del self.left[piece]
        return found
