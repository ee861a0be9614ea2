"""Figures of a cluster file, each with its source.

A figure says where it is from: measured on the device, fitted to measured steps, scaled from those
of another device by a ratio, of a data sheet, or assumed, where measured steps do not tell it from
others.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)
from pydantic._internal._model_construction import ModelMetaclass

from shardwright.cost_model.efficiency.cluster_files import in_one_sentence
from shardwright.ir.errors import ClusterError

Floats = NDArray[np.float64]
_SMALLEST, _LARGEST = 1e-30, 1e30  # so that quotients and sums of seconds stay finite


def _in_range(value: float) -> float:
    if value > 0 and not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{value} is not between {_SMALLEST:g} and {_LARGEST:g}")
    return value


_Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_in_range)]
NotNegative = Annotated[_Finite, Field(ge=0)]
Positive = Annotated[_Finite, Field(gt=0)]
Share = Annotated[_Finite, Field(gt=0, le=1)]
Bytes = Annotated[int, Field(gt=0), AfterValidator(_in_range)]
Name = Annotated[str, Field(min_length=1)]

Tag = Literal["measured", "fitted", "scaled", "datasheet", "assumed"]
Library = Literal["cublas", "cublas_deterministic", "transformer_engine"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
"""Libraries that have workspaces on a device."""


class _Maker(ModelMetaclass):
    """Makes descriptions in Python: wrong ones are refused in one sentence, as those of files."""

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*arguments, **fields)
        except ValidationError as error:
            raise ClusterError(in_one_sentence(error)) from error


class Description(BaseModel, metaclass=_Maker):
    """The base of all parts of a cluster file: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def figures(self) -> tuple["Figure", ...]:
        """Its own figures."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return tuple(value for value in values if isinstance(value, Figure))


class Figure(Description):
    """A number with its source.

    Parameters
    ----------
    value : float
        The number, in the unit of the field that holds it.
    tag : str
        Whether it is measured, fitted to measured steps, scaled from another device, of a data
        sheet, or assumed.
    source : str
        Where it was measured, what it was fitted to, or from which device by which ratio.
    """

    value: NotNegative
    tag: Tag
    source: Name

    def with_value(self, value: float) -> Self:
        """Return the figure with another number."""
        return self.model_copy(update={"value": value})


class Rate(Figure):
    """A share of a peak rate that is attained, above 0 and at most 1."""

    value: Share


class PerSecond(Figure):
    """Flops or bytes in a second: above 0."""

    value: Positive


class Count(Figure):
    """A positive whole number of a data sheet."""

    value: Annotated[int, Field(gt=0)]


class Curve(Description):
    """Numbers by others, which rise.

    Parameters
    ----------
    points : tuple of (float, float)
        Pairs of both.
    tag, source
        As of a figure.
    """

    along: ClassVar[str]  # what rises
    points: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]
    tag: Tag
    source: Name

    @field_validator("points")
    @classmethod
    def _rising(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        for (size, _), (larger, _) in pairwise(points):
            if larger <= size:
                what = f"the {cls.along} of points must rise"
                raise ValueError(f"{what}, and {larger:g} follows {size:g}")
        return points


class MessageTimes(Curve):
    """Measured seconds, which do not fall, of messages by their bytes.

    Between two sizes seconds are linear in the bytes; smaller messages take as long as the smallest
    one, larger ones have the bandwidth of the largest.
    """

    along = "bytes"

    @field_validator("points")
    @classmethod
    def _not_falling(cls, points: tuple[tuple[float, float], ...]) -> Any:
        for (size, seconds), (larger, later) in pairwise(points):
            if later < seconds:
                raise ValueError(
                    f"{larger:g} bytes take {later:g} seconds, and {size:g} bytes {seconds:g}: "
                    "the seconds of points must not fall"
                )
        return points

    def seconds(self, nbytes: Floats) -> Floats:
        """Return the seconds of messages of several sizes."""
        sizes, seconds = _columns(self.points)
        return np.interp(nbytes, sizes, seconds) * np.maximum(nbytes / sizes[-1], 1.0)

    @property
    def least_per_byte(self) -> float:
        """The greatest seconds per byte that no message falls below, whatever its size."""
        return min(seconds / size for size, seconds in self.points)

    def slower_by(self, factor: float) -> Self:
        """Return the messages that take a factor of their seconds."""
        points = tuple((size, seconds * factor) for size, seconds in self.points)
        return self.model_copy(update={"points": points})


@lru_cache(maxsize=256)
def _columns(points: tuple[tuple[float, float], ...]) -> tuple[Floats, Floats]:
    sizes, seconds = np.array(points).T
    return sizes, seconds
