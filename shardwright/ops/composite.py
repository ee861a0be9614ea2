"""Operators of MindSpore that are compositions of several here."""

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from shardwright.ir.errors import ModelError, StrategyError
from shardwright.ir.graph import Node, Value
from shardwright.ir.values import wrong_value
from shardwright.operators.info import SplitCounts, operator_info
from shardwright.operators.notation import resolve
from shardwright.ops.primitive import OnAnyDevice, counts_of
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply, computed
from shardwright.tracer import Tracer, current_tracer, is_tracing


class Composition(OnAnyDevice):
    """An operator that is made of several: a subclass has `compose`."""

    in_strategy: SplitCounts | None = None
    is_pointwise: ClassVar[bool] = False  # whether all its operators are, and broadcast alike
    notation: ClassVar[str] = ""  # which dimensions are split alike; see `alike`

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin how the composition is split: for each operand the slices of each dimension.

        Each of its operators is split so that reads these operands alone, or operands of the same
        shapes; all are where they work point by point.

        Raises
        ------
        OptionError
            If the split of results is given.
        """
        if out_strategy is not None:
            raise wrong_value("out_strategy", out_strategy, "none, for a composition")
        self.in_strategy = counts_of(in_strategy)
        return self

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        """Apply the composition; outside of a trace, compute it.

        Raises
        ------
        ModelError
            If it is pinned, and none of its operators can be split so.
        """
        if not is_tracing():
            return computed(Tracer(1, {}, {}), lambda: self(*arguments, **others), {})
        if self.in_strategy is None:
            return self.compose(*arguments, **others)  # type: ignore[attr-defined]
        tracer = current_tracer()
        begin = len(tracer.nodes)
        made = self.compose(*arguments, **others)  # type: ignore[attr-defined]
        for tensor in made if isinstance(made, tuple) else (made,):
            tensor.value(tracer)  # slices are taken when they are first read
        if len(tracer.nodes) == begin and isinstance(made, Tensor):
            made = apply("identity", made)  # of an operand that stays as it is
        flat = [x for a in arguments for x in (a if isinstance(a, tuple | list) else (a,))]
        values = [item.value(tracer) for item in flat if isinstance(item, Tensor)]
        pins = self._stated(flat)._pins(tracer.nodes[begin:], values)
        if not pins:
            raise ModelError(
                f"the strategy {self.in_strategy} fits none of the operators that "
                f"`{type(self).__name__}` is made of",
                hint="leave it out: the compiler splits each of them",
            )
        tracer.pins |= pins
        return made

    def _stated(self, operands: Sequence[Any]) -> Self:
        """Return the composition with the strategies of tensors alone: a number is one slice."""
        counts = self.in_strategy or ()
        numbers = [not isinstance(item, Tensor) for item in operands]
        if len(counts) != len(operands) or not any(numbers):
            return self
        pairs = [*zip(counts, numbers, strict=True)]
        if any(number and own for own, number in pairs):
            return self
        stated = copy(self)
        stated.in_strategy = tuple(own for own, number in pairs if not number)
        return stated

    def _given(self, values: Sequence[Value]) -> dict[str, tuple[int, ...]]:
        """Return the strategy of each operand, by the name of its value.

        Raises
        ------
        ModelError
            If it does not name every dimension.
        """
        assert self.in_strategy is not None
        while len(values) > len(self.in_strategy) and not values[-1].type.shape:
            values = values[:-1]  # of scalars at the end nothing needs to be said
        shapes = tuple(value.type.shape for value in values)
        if [len(shape) for shape in shapes] != [len(counts) for counts in self.in_strategy]:
            raise ModelError(
                f"the strategy {self.in_strategy} does not fit `{type(self).__name__}`, whose "
                f"operands have the shapes {shapes}",
                hint="give one number of slices for each dimension of each tensor",
            )
        for shape, counts in zip(shapes, self.in_strategy, strict=True):
            many = any(count > size for size, count in zip(shape, counts, strict=True))
            if many and not self.is_pointwise:  # whose operators all have a strategy
                raise StrategyError(
                    f"the strategy {self.in_strategy} splits an operand of the shape {shape} of "
                    f"`{type(self).__name__}` {counts} ways",
                    hint="make at most as many slices as a dimension has elements",
                )
        if alike := self.alike(shapes):
            self._check_alike(alike, shapes)
        names = [value.name for value in values]
        given = dict(zip(names, self.in_strategy, strict=True))
        pairs = zip(names, self.in_strategy, strict=True)
        in_two_ways = {name for name, counts in pairs if given[name] != counts}
        return {name: counts for name, counts in given.items() if name not in in_two_ways}

    def alike(self, shapes: Sequence[tuple[int, ...]]) -> str:
        """Return which dimensions are split alike, in the notation of rules; nothing if any may."""
        return self.notation

    def _check_alike(self, notation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Refuse a strategy that splits a dimension of two operands in different ways.

        Raises
        ------
        StrategyError
            If it does, or splits one that is whole.
        """
        rule = resolve(notation, shapes)
        parts: dict[str, int] = {}
        for dims, counts in zip(rule.operands, self.in_strategy or (), strict=True):
            for factors, count in zip(dims, counts, strict=True):
                whole = count > 1 and any(rule.kinds[factor] == "whole" for factor in factors)
                if whole or any(parts.setdefault(factor, count) != count for factor in factors):
                    raise StrategyError(
                        f"`{type(self).__name__}` cannot be split by {self.in_strategy}: its "
                        f"operands are {shapes}, with the dimensions `{notation}`",
                        hint="give those of one name the same slices, and those with `^` one",
                    )

    def _pins(self, nodes: Sequence[Node], values: Sequence[Value]) -> dict[str, SplitCounts]:
        """Return the strategies of the operators that read operands of the composition alone.

        One whose operands have the same shapes as those of the composition has its strategy, and
        one that works point by point on an operand of the composition has that of the operand.
        """
        assert self.in_strategy is not None
        tracer, given = current_tracer(), self._given(values)
        results = (value for node in tracer.nodes for value in node.results)
        parameters = (parameter.value for parameter in tracer.parameters)
        known = {value.name: value for value in (*tracer.inputs, *parameters, *results)}
        shapes = [value.type.shape for value in values]
        if self.is_pointwise:
            counts = self._counts(shapes)
            shapes_of = {n.name: [known[name].type.shape for name in n.operands] for n in nodes}
            return {
                name: tuple(_aligned(shape, counts) for shape in operands)
                for name, operands in shapes_of.items()
                if operands
            }
        pins: dict[str, SplitCounts] = {}
        for node in nodes:
            if node.operands and set(node.operands) <= given.keys():
                pins[node.name] = tuple(given[name] for name in node.operands)
            elif [known[name].type.shape for name in node.operands] == shapes:
                pins[node.name] = self.in_strategy
            elif own := given.keys() & set(node.operands):
                types = [known[name].type for name in node.operands]
                dims = operator_info(node.operator, types, node.attributes).rule.operands
                if all(factors == dims[0] for factors in dims):
                    pins[node.name] = (given[min(own)],) * len(dims)
        return pins

    def _counts(self, shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
        """Return the size and slices of each dimension of a pointwise result, the last one first.

        Raises
        ------
        StrategyError
            If two operands are split in different ways, or a dimension is that is repeated.
        """
        assert self.in_strategy is not None
        sizes = np.broadcast_shapes(*shapes)[::-1]
        found = [1] * len(sizes)
        for first in (True, False):
            for shape, counts in zip(shapes, self.in_strategy, strict=True):
                for d, (size, count) in enumerate(zip(shape[::-1], counts[::-1], strict=True)):
                    whole = size == sizes[d]
                    if first and whole:
                        found[d] = max(found[d], count)
                    elif not first and count != (found[d] if whole else 1):
                        raise StrategyError(
                            f"the strategy {self.in_strategy} splits the operands of "
                            f"`{type(self).__name__}`, {tuple(shapes)}, in different ways",
                            hint="split a dimension alike in all operands that have it",
                        )
        return list(zip(sizes, found, strict=True))


def _aligned(shape: tuple[int, ...], counts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the slices of an operand of a pointwise operator; what is repeated is whole."""
    pairs = zip(shape[::-1], counts, strict=False)
    return tuple(count if size == whole else 1 for size, (whole, count) in pairs)[::-1]


class ExtremumWithValue(Composition):
    """Where the greatest or least element stands along one dimension, and the element.

    Parameters
    ----------
    axis : int
        The dimension.
    keep_dims : bool
        Whether it stays, with size one.
    """

    position: str
    value: str

    def __init__(self, axis: int = 0, keep_dims: bool = False) -> None:
        self.axis, self.keep_dims = axis, keep_dims

    def compose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions and the elements."""
        how: dict[str, Any] = {"axis": self.axis}
        value = apply(self.value, x, keep_dims=self.keep_dims, **how)
        position = apply(self.position, x, **how)
        if self.keep_dims:
            position = apply("expand_dims", position, axis=self.axis % x.ndim)
        return position, value


class ArgMaxWithValue(ExtremumWithValue):
    """Where the greatest element stands along one dimension, and the element."""

    position, value = "argmax", "reduce_max"


class ArgMinWithValue(ExtremumWithValue):
    """Where the least element stands along one dimension, and the element."""

    position, value = "argmin", "reduce_min"


class Assign(Composition):
    """Give a parameter that is not trained another value, at the end of the step."""

    def compose(self, variable: Parameter, value: Tensor) -> Tensor:
        """Return the new value.

        Raises
        ------
        ModelError
            If the parameter is trained, or updated twice.
        """
        tracer = current_tracer()
        with tracer.reading_as(variable.dtype):  # whatever type the cell computes in
            following = self.following(variable, value.of_real_type(variable.dtype))
        name = variable.value(tracer).name
        if variable.requires_grad and tracer.training and tracer.only_rank is None:
            raise assigned_and_trained(name)
        if any(name == other for other, _ in tracer.updates):
            raise ModelError(f"the parameter `{name}` is assigned to twice in one step")
        tracer.updates.append((name, following.value(tracer).name))
        return following

    def following(self, variable: Parameter, value: Tensor) -> Tensor:
        """Return the new value of the parameter."""
        return apply("identity", value)


def assigned_and_trained(name: str) -> ModelError:
    """Return the error for a parameter that two rules update."""
    return ModelError(
        f"the parameter `{name}` is assigned to, and trained",
        hint="make it with `requires_grad=False`",
    )


class AssignAdd(Assign):
    """Add to a parameter that is not trained, at the end of the step."""

    def following(self, variable: Parameter, value: Tensor) -> Tensor:
        """Return the sum."""
        return variable + value


class AssignSub(Assign):
    """Subtract from a parameter that is not trained, at the end of the step."""

    def following(self, variable: Parameter, value: Tensor) -> Tensor:
        """Return the difference."""
        return variable - value


class DropoutDoMask(Composition):
    """Set the elements outside a mask to zero, and scale the rest to keep the mean."""

    is_pointwise = True

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin the slices of the tensor; the mask has the same, and the probability none."""
        counts = counts_of(in_strategy)
        if not counts:
            return super().shard(counts, out_strategy)
        whole = (counts[0], counts[0], ())
        if counts != whole[: len(counts)]:
            raise wrong_value("in_strategy", counts, f"{whole}", "the mask is split as the tensor")
        return super().shard(whole, out_strategy)

    def compose(self, x: Tensor, mask: Tensor, keep_prob: float | Tensor) -> Tensor:
        """Mask and scale; the mask is true where an element is kept."""
        masked = apply("mask", x, mask)
        if isinstance(keep_prob, Tensor):
            return masked / keep_prob
        return masked * (1.0 / keep_prob)


# Functions of tensors alone


class AddN(Composition):
    """The sum of several tensors."""

    is_pointwise = True

    def compose(self, x: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
        """Add up."""
        total = x[0]
        for item in x[1:]:
            total = total + item
        return total


class MaskedFill(Composition):
    """A tensor with a value where a mask is true."""

    is_pointwise = True

    def compose(self, x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
        """Fill."""
        if not isinstance(value, Tensor):
            value = apply("fill", shape=(), value=float(value), dtype=x.dtype)
        return apply("where", mask, value, x)


class Lerp(Composition):
    """``start + weight (end - start)``."""

    is_pointwise = True

    def compose(self, start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        """Mix."""
        return start + (end - start) * weight


class Addcmul(Composition):
    """``x + value a b``."""

    is_pointwise = True

    def compose(self, x: Tensor, a: Tensor, b: Tensor, value: float = 1.0) -> Tensor:
        """Multiply and add."""
        return x + a * b * value


class Hypot(Composition):
    """The root of the sum of two squares."""

    is_pointwise = True

    def compose(self, a: Tensor, b: Tensor) -> Tensor:
        """Square, add, take the root."""
        return apply("sqrt", apply("square", a) + apply("square", b))


class DivMod(Composition):
    """A quotient, rounded if asked: ``floor`` or ``trunc``."""

    def compose(self, x: Tensor, y: Tensor, rounding_mode: str | None = None) -> Tensor:
        """Divide."""
        if rounding_mode not in (None, "floor", "trunc"):
            raise ModelError(f"a quotient is rounded by `{rounding_mode}`, use `floor` or `trunc`")
        if rounding_mode == "floor":
            return apply("floor_div", x, y)
        return x / y if rounding_mode is None else apply("trunc", x / y)


class MulNoNan(Composition):
    """A product; zero where the second is zero, whatever the first."""

    is_pointwise = True

    def compose(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply where there is something to."""
        return apply("mask", x, apply("not_equal", y, 0.0)) * y


class L2Loss(Composition):
    """Half the sum of the squares."""

    def compose(self, x: Tensor) -> Tensor:
        """Square and add up."""
        return apply("square", x).sum() * 0.5


class SquareSumAll(Composition):
    """The sums of the squares of two tensors."""

    def compose(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Square and add up."""
        return apply("square", x).sum(), apply("square", y).sum()


class KLDivLoss(Composition):
    """Sums of ``labels (log(labels) - logits)``, of logits that are logarithms.

    Parameters
    ----------
    reduction : str
        ``mean``, ``sum``, ``batchmean`` (the sum over the first size), or ``none``.
    """

    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "batchmean", "none"):
            raise ModelError(f"a divergence is reduced by `{reduction}`")
        self.reduction = reduction

    def compose(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compare; labels are positive."""
        terms = labels * (apply("log", labels) - logits)
        if self.reduction == "none":
            return terms
        if self.reduction == "mean":
            return terms.mean()
        return terms.sum() * (1.0 / logits.shape[0] if self.reduction == "batchmean" else 1.0)


class Swiglu(Composition):
    """The silu of the first half of a dimension, times the second half."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def compose(self, x: Tensor) -> Tensor:
        """Split, activate, multiply."""
        size = x.shape[self.dim]
        if size % 2:
            raise ModelError(f"a dimension of size {size} has no halves")
        index: list[Any] = [slice(None)] * x.ndim
        halves = []
        for part in (slice(0, size // 2), slice(size // 2, size)):
            index[self.dim] = part
            halves.append(x[tuple(index)])
        return apply("silu", halves[0]) * halves[1]
