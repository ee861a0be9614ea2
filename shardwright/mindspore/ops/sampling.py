"""Random numbers, masks and classes, other ones in each step."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardwright.ir.errors import ModelError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SHARE,
    check_flag,
    wrong_value,
)
from shardwright.mindspore.ops.arrays import TopK
from shardwright.ops.arrays import Made
from shardwright.ops.composite import Composition
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer


class UniformReal(Made):
    """Numbers from 0 to 1 of a shape, other ones in each step.

    Parameters
    ----------
    seed, seed2 : int
        Two operators with other seeds draw other numbers; without seeds each draws its own.
    """

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        for name, number in (("seed", seed), ("seed2", seed2)):
            NOT_NEGATIVE_INTEGER.check(name, number)
        self._key = f"uniform {seed} {seed2}" if seed or seed2 else ""

    def compose(self, shape: Sequence[int]) -> Tensor:
        """Draw."""
        return uniform(self._key, tuple(shape))


def uniform(key: str, shape: tuple[int, ...]) -> Tensor:
    """Return numbers from 0 to 1 that depend on the step and a key; without one on their place."""
    tracer = current_tracer()
    key = key or tracer.unique_name("uniform", numbered=True)
    step = TracedTensor(tracer.step())
    like = apply("fill", shape=shape, value=0.0, dtype="float32")
    return apply("random_uniform", like, step, key=f"{tracer.scope} {key}")


class DropoutGenMask:
    """A mask that is true with a probability, as `DropoutDoMask` takes it.

    Parameters
    ----------
    Seed0, Seed1 : int
        Two operators with other seeds make other masks; without seeds each makes its own.
    """

    def __init__(self, Seed0: int = 0, Seed1: int = 0) -> None:  # noqa: N803
        self._draw = UniformReal(Seed0, Seed1)

    def __call__(self, shape: Sequence[int], keep_prob: float | Tensor) -> Tensor:
        """Draw."""
        if not isinstance(keep_prob, Tensor):
            SHARE.check("keep_prob", keep_prob)
        return apply("less", self._draw(shape), keep_prob)


class RandomChoiceWithMask(Composition):
    """Places of true elements, drawn without repetition; returns which of them there are, too.

    Where there are fewer true elements, the places behind them are 0, and not there.

    Parameters
    ----------
    count : int
        Number of places.
    seed, seed2 : int
        Two operators with other seeds draw other places; without seeds each draws its own.
    """

    def __init__(self, count: int = 256, seed: int = 0, seed2: int = 0) -> None:
        POSITIVE_INTEGER.check("count", count)
        self.count, self._draw = count, UniformReal(seed, seed2)

    def compose(self, input_x: Tensor) -> tuple[Tensor, Tensor]:
        """Draw.

        Raises
        ------
        ModelError
            If the elements are no truth values.
        """
        if input_x.dtype != "bool":
            raise ModelError(f"`input_x` has the element type {input_x.dtype}, expected bool")
        least = min(self.count, input_x.size)
        flat = input_x.astype("float32").reshape((input_x.size,))
        order, places = TopK()(flat * (self._draw((input_x.size,)) + 1.0), least)
        if least < self.count:
            rest = apply("fill", shape=(self.count - least,), value=0.0, dtype="float32")
            order = apply("concat", order, rest, axis=0)
            places = apply("concat", places, rest.astype("int32"), axis=0)
        found = order >= 1.0
        places = places * found.astype("int32")
        strides = [prod(input_x.shape[d + 1 :]) for d in range(input_x.ndim)]
        each = [places // s % n for s, n in zip(strides, input_x.shape, strict=True)]
        return apply("stack", *each, axis=1), found


class UniformCandidateSampler(Composition):
    """Classes drawn for a loss over some of them, and how often each is expected.

    Parameters
    ----------
    num_true : int
        Number of true classes of each sample.
    num_sampled : int
        Number of classes drawn.
    unique : bool
        Whether no class is drawn twice.
    range_max : int
        Number of classes.
    seed : int
        Two operators with other seeds draw other classes; without one each draws its own.
    remove_accidental_hits : bool
        Whether true classes of any sample are left out. Where too few others are left to draw, true
        ones follow them.
    """

    def __init__(
        self,
        num_true: int,
        num_sampled: int,
        unique: bool,
        range_max: int,
        seed: int = 0,
        remove_accidental_hits: bool = False,
    ) -> None:
        for name, number in (
            ("num_true", num_true),
            ("num_sampled", num_sampled),
            ("range_max", range_max),
        ):
            POSITIVE_INTEGER.check(name, number)
        NOT_NEGATIVE_INTEGER.check("seed", seed)
        check_flag("unique", unique)
        check_flag("remove_accidental_hits", remove_accidental_hits)
        if unique and num_sampled > range_max:
            raise wrong_value("num_sampled", num_sampled, f"at most `range_max`, {range_max}")
        self.num_true, self.num_sampled, self.unique = num_true, num_sampled, unique
        self.range_max, self._key = range_max, f"classes {seed}" if seed else ""
        self.removes_hits = remove_accidental_hits

    def compose(self, true_classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the classes drawn, and what is expected of the true ones and of them.

        Raises
        ------
        ModelError
            If the samples have another number of true classes.
        """
        if true_classes.ndim != 2 or true_classes.shape[1] != self.num_true:
            raise ModelError(
                f"`true_classes` has the shape {true_classes.shape}, expected (samples, "
                f"{self.num_true})"
            )
        hits, left = self._hits(true_classes)
        if self.unique:
            share = uniform(self._key, (self.range_max,))
            _, drawn = TopK()(share if hits is None else share - hits, self.num_sampled)
        else:
            share = uniform(self._key, (self.num_sampled,))
            drawn = apply("floor", share * left)
            if hits is not None:
                numbers = Tensor(np.arange(self.range_max), "float32") / float(self.range_max)
                _, order = TopK()(0.0 - numbers - hits, self.range_max)
                drawn = apply("gather", order, drawn.astype("int32"), axis=0)
        expected = self.num_sampled / left
        zeros = true_classes.astype("float32") * 0.0
        sampled = drawn.astype("int32").astype(true_classes.dtype)
        return sampled, zeros + expected, drawn.astype("float32") * 0.0 + expected

    def _hits(self, true_classes: Tensor) -> tuple[Tensor | None, Any]:
        """Return 1 for each class that is left out and 0 for the others, and how many these are."""
        if not self.removes_hits:
            return None, float(self.range_max)
        places = true_classes.reshape((-1,)).astype("int32")
        ones = places.astype("float32") * 0.0 + 1.0
        found = apply("unsorted_segment_sum", ones, places, segments=self.range_max)
        hits = (found > 0.0).astype("float32")
        left = float(self.range_max) - hits.sum()
        return hits, apply("maximum", left, Tensor(1.0, "float32"))


__all__ = ["DropoutGenMask", "RandomChoiceWithMask", "UniformCandidateSampler", "UniformReal"]
