"""Products whose strategies split what is summed in more ways than one."""

from typing import Self

from shardwright import ops as own
from shardwright.ir.errors import StrategyError
from shardwright.ir.values import check_flag, wrong_value
from shardwright.operators.info import SplitCounts
from shardwright.ops.sharding import shard
from shardwright.tensor import Tensor


class MatMul(own.MatMul):  # type: ignore[misc]
    """The product of two matrices; with ``enable_nd_tp`` split along two axes of devices.

    Then the operand's last dimension is split along both axes, and the weight's first and second
    along one each: the operand is gathered along the second, and the sums along the first are
    scattered over the columns of the result. With ``forward_reduce_scatter`` sums of a strategy
    that splits what is summed are scattered over the first dimension of the result, if it can be
    divided among the ranks that have them. Where both operands are split in one way, rows of the
    first are gathered, and columns of the second.
    """

    _along_two = False
    _scattered = False

    def add_prim_attr(self, name: str, value: object) -> Self:
        """Set one of these two, or another attribute; see `OnAnyDevice.add_prim_attr`."""
        if name not in ("enable_nd_tp", "forward_reduce_scatter"):
            return super().add_prim_attr(name, value)
        check_flag("value", value)
        if name == "forward_reduce_scatter":
            self._scattered = bool(value)
            return self
        if value and (self.attributes.get("transpose_a") or self.attributes.get("transpose_b")):
            raise wrong_value("enable_nd_tp", value, "False: an operand is transposed")
        self._along_two = bool(value)
        return self

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply.

        Raises
        ------
        StrategyError
            If the strategy is not one along two axes, and ``enable_nd_tp`` says it is.
        """
        pins = self.in_strategy
        if pins is not None and self.is_gathered(pins):
            (rows, columns), _ = pins
            parts = [
                shard(_same, (counts,))(each) for each, counts in zip((x, y), pins, strict=True)
            ]
            gathered: Tensor = own.MatMul().shard(((rows, 1), (1, columns)), self.out_strategy)(
                *parts
            )
            return gathered
        if pins is not None and self._scattered and self.out_strategy is None:
            return self._scattered_product(x, y, pins)
        if not self._along_two or pins is None:
            made: Tensor = super().__call__(x, y)
            return made
        if len(pins) != 2 or len(pins[1]) != 2 or pins[0][-1] != pins[1][0] * pins[1][1]:
            raise StrategyError(
                f"the strategy {pins} of `MatMul` is not one along two axes: `enable_nd_tp` splits "
                f"the last dimension of the operand by both axes of the weight",
                hint='such as `layout("None", ("x", "y"))` and `layout("x", "y")`',
            )
        (*rows, both), (first, second) = pins
        moved = shard(_same, ((*rows, both),))(x)
        product = own.MatMul().shard(((*rows, first), (first, second)))(moved, y)
        result: Tensor = shard(_same, ((*rows, both),))(product)
        return result

    def is_gathered(self, pins: SplitCounts) -> bool:
        """Return whether both operands are split in one way that no product is split in.

        As in MindSpore rows of the first are gathered then, and columns of the second.
        """
        transposed = self.attributes.get("transpose_a") or self.attributes.get("transpose_b")
        one_way = len(pins) == len(pins[0]) == 2 and pins[0] == pins[1]
        return one_way and pins[0][0] != pins[0][1] and not transposed and not self._along_two

    def _scattered_product(self, x: Tensor, y: Tensor, pins: SplitCounts) -> Tensor:
        first = pins[0][::-1] if self.attributes.get("transpose_a") else pins[0]
        second = pins[1][::-1] if self.attributes.get("transpose_b") else pins[1]
        left = (first[0] * first[-1], *first[1:-1], second[-1])
        rows = x.shape[-1] if self.attributes.get("transpose_a") else x.shape[0]
        made = own.MatMul(**self.attributes).shard(pins, None if rows % left[0] else (left,))
        product: Tensor = made(x, y)
        return product


def _same(x: Tensor) -> Tensor:
    return x


__all__ = ["MatMul"]
