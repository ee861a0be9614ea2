"""Primitives: operators as objects that carry attributes and a strategy, and as functions.

Both come from the operator registry: ``ops.ReduceSum`` and ``ops.reduce_sum`` are the operator
``reduce_sum``. Only the order of arguments that are no tensors is MindSpore's own, and said here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from shardwright.ir.attributes import Attribute
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_choice, check_flag
from shardwright.operators.info import SplitCounts, operator_class
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
            ``primitive_target``, which is what `set_device` sets.
        value : object
            As for `set_device`.
        """
        check_choice("name", name, ("primitive_target",))
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

    def __call__(self, *arguments: Any) -> Any:
        """Apply the operator; one tensor, or a tuple where it has several results."""
        operands, rest = split_arguments(self.operator, arguments)
        names = _CALL_ATTRIBUTES.get(self.operator, ())
        attributes = self.attributes | _bound(self.operator, rest, names)
        begin = len(current_tracer().nodes) if is_tracing() else 0
        results = _apply(self.operator, operands, attributes)
        record_strategy(results, operands, self.in_strategy, self.out_strategy)
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
    return tuple(tuple(getattr(item, "split_counts", item)) for item in strategy)


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
        if axis != -1:
            raise ModelError(f"`one_hot` is to put the vectors along {axis}, it must be -1")

    def __call__(
        self, indices: Tensor, depth: int, on_value: float = 1.0, off_value: float = 0.0
    ) -> Tensor:
        """Make the vectors; the values must be one and zero."""
        if (_number(on_value), _number(off_value)) != (1.0, 0.0):
            raise ModelError(f"`one_hot` is to hold {on_value} and {off_value}, not 1 and 0")
        self.attributes["depth"] = depth
        return super().__call__(indices)


def _number(item: float | Tensor) -> float:
    return float(item.asnumpy()) if isinstance(item, Tensor) else float(item)


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
    return function
