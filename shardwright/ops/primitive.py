"""Primitives: operators as objects that carry attributes and a strategy, and as functions.

Both come from the operator registry: ``ops.ReduceSum`` and ``ops.reduce_sum`` are the operator
``reduce_sum``. Only the order of arguments that are no tensors is MindSpore's own, and said here.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.values import (
    NOT_NEGATIVE_INTEGER,
    check_choice,
    check_flag,
    check_split_counts,
    check_type,
    wrong_value,
)
from shardwright.operators.info import SplitCounts, operator_class, operator_info
from shardwright.tensor import Operand, Tensor, apply_all
from shardwright.tracer import current_tracer, is_tracing

# Arguments of a call that are attributes of the operator, in order; all others are operands.
_CALL_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "broadcast_to": ("shape",),
    "cast": ("dtype",),
    "cumprod": ("axis",),
    "cumsum": ("axis",),
    "expand_dims": ("axis",),
    "pow": ("exponent",),
    "reduce_all": ("axis",),
    "reduce_any": ("axis",),
    "reduce_max": ("axis",),
    "reduce_mean": ("axis",),
    "reduce_min": ("axis",),
    "reduce_prod": ("axis",),
    "reduce_sum": ("axis",),
    "reshape": ("shape",),
    "slice": ("begin", "size"),
    "tile": ("multiples",),
    "transpose": ("permutation",),
}


_TARGETS = ("CPU", "GPU", "Ascend", "Device", "")


class OnAnyDevice:
    """What scripts say of the device of an operator, which is that of the program."""

    def set_device(self, device_target: str) -> Self:
        """Check the name of a device: programs run on this machine's processors, whatever it is.

        Parameters
        ----------
        device_target : str
            ``CPU``, ``GPU``, ``Ascend``, ``Device`` (that of the context), or empty.
        """
        check_choice("device_target", device_target, _TARGETS)
        return self

    def add_prim_attr(self, name: str, value: object) -> Self:
        """Check an attribute of MindSpore's compiler; those that change programs are refused.

        Parameters
        ----------
        name : str
            ``primitive_target``, which is what `set_device` sets; ``parameter_start``, which
            marks an operator for MindSpore's pipelines: here stages are found without it; or
            ``cross_batch``, a reduction over the batches of all ranks, as every one is here.
        value : object
            As for `set_device`; 0 and True for the others.
        """
        check_choice("name", name, ("primitive_target", "parameter_start", "cross_batch"))
        if name == "cross_batch":
            if value is not True:
                raise wrong_value("value", value, "True: ranks have parts of one batch")
            return self
        if name == "parameter_start":
            if value != 0 or isinstance(value, bool):
                raise wrong_value("value", value, "0")
            return self
        check_choice("value", value, _TARGETS)
        return self


class Primitive(OnAnyDevice):
    """An operator with attributes, to be applied to tensors.

    Parameters
    ----------
    *arguments, **attributes
        Attributes of the operator, by position or by name.
    """

    operator: ClassVar[str]

    def __init__(self, *arguments: Attribute, **attributes: Attribute) -> None:
        names = _constructor_attributes(self.operator)
        self.attributes = _bound(self.operator, arguments, names) | attributes
        self.in_strategy: SplitCounts | None = None
        self.out_strategy: SplitCounts | None = None
        self._recomputed = False
        self._stage: int | None = None

    def __repr__(self) -> str:
        attributes = "".join(f" {name}={value}" for name, value in self.attributes.items())
        pinned = f" shard({self.in_strategy})" if self.in_strategy else ""
        return f"<{type(self).__name__}{attributes}{pinned}>"

    def shard(
        self, in_strategy: SplitCounts | None = None, out_strategy: SplitCounts | None = None
    ) -> Self:
        """Pin how the operator is split: for each tensor the slices of each dimension.

        Layouts made by `parallel.Layout` stand for their numbers of slices.
        """
        self.in_strategy = counts_of(in_strategy)
        self.out_strategy = counts_of(out_strategy)
        return self

    def recompute(self, mode: bool = True) -> Self:
        """Compute the operator again for the gradient, instead of saving its result."""
        check_flag("mode", mode)
        self._recomputed = mode
        return self

    def set_stage(self, stage: int) -> Self:
        """Put the operator in a pipeline stage."""
        NOT_NEGATIVE_INTEGER.check("stage", stage)
        self._stage = stage
        return self

    def _pinned(
        self, results: tuple[Tensor, ...], operands: Sequence[Operand]
    ) -> tuple[Tensor, ...]:
        """Keep the strategy; results whose slices are given, too, are moved to them."""
        given = self.in_strategy is not None and self.out_strategy is not None
        if not given or not is_tracing() or self._leaves(operands):
            record_strategy(results, operands, self.in_strategy, self.out_strategy)
            return results
        record_strategy(results, operands, self.in_strategy, None)
        assert self.out_strategy is not None
        if len(self.out_strategy) != len(results):
            raise wrong_value("out_strategy", self.out_strategy, f"{len(results)} results")
        moved = []
        for result, counts in zip(results, self.out_strategy, strict=True):
            same = apply_all("identity", result)
            record_strategy(same, [result], (counts,), None)
            moved.append(same[0])
        return tuple(moved)

    def _leaves(self, operands: Sequence[Operand]) -> bool:
        """Return whether the strategy of the operands leaves the results split as they should."""
        assert self.in_strategy is not None
        if not all(isinstance(item, Tensor) for item in operands):
            return False
        types = [item.type for item in operands if isinstance(item, Tensor)]
        if tuple(map(len, self.in_strategy)) != tuple(kind.rank for kind in types):
            return True  # which is refused where it is kept
        attributes = {name: _plain(value) for name, value in self.attributes.items()}
        rule = operator_info(self.operator, types, attributes).rule
        parts: dict[str, int] = {}
        for dims, counts in zip(rule.operands, self.in_strategy, strict=True):
            for factors, count in zip(dims, counts, strict=True):
                if len(factors) > 1 and count > 1:
                    return False
                parts.update({factor: count for factor in factors})
        left = tuple(
            tuple(prod(parts.get(factor, 1) for factor in factors) for factors in dims)
            for dims in rule.results
        )
        return left == self.out_strategy

    def __call__(self, *arguments: Any) -> Any:
        """Apply the operator; one tensor, or a tuple where it has several results."""
        operands, rest = split_arguments(self.operator, arguments)
        names = _CALL_ATTRIBUTES.get(self.operator, ())
        attributes = self.attributes | _bound(self.operator, rest, names)
        begin = len(current_tracer().nodes) if is_tracing() else 0
        results = _apply(self.operator, operands, attributes)
        results = self._pinned(results, operands)
        if self._recomputed and is_tracing():
            current_tracer().recompute(begin, ())
        if self._stage is not None and is_tracing():
            current_tracer().place(begin, self._stage)
        return results[0] if len(results) == 1 else results


def split_arguments(operator: str, arguments: Sequence[Any]) -> tuple[list[Operand], list[Any]]:
    """Return the operands, with tuples of tensors taken apart, and the other arguments.

    Numbers are operands of an operator without attributes: ``add(x, 2)``.
    """
    flat: list[Any] = []
    for argument in arguments:
        several = isinstance(argument, (tuple, list)) and bool(argument)
        tensors = several and all(isinstance(item, Tensor) for item in argument)
        flat.extend(argument if tensors else [argument])
    if not operator_class(operator).defaults:
        return flat, []
    operands: list[Operand] = [item for item in flat if isinstance(item, (Tensor, np.ndarray))]
    return operands, [item for item in flat if not isinstance(item, (Tensor, np.ndarray))]


def record_strategy(
    results: Sequence[Tensor],
    operands: Sequence[Operand],
    in_strategy: SplitCounts | None,
    out_strategy: SplitCounts | None,
) -> None:
    """Keep the strategy of the node that made `results`, if one was asked for.

    Raises
    ------
    ModelError
        If it does not name every dimension of every tensor.
    """
    if (in_strategy is None and out_strategy is None) or not is_tracing():
        return
    tracer = current_tracer()
    node = results[0].value(tracer).name
    shapes = [item.shape if isinstance(item, Tensor) else () for item in operands]
    if in_strategy is not None:
        _check_strategy(node, "operands", in_strategy, shapes)
        tracer.pins[node] = in_strategy
    if out_strategy is not None:
        _check_strategy(node, "results", out_strategy, [result.shape for result in results])
        tracer.result_pins[node] = out_strategy


def _check_strategy(
    node: str, what: str, strategy: SplitCounts, shapes: Sequence[tuple[int, ...]]
) -> None:
    if tuple(map(len, strategy)) != tuple(map(len, shapes)):
        raise ModelError(
            f"the strategy {strategy} does not fit `{node}`, whose {what} have the shapes "
            f"{tuple(shapes)}",
            hint="give one number of slices for each dimension of each tensor",
        )


def counts_of(strategy: Any) -> SplitCounts | None:
    """Return a strategy as plain numbers; a layout says itself how many slices it makes."""
    if strategy is None:
        return None
    counts = strategy
    if isinstance(strategy, tuple | list):
        counts = tuple(getattr(item, "split_counts", item) for item in strategy)
    check_split_counts("an operator", counts)
    return tuple(map(tuple, counts))


def _bound(
    operator: str, arguments: Sequence[Attribute], names: Sequence[str]
) -> dict[str, Attribute]:
    if len(arguments) > len(names):
        raise ModelError(
            f"`{operator}` is given {len(arguments)} arguments that are no tensors, it takes "
            f"{len(names)}: {tuple(names)}"
        )
    return dict(zip(names, map(_plain, arguments), strict=False))


def _plain(argument: Any) -> Attribute:
    return tuple(map(_plain, argument)) if isinstance(argument, (list, tuple)) else argument


def _constructor_attributes(operator: str) -> tuple[str, ...]:
    later = _CALL_ATTRIBUTES.get(operator, ())
    return tuple(name for name in operator_class(operator).defaults if name not in later)


def _apply(
    operator: str, operands: Sequence[Operand], attributes: Mapping[str, Attribute]
) -> tuple[Tensor, ...]:
    attributes = {name: _plain(attribute) for name, attribute in attributes.items()}
    return apply_all(operator, *operands, **attributes)


class Gather(Primitive):
    """Slices along an axis, by index; rows of a table: ``[v, e...], [i...] -> [i..., e...]``."""

    operator = "gather"

    def __call__(self, input_params: Tensor, input_indices: Tensor, axis: int = 0) -> Tensor:
        """Look up."""
        self.attributes["axis"] = axis
        return super().__call__(input_params, input_indices)


class OneHot(Primitive):
    """For each index a vector that is one at the index and zero elsewhere."""

    operator = "one_hot"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        check_type("axis", axis, int)
        self.axis = axis

    def shard(
        self, in_strategy: SplitCounts | None = None, out_strategy: SplitCounts | None = None
    ) -> Self:
        """Pin how the vectors are split, as MindSpore says it: those of the result come first.

        Raises
        ------
        OptionError
            If the slices of the result are given twice, or those of a value are not empty.
        """
        counts = counts_of(in_strategy)
        if counts is not None and any(counts[1:]):
            raise wrong_value("in_strategy", counts, "`()` for both values, as `((8, 1), (), ())`")
        if counts and out_strategy is not None:
            raise wrong_value("out_strategy", out_strategy, "none: `in_strategy` has its slices")
        super().shard(None, counts[:1] if counts else out_strategy)
        return self

    def __call__(
        self,
        indices: Tensor,
        depth: int,
        on_value: float | Tensor = 1.0,
        off_value: float | Tensor = 0.0,
    ) -> Tensor:
        """Make the vectors, of two values.

        Raises
        ------
        ModelError
            If there is no such dimension, or a strategy has not one number for each.
        """
        if not -1 <= self.axis <= indices.ndim:
            raise ModelError(
                f"`axis` of `one_hot` is {self.axis}, expected -1 to {indices.ndim} for indices of "
                f"{indices.ndim} dimensions"
            )
        self.attributes["depth"] = depth
        asked, last = self.out_strategy, self.axis in (-1, indices.ndim)
        if asked is not None and len(asked[0]) == indices.ndim + 1 and not last:
            counts = asked[0]
            moved = (*counts[: self.axis], *counts[self.axis + 1 :], counts[self.axis])
            self.out_strategy = (moved,)
        try:
            made: Tensor = super().__call__(indices)
        finally:
            self.out_strategy = asked
        on, off = _known(on_value), _known(off_value)
        if (on, off) != (1.0, 0.0):
            made = made * (on_value - off_value) + off_value
        if last:
            return made
        order = (*range(self.axis), indices.ndim, *range(self.axis, indices.ndim))
        turned: Tensor = apply_all("transpose", made, permutation=order)[0]
        return turned


def _known(item: float | Tensor) -> float | None:
    """Return a number; None for one that is computed in the program."""
    if isinstance(item, Tensor):
        return float(item.asnumpy()) if item.array is not None else None
    return float(item)


# From names to operators


def primitive_class(name: str, operator: str) -> type[Primitive]:
    """Return the class called `name` for an operator."""
    doc = operator_class(operator).__doc__
    return type(name, (Primitive,), {"operator": operator, "__doc__": doc, "__module__": __name__})


def primitive_function(name: str, operator: str) -> Callable[..., Any]:
    """Return the function called `name` for an operator: tensors first, then attributes."""
    names = _CALL_ATTRIBUTES.get(operator, ()) + _constructor_attributes(operator)

    def function(*arguments: Any, **attributes: Attribute) -> Any:
        operands, rest = split_arguments(operator, arguments)
        results = _apply(operator, operands, _bound(operator, rest, names) | attributes)
        return results[0] if len(results) == 1 else results

    function.__name__ = name
    function.__doc__ = operator_class(operator).__doc__
    function.operator = operator  # type: ignore[attr-defined]  # for `shard`
    return function
