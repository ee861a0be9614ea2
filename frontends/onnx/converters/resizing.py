"""Resizing: a product with a matrix along each dimension, or a lookup of the nearest."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np

from shardwright.frontends.common.errors import UnsupportedError
from shardwright.frontends.onnx.converters.shape import take
from shardwright.frontends.onnx.onnx_call import Call
from shardwright.frontends.onnx.onnx_operators import converts
from shardwright.ir.graph import Value
from shardwright.operators.info import Array
from shardwright.operators.rule import dimension

_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True)
class _Axis:
    """The resizing of one dimension.

    Parameters
    ----------
    before, after : int
        Its sizes.
    scale : float
        Ratio of the sizes, before rounding.
    region : (float, float)
        The region of interest along the dimension, if the coordinates use one.
    """

    before: int
    after: int
    scale: float
    region: tuple[float, float] = (0.0, 1.0)

    def places(self, coordinates: str, kind: "type[np.floating[Any]]" = np.float64) -> Array:
        """Return the position of each result element among the elements of the operand.

        As onnxruntime and PyTorch, by the size of the result; the evaluator of the standard takes
        the product of size and scale, which may be fractional.
        """
        index, last = np.arange(self.after, dtype=kind), self.after - 1
        scale = kind(self.scale)
        if coordinates == "asymmetric":
            return index / scale
        if coordinates == "align_corners":
            return index * (self.before - 1) / max(last, 1)
        if coordinates == "tf_crop_and_resize":
            start, end = self.region
            if not last:
                return 0 * index + (end + start) * (self.before - 1) / 2
            step = (end - start) * (self.before - 1) / last
            return start * (self.before - 1) + index * step
        if coordinates == "pytorch_half_pixel" and not last:
            return 0 * index
        place = (index + kind(0.5)) / scale - kind(0.5)
        if coordinates == "half_pixel_symmetric":
            place += self.before / 2 * (1 - self.after / (self.scale * self.before))
        elif coordinates not in ("half_pixel", "pytorch_half_pixel"):
            raise UnsupportedError(f"coordinates of kind `{coordinates}`")
        return place


def _cubic(distance: Array, a: float) -> Array:
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _matrix(axis: _Axis, place: Array, call: Call) -> Array:
    """Return the matrix ``[after, before]`` of an interpolation."""
    cubic = call.attribute("mode") == "cubic"
    narrow = min(axis.scale, 1.0) if call.attribute("antialias", 0) else 1.0
    reach = ceil((2 if cubic else 1) / narrow)
    found = np.zeros((axis.after, axis.before))
    for row, x in enumerate(place):
        taps = np.arange(floor(x) - reach, floor(x) + reach + 2)
        distance = (taps - x) * narrow
        if cubic:
            weights = _cubic(distance, float(call.attribute("cubic_coeff_a", -0.75)))
        else:
            weights = np.clip(1 - np.abs(distance), 0, 1)
        if call.attribute("exclude_outside", 0):
            weights = np.where((taps < 0) | (taps >= axis.before), 0, weights)
        np.add.at(found[row], np.clip(taps, 0, axis.before - 1), weights / weights.sum())
    return found


def _axes(call: Call) -> dict[int, _Axis]:
    """Return the resizing of each dimension."""
    shape = call.shape(0)
    axes = [dimension(a, len(shape)) for a in call.attribute("axes", tuple(range(len(shape))))]
    region = (
        call.array(1).ravel()
        if call.has(1) and call.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
        else np.repeat([0.0, 1.0], len(axes))
    )
    if call.has(2) and 0 not in call.shape(2):
        scales = [float(s) for s in call.array(2).ravel()]
        # The product is rounded to float32: 5 times 1.4 is 7.
        sizes = [
            int(np.float32(shape[a]) * np.float32(s)) for a, s in zip(axes, scales, strict=True)
        ]
    else:
        sizes = list(call.ints(3))
        scales = [size / shape[a] for a, size in zip(axes, sizes, strict=True)]
        policy = call.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            shared = min(scales) if policy == "not_larger" else max(scales)
            scales = [shared] * len(axes)
            sizes = [floor(shared * shape[a] + 0.5) for a in axes]
    found = {}
    for i, (axis, size, scale) in enumerate(zip(axes, sizes, scales, strict=True)):
        part = (float(region[i]), float(region[i + len(axes)]))
        found[axis] = _Axis(shape[axis], size, scale, part)
    return found


@converts("Resize")
def _resize(call: Call) -> Value:
    x, axes = call.value(0), _axes(call)
    coordinates = call.attribute("coordinate_transformation_mode", "half_pixel")
    mode = call.attribute("mode", "nearest")
    if coordinates == "tf_crop_and_resize":
        _check_regions(call, axes, mode)
    elif coordinates != "align_corners":
        _check_copies(axes)
    if _is_ours(call, axes, mode, coordinates):
        return _ours(call, x, axes, mode, coordinates)
    inside: Value | None = None
    dtype = x.type.dtype
    for axis, how in axes.items():
        # Positions that are rounded are computed in the type of onnxruntime.
        place = how.places(coordinates, np.float32 if mode == "nearest" else np.float64)
        if how.scale == 1 and np.array_equal(place, np.arange(how.before)):
            continue
        if mode == "nearest":
            chosen = call.attribute("nearest_mode", "round_prefer_floor")
            if chosen == "simple":  # of versions before 11, as onnxruntime
                chosen = "ceil" if how.scale < 1 else "floor"
            rounding = _ROUNDINGS[chosen]
            x = take(call, x, np.clip(rounding(place), 0, how.before - 1).astype(np.int64), axis)
        else:
            x = _multiplied(call, x, _matrix(how, place, call), axis)
        if coordinates == "tf_crop_and_resize":
            inside = _within(call, inside, (place >= 0) & (place <= how.before - 1), axis, x)
    if inside is None:
        return call.cast(x, dtype)
    outside = call.like(float(call.attribute("extrapolation_value", 0.0)), x)
    return call.emit("where", inside, x, outside)


def _check_regions(call: Call, axes: dict[int, _Axis], mode: str) -> None:
    """Refuse regions for which onnxruntime does not follow the standard."""
    if mode == "cubic" and call.attribute("exclude_outside", 0):
        raise UnsupportedError("mode `cubic` of `tf_crop_and_resize` with `exclude_outside`")
    if any(how.before == how.after and how.region != (0.0, 1.0) for how in axes.values()):
        raise UnsupportedError("a region of `tf_crop_and_resize` that is resized to the whole size")


def _check_copies(axes: dict[int, _Axis]) -> None:
    """Refuse scales that leave all sizes: onnxruntime then copies, and PyTorch interpolates."""
    scales = [how.scale for how in axes.values() if how.scale != 1]
    if scales and all(how.before == how.after for how in axes.values()):
        raise UnsupportedError(f"a resizing by {scales[0]:.6g} that leaves all sizes")


def _within(call: Call, inside: Value | None, along: Array, axis: int, x: Value) -> Value:
    """Return which elements are inside along this dimension and the previous ones."""
    shape = tuple(-1 if i == axis else 1 for i in range(x.type.rank))
    now = call.constant(along.reshape(shape), "bool")
    return now if inside is None else call.emit("logical_and", inside, now)


def _multiplied(call: Call, x: Value, matrix: Array, axis: int) -> Value:
    """Return a value with a matrix applied along a dimension."""
    if not x.type.is_float:
        x = call.cast(x, "float32")
    order = [i for i in range(x.type.rank) if i != axis] + [axis]
    moved = call.transpose(x, order)
    product = call.emit("matmul", moved, call.constant(matrix.T, x.type.dtype))
    return call.transpose(product, np.argsort(order).tolist())


def _is_ours(call: Call, axes: dict[int, _Axis], mode: str, coordinates: str) -> bool:
    """Return whether our operator supports it: the space of images, by known coordinates."""
    exact = all(how.scale * how.before == how.after for how in axes.values())
    outer = all(how.before == how.after for axis, how in axes.items() if axis < 2)
    rounding = call.attribute("nearest_mode", "round_prefer_floor")
    nearest = mode == "nearest" and rounding in ("floor", "round_prefer_floor")
    special = call.attribute("antialias", 0) or call.attribute("exclude_outside", 0)
    return (
        exact
        and outer
        and not special
        and len(call.shape(0)) > 2
        and (nearest or mode == "linear")
        and coordinates in ("half_pixel", "asymmetric", "align_corners")
        and call.type(0).is_float
    )


def _ours(call: Call, x: Value, axes: dict[int, _Axis], mode: str, coordinates: str) -> Value:
    size = tuple(axes[i].after if i in axes else n for i, n in enumerate(x.type.shape) if i > 1)
    how: dict[str, Any] = {"size": size, "mode": mode, "coordinates": coordinates}
    if mode == "nearest":
        how["rounding"] = call.attribute("nearest_mode", "round_prefer_floor")
    return call.emit("resize", x, **how)
