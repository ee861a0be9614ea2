"""Boxes ``[..., 4]`` of left, upper, right and lower pixel, both ends within."""

from shardwright.ir.errors import ModelError
from shardwright.ops.composite import Composition
from shardwright.tensor import Tensor, apply

Corners = tuple[Tensor, Tensor, Tensor, Tensor]


def _corners(boxes: Tensor) -> Corners:
    if not boxes.ndim or boxes.shape[-1] != 4:
        raise ModelError(f"boxes have four numbers each, these are of shape {boxes.shape}")
    left, upper, right, lower = (boxes[..., i] for i in range(4))
    return left, upper, right, lower


def _area(left: Tensor, upper: Tensor, right: Tensor, lower: Tensor) -> Tensor:
    return (right - left + 1.0) * (lower - upper + 1.0)


class IOU(Composition):
    """How much of each pair of boxes overlaps, ``[m, n]`` of ``[n, 4]`` and ``[m, 4]``.

    Parameters
    ----------
    mode : str
        ``iou``: as a share of their union; ``iof``: of the box of the second kind.
    """

    def __init__(self, mode: str = "iou") -> None:
        if mode not in ("iou", "iof"):
            raise ModelError(f"an overlap is a share by `iou` or `iof`, not by `{mode}`")
        self.mode = mode

    def compose(self, anchor_boxes: Tensor, gt_boxes: Tensor) -> Tensor:
        """Compare all pairs."""
        one = [apply("expand_dims", c, axis=0) for c in _corners(anchor_boxes)]
        other = [apply("expand_dims", c, axis=1) for c in _corners(gt_boxes)]
        begin = [apply("maximum", a, b) for a, b in zip(one[:2], other[:2], strict=True)]
        end = [apply("minimum", a, b) for a, b in zip(one[2:], other[2:], strict=True)]
        sides = [apply("relu", b - a + 1.0) for a, b in zip(begin, end, strict=True)]
        shared, whole = sides[0] * sides[1], _area(*other)
        if self.mode == "iou":
            whole = whole + _area(*one) - shared
        return shared / whole


class BoundingBoxEncode(Composition):
    """Boxes as seen from anchors: how far away, and how much larger, in logarithms.

    Parameters
    ----------
    means, stds : tuple of float
        The mean that is subtracted from each of the four numbers, and the divisor.
    """

    notation = "n c^, n c^ -> n c"

    def __init__(
        self,
        means: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),
        stds: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0),
    ) -> None:
        self.means, self.stds = means, stds

    def compose(self, anchor_box: Tensor, groundtruth_box: Tensor) -> Tensor:
        """Compare box by box."""
        anchor, truth = _corners(anchor_box), _corners(groundtruth_box)
        away, larger = [], []
        for i in (0, 1):
            size, other = (c[i + 2] - c[i] + 1.0 for c in (anchor, truth))
            middle, target = ((c[i] + c[i + 2]) * 0.5 for c in (anchor, truth))
            away.append((target - middle) / size)
            larger.append(apply("log", other / size))
        numbers = zip((*away, *larger), self.means, self.stds, strict=True)
        scaled = [(x - mean) * (1.0 / std) for x, mean, std in numbers]
        return apply("stack", *scaled, axis=-1)


class CheckValid(Composition):
    """Whether boxes are inside an image ``[height, width, ratio]``, scaled by the ratio."""

    def compose(self, bboxes: Tensor, img_metas: Tensor) -> Tensor:
        """Compare the corners with the borders."""
        corners = _corners(bboxes)
        inside = None
        for low, high, of_size in zip(corners[:2], corners[2:], (1, 0), strict=True):
            end = img_metas[of_size] * img_metas[2] - 1.0
            fits = apply("logical_and", low >= 0.0, apply("less_equal", high, end))
            inside = fits if inside is None else apply("logical_and", inside, fits)
        assert inside is not None
        return inside
