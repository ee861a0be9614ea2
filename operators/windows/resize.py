"""Resizing by interpolation, and moves between blocks of space and channels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shardwright.ir.errors import IRError
from shardwright.operators.info import (
    Array,
    Emitter,
    Example,
    Gradients,
    Linearization,
    OperatorInfo,
    register,
)
from shardwright.operators.notation import resolve
from shardwright.operators.rule import Rule, Shape, ShardView
from shardwright.operators.windows.geometry import Windows
from shardwright.operators.windows.windowed import PLACEMENT, Windowed

_CHOICES = {
    "mode": ("nearest", "linear"),
    "coordinates": ("half_pixel", "asymmetric", "align_corners"),
    "rounding": ("floor", "round_prefer_floor", "round_prefer_ceil"),
}


def _positions(before: int, after: int, coordinates: str) -> Array:
    """Return the position of each result element among the elements of the operand."""
    index = np.arange(after)
    if coordinates == "align_corners":
        return index * ((before - 1) / max(after - 1, 1))
    if coordinates == "asymmetric":
        return index * (before / after)
    return (index + 0.5) * (before / after) - 0.5


def _nearest(place: Array, rounding: str) -> Array:
    if rounding == "round_prefer_floor":
        return np.ceil(place - 0.5)
    return np.floor(place + 0.5 if rounding == "round_prefer_ceil" else place)


def interpolation(
    before: int, after: int, mode: str, coordinates: str, rounding: str = "floor"
) -> Array:
    """Return the matrix ``[after, before]`` that resizes one dimension.

    Examples
    --------
    >>> interpolation(2, 4, "linear", "half_pixel").tolist()
    [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    """
    place = np.clip(_positions(before, after, coordinates), 0, before - 1)
    if mode == "nearest":
        low = _nearest(place, rounding)
        return np.asarray(low[:, None] == np.arange(before), np.float64)
    return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(before)))


def _window(
    before: int, after: int, mode: str, coordinates: str, rounding: str
) -> "_Window | None":
    """Return the windows along one dimension; None if neither size is a multiple of the other.

    The ratio of the sizes is the number of results that share a window.
    """
    if after % before and before % after:
        return None
    place = np.clip(_positions(before, after, coordinates), 0, before - 1)
    lowest, highest = np.floor(place), np.ceil(place)
    if mode == "nearest":
        lowest = highest = _nearest(place, rounding)
    stride, repeat = max(1, before // after), max(1, after // before)
    begins = np.arange(after) // repeat * stride
    first, last = max(0, int((begins - lowest).max())), int((highest - begins).max())
    count, span = after // repeat, first + last + 1
    behind = max(0, (count - 1) * stride + span - before - first)
    return _Window(span, stride, (first, behind), repeat)


@dataclass(frozen=True)
class _Window:
    span: int
    stride: int
    padding: tuple[int, int]
    repeat: int  # results that share a window


_WHOLE = _Window(1, 1, (0, 0), 1)


class Interpolation(Windowed):
    """The base of resizing and its transpose.

    The space stays whole along a dimension where neither size is a multiple of the other. ``mode``
    is nearest or linear. ``coordinates`` place the elements: the centres of pixels
    (``half_pixel``), their corners (``asymmetric``), or with both ends in place
    (``align_corners``). ``rounding`` of the nearest: ``floor``, or
    ``round_prefer_floor`` or ``round_prefer_ceil`` where it is half way.
    """

    defaults: ClassVar = {
        "size": (),
        "mode": "nearest",
        "coordinates": "half_pixel",
        "rounding": "floor",
        **PLACEMENT,
    }
    linear = ((0,),)
    of_space: ClassVar[bool]  # whether the operand is the space, not the result
    examples: ClassVar[tuple[Example, ...]] = (
        Example(("f64[2, 4, 3]",), {"size": (5,)}),
        Example(("f64[2, 4, 3, 4]",), {"size": (6, 2), "mode": "linear"}),
        Example(
            ("f64[2, 2, 3, 4]",), {"size": (4, 6), "mode": "linear", "coordinates": "align_corners"}
        ),
        Example(
            ("f64[2, 2, 5]",),
            {"size": (2,), "coordinates": "asymmetric", "rounding": "round_prefer_floor"},
        ),
        Example(("f64[1, 2, 6, 4]",), {"size": (12, 2), "mode": "linear"}),
        Example(("f64[2, 1, 6, 6]",), {"size": (12, 3)}),
    )

    def make_rule(self) -> Rule:
        """Split windows, if there are any."""
        shape, size = self.operand_types[0].shape, self.attributes["size"]
        if len(shape) < 3 or len(size) != len(shape) - 2:
            raise IRError(f"the size {size} does not fit the shape {shape}")
        for key, known in _CHOICES.items():
            if self.attributes[key] not in known:
                raise IRError(f"{key} is `{self.attributes[key]}`, expected one of {known}")
        self.space = self.true_space(shape[2:]) if self.of_space else size
        self.after = size if self.of_space else shape[2:]
        pairs = zip(self.space, self.after, strict=True)
        how = [self.attributes[key] for key in _CHOICES]
        self.along = [_window(before, after, *how) for before, after in pairs]
        each = [window or _WHOLE for window in self.along]
        ones = (1,) * len(each)
        self.windows = Windows(
            tuple(w.span for w in each),
            tuple(w.stride for w in each),
            tuple(w.padding for w in each),
            ones,
        )
        return self._resolve(shape)

    def _resolve(self, shape: Shape) -> Rule:
        sizes = {"n": shape[0], "c": shape[1]}
        space, results = [], []
        for d, (held, after, window) in enumerate(
            zip(self.held(), self.after, self.along, strict=True)
        ):
            if window is None:
                space.append(f"i{d}^")
                results.append(f"o{d}^")
                sizes |= {f"i{d}": held, f"o{d}": after}
                continue
            name = f"s{d}" if self.windows.is_pointwise(d) else f"s{d}~"
            space.append(name)
            results.append(f"(s{d} r{d}^)" if window.repeat > 1 else f"s{d}")
            sizes |= {f"s{d}": after // window.repeat, name: held, f"r{d}": window.repeat}
        left, right = (space, results) if self.of_space else (results, space)
        return resolve(f"n c {' '.join(left)} -> n c {' '.join(right)}", [shape], sizes)

    def matrix(self, before: int, after: int) -> Array:
        """Return the matrix that resizes a dimension."""
        how = (self.attributes[key] for key in _CHOICES)
        return interpolation(before, after, *how)

    def own_matrix(self, d: int, view: ShardView) -> Array:
        """Return the rows of the results of a rank, over the elements that it holds."""
        before, after, window = self.space[d], self.after[d], self.along[d]
        matrix = self.matrix(before, after)
        if window is None or (self.slices[d] == 1 and not self.windows.is_pointwise(d)):
            return matrix
        start, count = view.starts[f"s{d}"], view.sizes[f"s{d}"]
        first = start * window.stride - window.padding[0]
        elements = first + np.arange((count - 1) * window.stride + window.span)
        inside = (elements >= 0) & (elements < before)
        own = np.zeros((count * window.repeat, len(elements)))
        rows = matrix[start * window.repeat : (start + count) * window.repeat]
        own[:, inside] = rows[:, elements[inside]]
        return own

    @property
    def flops(self) -> float:
        """Count two taps along each dimension."""
        points = float(max(self.operand_types[0].elements, self.result_types[0].elements))
        return 4.0 * points * len(self.attributes["size"])

    def applied(self, x: Array, matrices: list[Array]) -> Array:
        """Return `x` with a matrix applied to each spatial dimension."""
        for axis, matrix in enumerate(matrices, 2):
            product = np.matmul(np.moveaxis(x, axis, -1), matrix.T.astype(x.dtype))
            x = np.moveaxis(product, -1, axis)
        return x


@register
class Resize(Interpolation):
    """``[n, channel, *space]`` with the space ``size``."""

    name = "resize"
    of_reals = True
    of_space = True

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Apply a matrix to each dimension."""
        x = self.own(operands[0], view)
        return self.applied(x, [self.own_matrix(d, view) for d in range(len(self.space))])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Apply the transposed matrices."""
        attributes = {**self.attributes, "size": self.space}
        return [build.emit("resize_gradient", at.cotangents[0], **attributes)]


@register
class ResizeGradient(Interpolation):
    """The transpose of `resize`, to the space ``size``."""

    name = "resize_gradient"
    of_space = False

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Apply the transposed matrix to each dimension."""
        matrices = [self.own_matrix(d, view).T for d in range(len(self.space))]
        return self.with_rest(self.applied(operands[0], matrices), view, 0)

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Emit the operator that this one is the transpose of."""
        attributes = {**self.attributes, "size": self.after}
        return [build.emit("resize", at.cotangents[0], **attributes)]


class Blocks(OperatorInfo):
    """Blocks of ``block`` by ``block`` elements of two-dimensional space, as channels or as space.

    ``mode`` orders the channels: ``DCR``, position in the block, then channel of the larger space;
    ``CRD``, the reverse.
    """

    defaults: ClassVar = {"block": 1, "mode": "DCR"}
    linear = ((0,),)
    flops_per_point = 0.0

    def notation_of(self) -> tuple[str, str]:
        """Return the notations of the tensors with more channels and with more space."""
        modes = {"DCR": "(p q c)", "CRD": "(c p q)"}
        if self.attributes["mode"] not in modes:
            raise IRError(f"mode is `{self.attributes['mode']}`, expected one of {tuple(modes)}")
        return f"n {modes[self.attributes['mode']]} h w", "n c (h p) (w q)"

    def make_sizes(self, shape: Shape, divided: tuple[int, ...]) -> dict[str, int]:
        """Return the sizes of all factors, with some dimensions divided by the block.

        Raises
        ------
        IRError
            If the operand does not consist of blocks.
        """
        block = self.attributes["block"]
        by = block * block if divided == (1,) else block
        if len(shape) != 4 or block < 1 or any(shape[d] % by for d in divided):
            raise IRError(f"the shape {shape} does not consist of blocks of {block} by {block}")
        _, c, h, w = (n // by if d in divided else n for d, n in enumerate(shape))
        return {"c": c, "h": h, "w": w, "p": block, "q": block}

    @staticmethod
    def local(view: ShardView, names: str) -> list[int]:
        """Return the local sizes of factors."""
        return [view.sizes[name] for name in names]


@register
class DepthToSpace(Blocks):
    """Channels to blocks of space: ``[n, block block c, h, w] -> [n, c, h block, w block]``."""

    name = "depth_to_space"
    examples = (
        Example(("f64[2, 8, 3, 2]",), {"block": 2}),
        Example(("f64[2, 8, 2, 3]",), {"block": 2, "mode": "CRD"}),
    )

    def make_rule(self) -> Rule:
        """Take the channels apart."""
        shape = self.operand_types[0].shape
        deep, wide = self.notation_of()
        return resolve(f"{deep} -> {wide}", [shape], self.make_sizes(shape, (1,)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Regroup."""
        first = self.attributes["mode"] == "DCR"
        apart = operands[0].reshape(self.local(view, "npqchw" if first else "ncpqhw"))
        order = (0, 3, 4, 1, 5, 2) if first else (0, 1, 4, 2, 5, 3)
        return apart.transpose(order).reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Apply the transpose."""
        return [build.emit("space_to_depth", at.cotangents[0], **self.attributes)]


@register
class SpaceToDepth(Blocks):
    """Blocks of space to channels: ``[n, c, h block, w block] -> [n, block block c, h, w]``."""

    name = "space_to_depth"
    examples = (
        Example(("f64[2, 2, 6, 4]",), {"block": 2}),
        Example(("f64[2, 2, 4, 6]",), {"block": 2, "mode": "CRD"}),
    )

    def make_rule(self) -> Rule:
        """Take the space apart."""
        shape = self.operand_types[0].shape
        deep, wide = self.notation_of()
        return resolve(f"{wide} -> {deep}", [shape], self.make_sizes(shape, (2, 3)))

    def kernel(self, view: ShardView, *operands: Array) -> Array:
        """Regroup."""
        first = self.attributes["mode"] == "DCR"
        apart = operands[0].reshape(self.local(view, "nchpwq"))
        order = (0, 3, 5, 1, 2, 4) if first else (0, 1, 3, 5, 2, 4)
        return apart.transpose(order).reshape(view.result_shapes[0])

    def gradient(self, build: Emitter, at: Linearization) -> Gradients:
        """Apply the transpose."""
        return [build.emit("depth_to_space", at.cotangents[0], **self.attributes)]
