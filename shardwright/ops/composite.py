"""Operators of MindSpore that are compositions of several here."""

from typing import Any, Self

from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE_INTEGER, check_choice, wrong_value
from shardwright.operators.indexing.scatter import emit_scatter_nd_add
from shardwright.operators.info import SplitCounts
from shardwright.ops.primitive import TARGETS, check_prim_attr, counts_of
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer, is_tracing


class Composition:
    """An operator that is made of several: a subclass has `compose`."""

    in_strategy: SplitCounts | None = None

    def shard(self, in_strategy: Any = None, out_strategy: None = None) -> Self:
        """Pin how the composition is split: for each operand the slices of each dimension.

        Each of its operators is split so whose operands have as many dimensions.

        Raises
        ------
        OptionError
            If the split of results is given.
        """
        if out_strategy is not None:
            raise wrong_value("out_strategy", out_strategy, "none, for a composition")
        self.in_strategy = counts_of(in_strategy)
        return self

    def set_device(self, device_target: str) -> Self:
        """Check the name of a device; see `Primitive.set_device`."""
        check_choice("device_target", device_target, TARGETS)
        return self

    def add_prim_attr(self, name: str, value: object) -> Self:
        """Check an attribute of MindSpore's compiler; see `check_prim_attr`."""
        check_prim_attr(name, value)
        return self

    def __call__(self, *arguments: Any, **others: Any) -> Any:
        """Apply the composition.

        Raises
        ------
        ModelError
            If it is pinned, and none of its operators has operands of as many dimensions.
        """
        if self.in_strategy is None or not is_tracing():
            return self.compose(*arguments, **others)  # type: ignore[attr-defined]
        tracer = current_tracer()
        begin = len(tracer.nodes)
        made = self.compose(*arguments, **others)  # type: ignore[attr-defined]
        for tensor in made if isinstance(made, tuple) else (made,):
            tensor.value(tracer)  # slices are taken when they are first read
        ranks = [len(counts) for counts in self.in_strategy]
        results = (value for node in tracer.nodes for value in node.results)
        parameters = (parameter.value for parameter in tracer.parameters)
        known = {value.name: value for value in (*tracer.inputs, *parameters, *results)}
        pinned = [
            node.name
            for node in tracer.nodes[begin:]
            if [len(known[name].type.shape) for name in node.operands] == ranks
        ]
        if not pinned:
            raise ModelError(
                f"the strategy {self.in_strategy} fits none of the operators that "
                f"`{type(self).__name__}` is made of",
                hint="leave it out: the compiler splits each of them",
            )
        tracer.pins |= dict.fromkeys(pinned, self.in_strategy)
        return made


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
        following = self.following(variable, value)
        name = variable.value(tracer).name
        if variable.requires_grad:
            raise ModelError(
                f"the parameter `{name}` is assigned to, and trained",
                hint="make it with `requires_grad=False`",
            )
        if any(name == other for other, _ in tracer.updates):
            raise ModelError(f"the parameter `{name}` is assigned to twice in one step")
        tracer.updates.append((name, following.value(tracer).name))
        return following

    def following(self, variable: Parameter, value: Tensor) -> Tensor:
        """Return the new value of the parameter."""
        return apply("identity", value)


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

    def compose(self, x: Tensor, mask: Tensor, keep_prob: float) -> Tensor:
        """Mask and scale; the mask is true where an element is kept."""
        return apply("mask", x, mask) * (1.0 / keep_prob)


class EmbeddingLookup(Composition):
    """Rows of a table whose first row is `offset`; rows outside of it are zero."""

    def compose(self, input_params: Tensor, input_indices: Tensor, offset: int = 0) -> Tensor:
        """Look up."""
        indices = apply("add_scalar", input_indices, value=-offset) if offset else input_indices
        return apply("gather", input_params, indices)


class StridedSlice(Composition):
    """The elements from `begin` to before `end` of each dimension, by `strides`.

    Parameters
    ----------
    begin_mask, end_mask : int
        Bits of the dimensions whose bound is not read: they begin or end where the tensor does.
    ellipsis_mask, new_axis_mask : int
        Must be 0.
    shrink_axis_mask : int
        Bits of the dimensions of which the element at `begin` alone is taken.
    """

    def __init__(
        self,
        begin_mask: int = 0,
        end_mask: int = 0,
        ellipsis_mask: int = 0,
        new_axis_mask: int = 0,
        shrink_axis_mask: int = 0,
    ) -> None:
        for name, mask in (("ellipsis_mask", ellipsis_mask), ("new_axis_mask", new_axis_mask)):
            if mask != 0:
                raise wrong_value(name, mask, "0", "index the tensor instead")
        self.begin_mask, self.end_mask = begin_mask, end_mask
        self.shrink_axis_mask = shrink_axis_mask
        for name, mask in vars(self).items():
            NOT_NEGATIVE_INTEGER.check(name, mask)

    def compose(
        self,
        input_x: Tensor,
        begin: tuple[int, ...],
        end: tuple[int, ...],
        strides: tuple[int, ...] | None = None,
    ) -> Tensor:
        """Slice; a negative bound counts from the end. Other dimensions stay whole."""
        steps = strides or (1,) * len(begin)

        def index(d: int, first: int, last: int, step: int) -> int | slice:
            if self.shrink_axis_mask >> d & 1:
                return first
            start = None if self.begin_mask >> d & 1 else first
            return slice(start, None if self.end_mask >> d & 1 else last, step)

        bounds = zip(begin, end, steps, strict=True)
        return input_x[tuple(index(d, *bound) for d, bound in enumerate(bounds))]


class TensorScatterAdd(Composition):
    """A tensor plus slices at tuples of positions; slices at one position add up."""

    sign = 1.0

    def compose(self, input_x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        """Add."""
        tracer = current_tracer()
        updates = updates if self.sign > 0 else -updates
        values = (item.value(tracer) for item in (input_x, indices, updates))
        return TracedTensor(emit_scatter_nd_add(tracer, *values))


class TensorScatterSub(TensorScatterAdd):
    """A tensor less slices at tuples of positions; slices at one position add up."""

    sign = -1.0


# Functions of tensors alone


class AddN(Composition):
    """The sum of several tensors."""

    def compose(self, x: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
        """Add up."""
        total = x[0]
        for item in x[1:]:
            total = total + item
        return total


class MaskedFill(Composition):
    """A tensor with a value where a mask is true."""

    def compose(self, x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
        """Fill."""
        if not isinstance(value, Tensor):
            value = apply("fill", shape=(), value=float(value), dtype=x.dtype)
        return apply("where", mask, value, x)


class Lerp(Composition):
    """``start + weight (end - start)``."""

    def compose(self, start: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
        """Mix."""
        return start + (end - start) * weight


class Addcmul(Composition):
    """``x + value a b``."""

    def compose(self, x: Tensor, a: Tensor, b: Tensor, value: float = 1.0) -> Tensor:
        """Multiply and add."""
        return x + a * b * value


class Hypot(Composition):
    """The root of the sum of two squares."""

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
