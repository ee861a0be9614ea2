"""Kernels of a device that were measured one by one, and the rule that interpolates them.

A kernel attains a share of a peak that rises with the sizes of its work:

    rate = peak * share * product over sizes of size / (size + half)

where a `half` is the size at which it has half of what long ones have: the contracted length ``k``
of a product, also ``m`` and ``n`` of those of experts, the ``keys`` that a query of attention reads
in the mean. What stands before the first tile is ready, and after the last one, is a constant for
each line along a size, so seconds are a constant and a term that grows with the size.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from shardwright.cost_model.efficiency.figures import (
    Description,
    Name,
    NotNegative,
    Positive,
    Rate,
    Share,
    Tag,
)
from shardwright.ir.types import DTYPES, TF32

Size = Literal["m", "n", "k", "keys"]
SHORT = ("bfloat16", "float16")
"""The types that kernels of attention compute in."""
# Types that the same tensor cores compute at the same share of their peak.
_LIKE = {"float16": "bfloat16", TF32: "bfloat16"}


def share_at(points: tuple[tuple[float, float], ...], width: float) -> float:
    """Return the share of a width: between two points the line counts, beyond them the last."""
    widths, shares = zip(*points, strict=True)
    return float(np.interp(width, widths, shares))


def check_rising(points: tuple[tuple[float, float], ...]) -> None:
    """Refuse widths that do not rise.

    Raises
    ------
    ValueError
        If one is no greater than the one before.
    """
    for (width, _), (wider, _) in pairwise(points):
        if wider <= width:
            raise ValueError(f"the widths of points must rise, and {wider:g} follows {width:g}")


class Curve(Description):
    """What a kind of kernel attains of a peak, by its sizes.

    Parameters
    ----------
    share : float
        Share of the peak of flops, or of the memory bandwidth, that the largest attain.
    halves : mapping of str to float
        Of a size the value at which half of that is attained; twice of it costs as many seconds
        more as the size itself is smaller.
    start : float
        Seconds of a measurement beside those of its work: of the launch to an idle device, which
        queued kernels of a step do not wait for. They have `launch_seconds` of the device instead.
    widths : tuple of (float, float)
        Of attention, the share of that by the width of a head; without them all.
    tag, source
        As of a figure.
    """

    share: Share
    halves: dict[Size, NotNegative] = Field(default_factory=dict)
    start: NotNegative = 0.0
    widths: tuple[tuple[Positive, Positive], ...] = ()
    tag: Tag
    source: Name

    @field_validator("widths")
    @classmethod
    def _rising(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        check_rising(points)
        return points

    def check(self, what: str, sizes: Sequence[Size], *, has_widths: bool = False) -> None:
        """Refuse sizes that a kind of kernel does not have.

        Raises
        ------
        ValueError
            If there is a half of another size, or widths where there are no heads.
        """
        if other := [name for name in self.halves if name not in sizes]:
            raise ValueError(f"{what} has no size `{other[0]}`, of which `halves` has one")
        if self.widths and not has_widths:
            raise ValueError(f"{what} has no heads, of which `widths` has some")

    def attained(self, sizes: Mapping[Size, float], width: float | None = None) -> float:
        """Return the share of the peak that a kernel of some sizes attains."""
        share = self.share
        for name, half in self.halves.items():
            size = sizes[name]
            share *= size / (size + half) if size else 1.0  # of no size there is no work
        return share * share_at(self.widths, width) if self.widths and width else share


class GroupedCurves(Description):
    """What products of experts attain.

    Parameters
    ----------
    matrices : Curve
        Of rows with the matrix of each expert: forward, and the gradient of the rows.
    rows : Curve
        Of rows with other rows: the gradient of the matrices.
    """

    matrices: Curve
    rows: Curve


class AttentionCurves(Description):
    """What a kernel of attention attains.

    Parameters
    ----------
    forward, backward : Curve
        Of the peak of the flops of its products, of which backward has five for two.
    """

    forward: Curve
    backward: Curve


class Kernels(Description):
    """The kernels of a device.

    Parameters
    ----------
    products : mapping of str to Curve
        Matrix products by the type that they are computed in.
    sustained : Rate
        What products keep of that where they follow each other for long, with the card at the limit
        of its power.
    grouped : mapping of str to GroupedCurves
        Those of experts, by type.
    attention : mapping of str to AttentionCurves
        Attention by the name of its kernel, the first of which runs where none is named.
    copies, updates : Curve, optional
        Copies and casts, and updates of parameters, of the memory bandwidth.
    """

    products: dict[str, Curve]
    sustained: Rate
    grouped: dict[str, GroupedCurves] = Field(default_factory=dict)
    attention: Annotated[dict[str, AttentionCurves], Field(min_length=1)]
    copies: Curve | None = None
    updates: Curve | None = None

    @model_validator(mode="after")
    def _curves_have_sizes_of_their_kernels(self) -> Self:
        for kind in (*self.products, *self.grouped):
            if kind not in (*DTYPES, TF32):
                raise ValueError(f"no element type is called `{kind}`")
        experts = [
            curve for found in self.grouped.values() for curve in (found.matrices, found.rows)
        ]
        for curve in (*self.products.values(), *experts):
            curve.check("a product", ("m", "n", "k"))
        for kernel in self.attention.values():
            kernel.forward.check("attention", ("keys",), has_widths=True)
            kernel.backward.check("attention", ("keys",), has_widths=True)
        for moving in (self.copies, self.updates):
            if moving is not None:
                moving.check("a copy or an update", ())
        return self

    def of_product(self, dtype: str, experts: str = "") -> Curve | None:
        """Return the curve of products of a type; None where none were measured.

        `experts`: of those of experts what the rows are multiplied by: `matrices`, other `rows`.
        """
        kind = dtype if dtype in self.products else _LIKE.get(dtype, dtype)
        if not experts:
            return self.products.get(kind)
        found = self.grouped.get(kind)
        if found is None:
            return None
        return found.matrices if experts == "matrices" else found.rows

    def of_attention(self, dtype: str, *, backward: bool) -> Curve | None:
        """Return the curve of attention of a type; None where it has none."""
        if dtype not in SHORT:
            return None
        kernel = next(iter(self.attention.values()))
        return kernel.backward if backward else kernel.forward

    def with_attention_alone(self, name: str | None) -> Self | None:
        """Return one kernel of attention without all others; None where it is not among them."""
        if name not in self.attention:
            return None
        others: dict[str, Any] = {"products": {}, "grouped": {}, "copies": None, "updates": None}
        return self.with_attention(name).model_copy(update=others)

    def with_attention(self, name: str | None) -> Self:
        """Return the kernels with one kernel of attention alone, if it is among them."""
        named = self.attention.get(name or "")
        return self if named is None else self.model_copy(update={"attention": {name: named}})
