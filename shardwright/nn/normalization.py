"""Normalizations: of rows, and of channels over a batch."""

from shardwright import ops
from shardwright.ir.errors import ModelError
from shardwright.ir.values import NOT_NEGATIVE, POSITIVE_INTEGER, wrong_value
from shardwright.nn.cell import Cell
from shardwright.operators.models.batch_normalization import emit_batch_norm
from shardwright.ops.composite import Composition
from shardwright.parameter import Parameter, Start
from shardwright.tensor import Tensor, TracedTensor, apply
from shardwright.tracer import current_tracer


class LayerNorm(Cell):
    """Normalization of the last dimension, then a scale ``gamma`` and a shift ``beta``.

    Parameters
    ----------
    normalized_shape : int or sequence of one int
        Size of the last dimension.
    epsilon : float
        Added to the variance.
    dtype : str
        Element type of the parameters.
    has_bias : bool
        Whether there is a shift.
    from_one : bool
        Whether the scale is ``1 + gamma``, and ``gamma`` begins with zeros.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        epsilon: float = 1e-5,
        dtype: str = "float32",
        *,
        has_bias: bool = True,
        from_one: bool = False,
    ) -> None:
        size = _last(normalized_shape)
        self.from_one = from_one
        self.gamma = Parameter("zeros" if from_one else "ones", shape=size, dtype=dtype)
        self.beta = Parameter("zeros", shape=size, dtype=dtype) if has_bias else None
        self.layer_norm = ops.LayerNorm(epsilon=epsilon)

    def construct(self, x: Tensor) -> Tensor:
        """Normalize."""
        gamma = self.gamma + 1.0 if self.from_one else self.gamma
        return self.layer_norm(x, gamma, _filled(x, 0.0) if self.beta is None else self.beta)


class RMSNorm(Cell):
    """Division of the last dimension by its root mean square, then a scale ``gamma``.

    Parameters
    ----------
    normalized_shape : int or sequence of one int
        Size of the last dimension.
    epsilon : float
        Added to the mean square.
    dtype : str
        Element type of the parameter.
    from_one : bool
        Whether the scale is ``1 + gamma``, and ``gamma`` begins with zeros (Gemma).
    has_scale : bool
        Whether there is a scale.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | list[int],
        epsilon: float = 1e-6,
        dtype: str = "float32",
        *,
        from_one: bool = False,
        has_scale: bool = True,
    ) -> None:
        size, start = _last(normalized_shape), "zeros" if from_one else "ones"
        self.from_one = from_one
        self.gamma = Parameter(start, shape=size, dtype=dtype) if has_scale else None
        self.rms_norm = ops.RMSNorm(epsilon=epsilon)

    def construct(self, x: Tensor) -> Tensor:
        """Normalize."""
        if self.gamma is None:
            return self.rms_norm(x, _filled(x, 1.0))
        return self.rms_norm(x, self.gamma + 1.0 if self.from_one else self.gamma)


def _filled(x: Tensor, value: float) -> Tensor:
    """Return a scale or a shift that is no parameter."""
    return apply("fill", shape=x.shape[-1:], dtype=x.dtype, value=value)


def _last(shape: int | tuple[int, ...] | list[int]) -> int:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if len(sizes) != 1:
        raise ModelError(f"the shape {sizes} is to be normalized, it must be one last dimension")
    return sizes[0]


class BatchStatistics(Composition):
    """Normalization by the statistics of a batch, which are returned, too."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def compose(
        self, x: Tensor, gamma: Tensor, beta: Tensor, *moving: Tensor, parts: int
    ) -> tuple[Tensor, ...]:
        """Normalize; the moving statistics are operands only of a strategy, as in MindSpore."""
        tracer = current_tracer()
        operands = (x.value(tracer), gamma.value(tracer), beta.value(tracer))
        made = emit_batch_norm(tracer, *operands, self.epsilon, parts)
        return tuple(TracedTensor(value) for value in made)


class BatchNorm(Cell):
    """Normalization of every channel over the batch, then a scale and a shift.

    In a hand-written parallel program each rank normalizes over its own part of the batch.

    Parameters
    ----------
    num_features : int
        Number of channels, the second dimension.
    eps : float
        Added to the variance.
    momentum : float
        What is kept of the moving mean and variance in a step.
    dtype : str
        Element type of the parameters.
    parts : int
        Into how many equal parts the batch is cut, each of which has statistics of its own: local
        ones, for which ranks that hold whole parts send nothing.
    gamma_init, beta_init, moving_mean_init, moving_var_init : str, float or Initializer
        Initializers of scale, shift, and moving mean and variance.
    """

    dimensions: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        dtype: str = "float32",
        parts: int = 1,
        *,
        gamma_init: Start = "ones",
        beta_init: Start = "zeros",
        moving_mean_init: Start = "zeros",
        moving_var_init: Start = "ones",
    ) -> None:
        POSITIVE_INTEGER.check("parts", parts)
        NOT_NEGATIVE.check("eps", eps)
        if momentum not in NOT_NEGATIVE or momentum > 1:
            raise wrong_value("momentum", momentum, "a number from 0 to 1")
        self.parts = parts
        self.eps = eps
        self.bn_train = BatchStatistics(eps)
        self.momentum = momentum
        self.moving_mean = _moving(moving_mean_init, num_features, dtype)
        self.moving_variance = _moving(moving_var_init, num_features, dtype)
        self.gamma = Parameter(gamma_init, shape=num_features, dtype=dtype)
        self.beta = Parameter(beta_init, shape=num_features, dtype=dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Normalize, and move the means and variances."""
        if x.ndim not in self.dimensions:
            raise ModelError(
                f"`{type(self).__name__}` takes {self.dimensions} dimensions, not {x.ndim}"
            )
        if not self.trains:
            return self._by_moving_statistics(x)
        moving = (self.moving_mean, self.moving_variance)
        y, mean, variance = self.bn_train(x, self.gamma, self.beta, *moving, parts=self.parts)
        self._move(self.moving_mean, mean)
        self._move(self.moving_variance, self._kept(variance, x))
        return y

    def _kept(self, variance: Tensor, x: Tensor) -> Tensor:
        """Return what the moving variance is moved to: the variance of the batch."""
        return variance

    def _by_moving_statistics(self, x: Tensor) -> Tensor:
        sizes = (1, x.shape[1], *(1,) * (x.ndim - 2))
        scale = self.gamma * (self.moving_variance + self.eps) ** -0.5
        shift = self.beta - self.moving_mean * scale
        return x * scale.reshape(sizes) + shift.reshape(sizes)

    def _move(self, moving: Parameter, batch: Tensor) -> None:
        tracer = current_tracer()
        with tracer.reading_as(moving.dtype):  # whatever type the cell computes in
            batch = batch.of_real_type(moving.dtype)
            following = moving * self.momentum + batch * (1 - self.momentum)
        tracer.updates.append((moving.value(tracer).name, following.value(tracer).name))


def _moving(init: Start, size: int, dtype: str) -> Parameter:
    """Return a moving average, which is not trained and which every rank has its own of."""
    return Parameter(init, shape=size, dtype=dtype, requires_grad=False, layerwise_parallel=True)


class BatchNorm1d(BatchNorm):
    """Normalization over the batch of ``[n, channel]`` or ``[n, channel, length]``."""

    dimensions = (2, 3)


class BatchNorm2d(BatchNorm):
    """Normalization over the batch of ``[n, channel, height, width]``."""

    dimensions = (4,)


class BatchNorm3d(BatchNorm):
    """Normalization over the batch of ``[n, channel, depth, height, width]``."""

    dimensions = (5,)


class GroupNorm(Cell):
    """Normalization of groups of channels of each sample, then a scale and a shift.

    Parameters
    ----------
    num_groups, num_channels : int
        How many groups, and how many channels, the second dimension.
    eps : float
        Added to the variance.
    dtype : str
        Element type of the parameters.
    gamma_init, beta_init : str, float or Initializer
        Initializers of scale and shift.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        dtype: str = "float32",
        *,
        gamma_init: Start = "ones",
        beta_init: Start = "zeros",
    ) -> None:
        POSITIVE_INTEGER.check("num_groups", num_groups)
        if num_channels % num_groups:
            raise ModelError(f"{num_channels} channels do not make {num_groups} equal groups")
        self.gamma = Parameter(gamma_init, shape=num_channels, dtype=dtype)
        self.beta = Parameter(beta_init, shape=num_channels, dtype=dtype)
        self.group_norm = ops.GroupNorm(groups=num_groups, epsilon=eps)

    def construct(self, x: Tensor) -> Tensor:
        """Normalize."""
        return self.group_norm(x, self.gamma, self.beta)


class InstanceNorm(GroupNorm):
    """Normalization of every channel of each sample, then a scale and a shift.

    Parameters
    ----------
    num_features : int
        Number of channels, the second dimension.
    eps : float
        Added to the variance.
    dtype : str
        Element type of the parameters.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, dtype: str = "float32") -> None:
        super().__init__(num_features, num_features, eps, dtype)


class InstanceNorm1d(InstanceNorm):
    """Normalization of every channel of ``[n, channel, length]``."""


class InstanceNorm2d(InstanceNorm):
    """Normalization of every channel of ``[n, channel, height, width]``."""


class InstanceNorm3d(InstanceNorm):
    """Normalization of every channel of ``[n, channel, depth, height, width]``."""
