"""Training for whole numbers: tensors take the values that few bits can tell apart."""

from shardwright.ir.errors import ModelError
from shardwright.tensor import Tensor, apply


class FakeQuantPerLayer:
    """The nearest of the values that integers of so many bits stand for, within limits.

    Zero is one of the values. The gradient passes where the tensor is between them.

    Parameters
    ----------
    num_bits : int
        Bits.
    symmetric : bool
        Whether the least is the negative of the most.
    narrow_range : bool
        Whether the least integer is left out.
    """

    def __init__(
        self, num_bits: int = 8, symmetric: bool = False, narrow_range: bool = False
    ) -> None:
        if num_bits < 2:
            raise ModelError(f"{num_bits} bits tell too few values apart, 2 are the least")
        self.symmetric = symmetric
        first = -(2 ** (num_bits - 1)) if symmetric else 0
        self.first, self.last = first + narrow_range, first + 2**num_bits - 1

    def __call__(self, x: Tensor, minimum: Tensor, maximum: Tensor) -> Tensor:
        """Round to the values."""
        return self.rounded(x, minimum, maximum)

    def rounded(self, x: Tensor, minimum: Tensor, maximum: Tensor) -> Tensor:
        """Round to values between limits that broadcast to the tensor."""
        low = apply("stop_gradient", apply("minimum", minimum, minimum * 0.0))
        high = apply("stop_gradient", apply("maximum", maximum, maximum * 0.0))
        if self.symmetric:
            high = apply("maximum", -low, high)
            low = -high
        step = (high - low) * (1.0 / (self.last - self.first))
        # The integer of zero is a whole number, so that the values move by less than a step.
        zero = apply("round", -low / step + self.first)
        low, high = (self.first - zero) * step, (self.last - zero) * step
        inside = apply("minimum", apply("maximum", x, low), high)
        value = apply("round", (inside - low) / step) * step + low
        return inside + apply("stop_gradient", value - inside)


class FakeQuantPerChannel(FakeQuantPerLayer):
    """The same, with a least and a most for each channel: ``[n, c, ...]``, ``[c]`` and ``[c]``.

    Parameters
    ----------
    channel_axis : int
        The dimension of the channels.
    """

    def __init__(
        self,
        num_bits: int = 8,
        symmetric: bool = False,
        narrow_range: bool = False,
        channel_axis: int = 1,
    ) -> None:
        super().__init__(num_bits, symmetric, narrow_range)
        self.channel_axis = channel_axis

    def __call__(self, x: Tensor, minimum: Tensor, maximum: Tensor) -> Tensor:
        """Round channel by channel."""
        shape = (-1, *(1,) * (x.ndim - 1 - self.channel_axis % x.ndim))
        return self.rounded(x, minimum.reshape(shape), maximum.reshape(shape))


class MinMaxUpdatePerLayer:
    """The least and the most of a tensor, which follow those of the steps before.

    Parameters
    ----------
    ema : bool
        Whether they follow slowly.
    ema_decay : float
        What share of the former values then stays.
    """

    def __init__(self, ema: bool = False, ema_decay: float = 0.999) -> None:
        self.decay = ema_decay if ema else 0.0

    def __call__(self, x: Tensor, minimum: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least, which is not positive, and the most, which is not negative."""
        return self.followed(x, minimum, maximum, tuple(range(x.ndim)))

    def followed(
        self, x: Tensor, minimum: Tensor, maximum: Tensor, axes: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Follow the extrema along dimensions."""
        ends = []
        for name, former in (("minimum", minimum), ("maximum", maximum)):
            reduction = "reduce_min" if name == "minimum" else "reduce_max"
            found = apply(reduction, x, axis=axes, differentiable=False).reshape(former.shape)
            value = former * self.decay + found * (1.0 - self.decay)
            ends.append(apply(name, value, value * 0.0))
        return ends[0], ends[1]


class MinMaxUpdatePerChannel(MinMaxUpdatePerLayer):
    """The same for each channel.

    Parameters
    ----------
    channel_axis : int
        The dimension of the channels.
    """

    def __init__(self, ema: bool = False, ema_decay: float = 0.999, channel_axis: int = 1) -> None:
        super().__init__(ema, ema_decay)
        self.channel_axis = channel_axis

    def __call__(self, x: Tensor, minimum: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the limits of each channel."""
        axes = tuple(d for d in range(x.ndim) if d != self.channel_axis % x.ndim)
        return self.followed(x, minimum, maximum, axes)
