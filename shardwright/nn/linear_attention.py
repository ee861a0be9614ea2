"""Layers of linear attention: the gated delta rule, and the state space of Mamba-2."""

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.nn.cell import Cell
from shardwright.nn.layers import Dense, SiLU
from shardwright.nn.normalization import RMSNorm
from shardwright.parameter import Parameter
from shardwright.tensor import Tensor, apply


class CausalConv(Cell):
    """A convolution of every channel by itself, of positions up to the own one, then silu.

    Parameters
    ----------
    channels, kernel : int
        Channels, and positions of a window.
    has_bias : bool
        Whether channels have biases.
    weight_init : str, optional
        How the weights ``[channel, 1, kernel]`` begin.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        has_bias: bool = False,
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        init = weight_init or f"uniform({kernel**-0.5:.6g})"
        self.weight = Parameter(init, shape=(channels, 1, kernel), dtype=dtype)
        self.bias = Parameter("zeros", shape=channels, dtype=dtype) if has_bias else None
        self.silu = SiLU()
        self.channels, self.kernel = channels, kernel

    def construct(self, x: Tensor, heads: int) -> Tensor:
        """Convolve ``[batch, position, channel]``; return ``[batch, head, position, feature]``."""
        batch, length, channels = x.shape
        x = x.transpose((0, 2, 1))
        padding = ((self.kernel - 1, 0),)
        x = apply("convolution", x, self.weight, padding=padding, groups=channels)
        if self.bias is not None:
            x = x + self.bias.reshape((channels, 1))
        shape = (batch, heads, channels // heads, length)
        return self.silu(x).reshape(shape).transpose((0, 1, 3, 2))


def _steps(x: Tensor, bias: Parameter) -> Tensor:
    """Return positive steps ``[batch, head, position]`` of ``[batch, position, head]``."""
    return apply("softplus", x + bias).transpose((0, 2, 1))


def _decays(steps: Tensor, log: Parameter) -> Tensor:
    """Return the logarithms of decays: steps times minus the exponentials of a parameter."""
    return steps * (-apply("exp", log)).reshape((log.shape[0], 1))


class GatedDeltaNet(Cell):
    """Linear attention by the gated delta rule (Yang et al., 2024; Qwen3-Next).

    Parameters
    ----------
    hidden_size : int
        Size of the last dimension.
    heads : tuple of (int, int)
        Heads of queries and keys, and of values; the first divides the second.
    sizes : tuple of (int, int)
        Features of a head of keys, and of values.
    kernel : int
        Positions of the convolutions.
    epsilon : float
        Of the normalization of what is read.
    weight_init : str, optional
        How the weights begin.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: tuple[int, int],
        sizes: tuple[int, int],
        kernel: int = 4,
        epsilon: float = 1e-6,
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        if heads[1] % heads[0]:
            raise ModelError(f"{heads[1]} heads of values cannot share {heads[0]} of keys evenly")
        self.heads, self.sizes = heads, sizes
        keys, values = heads[0] * sizes[0], heads[1] * sizes[1]

        def dense(inputs: int, outputs: int) -> Dense:
            return Dense(inputs, outputs, weight_init, has_bias=False, dtype=dtype)

        def conv(channels: int) -> CausalConv:
            return CausalConv(channels, kernel, weight_init=weight_init, dtype=dtype)

        self.query, self.key = dense(hidden_size, keys), dense(hidden_size, keys)
        self.value, self.gate = dense(hidden_size, values), dense(hidden_size, values)
        self.rate, self.step = dense(hidden_size, heads[1]), dense(hidden_size, heads[1])
        self.query_conv, self.key_conv, self.value_conv = conv(keys), conv(keys), conv(values)
        self.step_bias = Parameter("ones", shape=heads[1], dtype=dtype)
        self.decay_log = Parameter("zeros", shape=heads[1], dtype=dtype)
        # Unit length is a root mean square of 1 / sqrt(features).
        self.unit = RMSNorm(sizes[0], 1e-6 / sizes[0], dtype, has_scale=False)
        self.norm = RMSNorm(sizes[1], epsilon, dtype)
        self.silu = SiLU()
        self.projection = dense(values, hidden_size)

    def construct(self, x: Tensor) -> Tensor:
        """Read states of keys and values that are corrected and decay."""
        (keys, values), unit = self.heads, self.sizes[0] ** -0.5
        query = self.unit(self.query_conv(self.query(x), keys)) * unit
        key = self.unit(self.key_conv(self.key(x), keys)) * unit
        value = self.value_conv(self.value(x), values)
        rate = ops.sigmoid(self.rate(x)).transpose((0, 2, 1))
        decay = _decays(_steps(self.step(x), self.step_bias), self.decay_log)
        read = apply("linear_attention", query, key, value, decay, rate, delta=True)
        batch, _, length, features = read.shape
        gate = self.gate(x).reshape((batch, length, values, features))
        made = self.norm(read).transpose((0, 2, 1, 3)) * self.silu(gate)
        return self.projection(made.reshape((batch, length, values * features)))


class Mamba2(Cell):
    """The state space of Mamba-2 (Dao and Gu, 2024; Nemotron-H).

    Parameters
    ----------
    hidden_size : int
        Size of the last dimension.
    heads, head : int
        Heads, and features of one.
    groups, state : int
        Groups of heads that share what is read and written, and features of a state.
    kernel : int
        Positions of the convolutions.
    conv_bias, has_bias : bool
        Whether convolutions, and whether products, have biases.
    least_step : float
        The least step of time.
    epsilon : float
        Of the normalization of what is read.
    weight_init : str, optional
        How the weights begin.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        head: int,
        groups: int,
        state: int,
        kernel: int = 4,
        *,
        conv_bias: bool = True,
        has_bias: bool = False,
        least_step: float = 0.0,
        epsilon: float = 1e-5,
        weight_init: str | None = None,
        dtype: str = "float32",
    ) -> None:
        if heads % groups:
            raise ModelError(f"{heads} heads do not make {groups} equal groups")
        self.heads, self.head, self.groups, self.least_step = heads, head, groups, least_step
        inner = heads * head
        zeros = "zeros" if has_bias and weight_init is not None else None

        def dense(inputs: int, outputs: int) -> Dense:
            return Dense(inputs, outputs, weight_init, zeros, has_bias=has_bias, dtype=dtype)

        def conv(channels: int) -> CausalConv:
            return CausalConv(channels, kernel, conv_bias, weight_init, dtype)

        self.gate, self.value = dense(hidden_size, inner), dense(hidden_size, inner)
        self.key, self.query = (dense(hidden_size, groups * state) for _ in range(2))
        self.step = dense(hidden_size, heads)
        self.value_conv = conv(inner)
        self.key_conv, self.query_conv = conv(groups * state), conv(groups * state)
        self.step_bias = Parameter("ones", shape=heads, dtype=dtype)
        self.decay_log = Parameter("zeros", shape=heads, dtype=dtype)
        self.skip = Parameter("ones", shape=heads, dtype=dtype)
        self.silu = SiLU()
        self.norm = RMSNorm(inner // groups, epsilon, dtype, has_scale=False)
        self.scale = Parameter("ones", shape=inner, dtype=dtype)
        self.projection = dense(inner, hidden_size)

    def construct(self, x: Tensor) -> Tensor:
        """Read states that decay."""
        batch, length, _ = x.shape
        value = self.value_conv(self.value(x), self.heads)
        key = self.key_conv(self.key(x), self.groups)
        query = self.query_conv(self.query(x), self.groups)
        steps = _steps(self.step(x), self.step_bias)
        if self.least_step:
            steps = ops.relu(steps - self.least_step) + self.least_step
        taken = value * steps.reshape((*steps.shape, 1))
        decay = _decays(steps, self.decay_log)
        read = apply("linear_attention", query, key, taken, decay, scale=1.0)
        read = read + value * self.skip.reshape((self.heads, 1, 1))
        inner = self.heads * self.head
        made = read.transpose((0, 2, 1, 3)).reshape((batch, length, inner))
        made = made * self.silu(self.gate(x))
        grouped = self.norm(made.reshape((batch, length, self.groups, inner // self.groups)))
        return self.projection(grouped.reshape((batch, length, inner)) * self.scale)
