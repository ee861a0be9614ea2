"""Tensors of eight bits, and products with them, as trained networks answer with them."""

from shardwright.ir.errors import ModelError
from shardwright.tensor import Tensor, apply


def _to_eight_bits(x: Tensor) -> Tensor:
    nearest = apply("clip", apply("round", x), low=-128.0, high=127.0)
    return apply("cast", nearest, dtype="int8")


def _single(x: Tensor) -> Tensor:
    return apply("cast", x, dtype="float32")


class AntiQuant:
    """``(x + offset) * scale`` of integers.

    Parameters
    ----------
    sqrt_mode : bool
        Whether the scale is taken twice.
    dtype : str
        Type of the result.
    """

    def __init__(self, sqrt_mode: bool = False, dtype: str = "float16") -> None:
        self.twice, self.dtype = sqrt_mode, dtype

    def __call__(self, x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
        """Return the numbers that the integers stand for."""
        x, scale, offset = (apply("cast", t, dtype=self.dtype) for t in (x, scale, offset))
        x = (x + offset) * scale
        return x * scale if self.twice else x


class QuantV2:
    """``x * scale + offset``, as the nearest integer of eight bits; of two the even one."""

    def __call__(self, x: Tensor, scale: Tensor, offset: Tensor, sqrt_mode: bool = False) -> Tensor:
        """Round; with `sqrt_mode` the scale is taken twice."""
        x = x * scale
        return _to_eight_bits((x * scale if sqrt_mode else x) + offset)


class DynamicQuantExt:
    """Rows as integers of eight bits, the largest of which is 127, and how much one stands for."""

    def __call__(self, x: Tensor, smooth_scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the integers ``[..., n]`` and the steps ``[...]``, in float32."""
        x = _single(x) if smooth_scales is None else _single(x) * _single(smooth_scales)
        step = apply("abs", x).max(-1, keep_dims=True) * (1 / 127)
        return _to_eight_bits(apply("div_no_nan", x, step)), step.reshape(x.shape[:-1])


class WeightQuantBatchMatmul:
    """A product with a weight of eight bits: ``x @ ((weight + offset) * scale) + bias``.

    Parameters
    ----------
    transpose_x, transpose_weight : bool
        Whether an operand is transposed first, with its scales and offsets.
    antiquant_group_size : int
        How many rows of a weight share their scales, which are ``[groups, n]`` then; 0 for all of
        them.
    """

    def __init__(
        self,
        transpose_x: bool = False,
        transpose_weight: bool = False,
        antiquant_group_size: int = 0,
    ) -> None:
        self.transposed = {"transpose_a": transpose_x, "transpose_b": transpose_weight}
        self.group = antiquant_group_size

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        antiquant_scale: Tensor,
        antiquant_offset: Tensor | None = None,
        quant_scale: Tensor | None = None,
        quant_offset: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Multiply; with `quant_scale` the product is of eight bits as well."""
        w = apply("cast", weight, dtype=x.dtype)
        if antiquant_offset is not None:
            w = w + self.spread(apply("cast", antiquant_offset, dtype=x.dtype), weight)
        w = w * self.spread(antiquant_scale, weight)
        y = apply("matmul", x, w, **self.transposed)
        y = y if bias is None else y + apply("cast", bias, dtype=x.dtype)
        if quant_scale is None:
            return y
        y = y * quant_scale
        return _to_eight_bits(y if quant_offset is None else y + quant_offset)

    def spread(self, t: Tensor, weight: Tensor) -> Tensor:
        """Return scales, or offsets, of columns or of groups, so that they fit the weight."""
        rows, columns = (-1, -2) if self.transposed["transpose_b"] else (-2, -1)
        height, width = weight.shape[rows], weight.shape[columns]
        if not self.group:
            return t.reshape((width, 1)) if rows == -1 and t.shape != (1,) else t
        if height % self.group:
            raise ModelError(
                f"{height} rows of a weight do not fall into groups of {self.group}",
                hint="give a group size that divides them",
            )
        groups = height // self.group
        scales, whole = (groups, 1, width), (groups, self.group, width)
        if rows == -1:
            scales, whole = (width, groups, 1), (width, groups, self.group)
        return apply("broadcast_to", t.reshape(scales), shape=whole).reshape(weight.shape)


class QuantBatchMatmul:
    """A product of integers of eight bits, ``(x1 @ x2 + bias) * scale * pertoken_scale + offset``.

    Parameters
    ----------
    transpose_x1, transpose_x2 : bool
        Whether an operand is transposed first.
    dtype : str
        Type of the result; ``int8`` rounds it.
    """

    def __init__(
        self, transpose_x1: bool = False, transpose_x2: bool = False, dtype: str = "float16"
    ) -> None:
        self.transposed = {"transpose_a": transpose_x1, "transpose_b": transpose_x2}
        self.dtype = dtype

    def __call__(
        self,
        x1: Tensor,
        x2: Tensor,
        scale: Tensor,
        offset: Tensor | None = None,
        bias: Tensor | None = None,
        pertoken_scale: Tensor | None = None,
    ) -> Tensor:
        """Multiply in 32 bits, then scale columns, and rows by `pertoken_scale`."""
        wide = [apply("cast", x, dtype="int32") for x in (x1, x2)]
        total = apply("matmul", *wide, **self.transposed)
        total = total if bias is None else total + bias
        y = _single(total) * _single(scale)
        if pertoken_scale is not None:
            y = y * apply("expand_dims", _single(pertoken_scale), axis=-1)
        y = y if offset is None else y + _single(offset)
        return _to_eight_bits(y) if self.dtype == "int8" else apply("cast", y, dtype=self.dtype)
