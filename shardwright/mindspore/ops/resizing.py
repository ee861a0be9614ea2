"""Images of another size."""

from collections.abc import Sequence
from typing import Any

from shardwright.ir.values import (
    check_flag,
    wrong_value,
)
from shardwright.ops.primitive import Primitive


class ResizeBilinear(Primitive):
    """Images ``[n, channel, height, width]`` of another size, between whose pixels it is linear.

    Parameters
    ----------
    size : sequence of int
        The height and the width.
    align_corners : bool
        Whether the corners stay in place.
    half_pixel_centers : bool
        Whether the pixels are where their centres are.
    """

    operator = "resize"

    def __init__(
        self, size: Sequence[int], align_corners: bool = False, half_pixel_centers: bool = False
    ) -> None:
        check_flag("align_corners", align_corners)
        check_flag("half_pixel_centers", half_pixel_centers)
        if align_corners and half_pixel_centers:
            raise wrong_value("half_pixel_centers", True, "False, with `align_corners`")
        places = "half_pixel" if half_pixel_centers else "asymmetric"
        super().__init__(
            size=tuple(size),
            mode="linear",
            coordinates="align_corners" if align_corners else places,
        )


class ResizeNearestNeighbor(Primitive):
    """Images ``[n, channel, height, width]`` of another size, each pixel that of the nearest.

    Parameters
    ----------
    size : sequence of int
        The height and the width.
    align_corners : bool
        Whether the corners stay in place.
    """

    operator = "resize"

    def __init__(self, size: Sequence[int], align_corners: bool = False) -> None:
        check_flag("align_corners", align_corners)
        how: dict[str, Any] = {"coordinates": "asymmetric", "rounding": "floor"}
        if align_corners:
            how = {"coordinates": "align_corners", "rounding": "round_prefer_ceil"}
        super().__init__(size=tuple(size), mode="nearest", **how)


__all__ = ["ResizeBilinear", "ResizeNearestNeighbor"]
