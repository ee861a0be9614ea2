"""Random numbers, masks and classes, other ones in each step."""

from collections.abc import Sequence
from copy import copy
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from shardwright.ir.errors import ModelError, StrategyError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    POSITIVE_INTEGER,
    SHARE,
    check_flag,
    wrong_value,
)
from shardwright.mindspore.context import (
    ParallelMode,
    get_auto_parallel_context,
    has_parallel_setting,
)
from shardwright.mindspore.ops.arrays import TopK
from shardwright.operators.info import SplitCounts
from shardwright.ops.arrays import Made
from shardwright.ops.composite import Composition
from shardwright.ops.primitive import counts_of, record_strategy
from shardwright.tensor import Tensor, TracedTensor, apply, apply_all
from shardwright.tracer import current_tracer


def _seeds(**seeds: int) -> tuple[int, ...]:
    """Return seeds, checked."""
    for name, number in seeds.items():
        NOT_NEGATIVE_INTEGER.check(name, number)
    return tuple(seeds.values())


class _Drawn(Made):
    """The base of operators that draw numbers of a shape, other ones in each step.

    A slice is drawn as a tensor of its own: slice ``i`` of those that the strategy makes has the
    numbers of ``seed + i`` and ``seed2 + i``. Without a strategy `semi_auto_parallel` splits the
    first dimension among all devices, where they divide it.

    Parameters
    ----------
    seed, seed2 : int
        Two operators with other seeds draw other numbers; without seeds each draws its own.
    """

    operator: ClassVar[str]

    def __init__(self, seed: int = 0, seed2: int = 0) -> None:
        self._seeds = _seeds(seed=seed, seed2=seed2)

    def __call__(self, shape: Sequence[int], *operands: Tensor) -> Tensor:
        """Draw."""
        pinned = copy(self)
        pinned.in_strategy = self.in_strategy or _by_devices(tuple(shape))
        made: Tensor = super(_Drawn, pinned).__call__(tuple(shape), *operands)
        return made

    def drawn(self, like: Tensor) -> Tensor:
        """Return a number for each element of a tensor."""
        blocks = self.in_strategy[0] if self.in_strategy else ()
        if len(blocks) != like.ndim or any(n % c for n, c in zip(like.shape, blocks, strict=True)):
            blocks = ()  # which is refused where the strategy is kept
        return drawn(like, self._seeds, blocks, self.operator)


def _by_devices(shape: tuple[int, ...]) -> SplitCounts | None:
    """Return the slices of a tensor that `semi_auto_parallel` draws where no strategy is given."""
    get = get_auto_parallel_context
    semi = get("parallel_mode") == ParallelMode.SEMI_AUTO_PARALLEL
    if not semi or not shape or not has_parallel_setting("device_num"):
        return None
    devices = get("device_num") // get("pipeline_stages")
    return None if shape[0] % devices else ((devices, *(1,) * (len(shape) - 1)),)


def drawn(
    like: Tensor,
    seeds: tuple[int, ...],
    blocks: tuple[int, ...] = (),
    operator: str = "random_uniform",
) -> Tensor:
    """Return numbers that depend on the step, and on the seeds or on their place in the program.

    Both seeds grow by one from block to block: their difference names the stream.
    """
    tracer = current_tracer()
    step = TracedTensor(tracer.step())
    key = f"{operator} {seeds[1] - seeds[0]}" if any(seeds) else ""
    key = key or tracer.unique_name(operator, numbered=True)
    how: dict[str, Any] = {"seed": seeds[0], "key": f"{tracer.scope} {key}", "blocks": blocks}
    made = apply_all(operator, like, step, **how)
    record_strategy(made, [like, step], (blocks, ()) if blocks else None, None)
    return made[0]


class UniformReal(_Drawn):
    """Numbers from 0 to 1 of a shape; see `_Drawn`."""

    operator = "random_uniform"

    def compose(self, shape: tuple[int, ...]) -> Tensor:
        """Draw."""
        return self.drawn(apply("fill", shape=shape, value=0.0, dtype="float32"))


class Gamma(_Drawn):
    """Numbers of gamma distributions with a shape parameter and a scale; see `_Drawn`."""

    operator = "random_gamma"

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin the slices of the shape; those of both parameters are whole.

        Raises
        ------
        StrategyError
            If they are not.
        """
        counts = counts_of(in_strategy)
        if counts is not None and (len(counts) != 3 or prod(counts[1] + counts[2]) != 1):
            raise StrategyError(
                f"the strategy {counts} of `Gamma` splits `alpha` or `beta`",
                hint="give the slices of the shape, and 1 for each dimension of the others",
            )
        return super().shard(counts and counts[:1], out_strategy)

    def compose(self, shape: tuple[int, ...], alpha: Tensor, beta: Tensor) -> Tensor:
        """Draw, and scale: the shape is broadcast with those of the parameters.

        Raises
        ------
        ModelError
            If a parameter is no float32.
        """
        for name, tensor in (("alpha", alpha), ("beta", beta)):
            if tensor.dtype != "float32":
                raise ModelError(f"`{name}` has the element type {tensor.dtype}, expected float32")
        whole = np.broadcast_shapes(shape, alpha.shape, beta.shape)
        return self.drawn(apply("broadcast_to", alpha, shape=whole)) * beta


def uniform(shape: Sequence[int], seeds: tuple[int, ...]) -> Tensor:
    """Return numbers from 0 to 1, which no strategy divides."""
    return drawn(apply("fill", shape=tuple(shape), value=0.0, dtype="float32"), seeds)


class DropoutGenMask:
    """A mask that is true with a probability, as `DropoutDoMask` takes it.

    Parameters
    ----------
    Seed0, Seed1 : int
        Two operators with other seeds make other masks; without seeds each makes its own.
    """

    def __init__(self, Seed0: int = 0, Seed1: int = 0) -> None:  # noqa: N803
        self._seeds = _seeds(Seed0=Seed0, Seed1=Seed1)

    def __call__(self, shape: Sequence[int], keep_prob: float | Tensor) -> Tensor:
        """Draw."""
        if not isinstance(keep_prob, Tensor):
            SHARE.check("keep_prob", keep_prob)
        return apply("less", uniform(shape, self._seeds), keep_prob)


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
        self.count, self._seeds = count, _seeds(seed=seed, seed2=seed2)

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
        order, places = TopK()(flat * (uniform((input_x.size,), self._seeds) + 1.0), least)
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
        check_flag("unique", unique)
        check_flag("remove_accidental_hits", remove_accidental_hits)
        if unique and num_sampled > range_max:
            raise wrong_value("num_sampled", num_sampled, f"at most `range_max`, {range_max}")
        self.num_true, self.num_sampled, self.unique = num_true, num_sampled, unique
        self.range_max, self._seeds = range_max, (*_seeds(seed=seed), 0)
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
            share = uniform((self.range_max,), self._seeds)
            _, drawn = TopK()(share if hits is None else share - hits, self.num_sampled)
        else:
            share = uniform((self.num_sampled,), self._seeds)
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


__all__ = [
    "DropoutGenMask",
    "Gamma",
    "RandomChoiceWithMask",
    "UniformCandidateSampler",
    "UniformReal",
]
