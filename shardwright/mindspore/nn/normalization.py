"""Normalizations, with MindSpore's arguments."""

from collections.abc import Sequence
from typing import Any, Self

from shardwright.communication import get_batch_parts
from shardwright.ir.values import NOT_NEGATIVE, check_choice, check_flag, wrong_value
from shardwright.mindspore.calls import called
from shardwright.mindspore.ops import primitives
from shardwright.nn import normalization as own
from shardwright.nn.cell import Cell
from shardwright.nn.normalization import BatchNorm, BatchStatistics
from shardwright.parameter import Init, Parameter
from shardwright.tensor import Tensor
from shardwright.tracer import current_tracer


class _Statistics(BatchStatistics):
    """Normalization by the statistics of a batch, or of the parts that groups of ranks have."""

    group_size: object = None

    def add_prim_attr(self, name: str, value: object) -> Self:
        """Set ``group_size``, how many ranks share statistics, or another attribute."""
        if name != "group_size":
            return super().add_prim_attr(name, value)
        self.group_size = value
        return self

    def parts(self) -> int | None:
        """Return into how many parts groups of ranks divide the batch; None without groups.

        Raises
        ------
        OptionError
            If groups are no power of two of the ranks that divide the batch alone.
        """
        if self.group_size is None:
            return None
        counts = self.in_strategy[0] if self.in_strategy else (1,)
        ranks, size = counts[0], self.group_size
        fits = isinstance(size, int) and size > 0 and size & (size - 1) == 0 and ranks % size == 0
        if not fits or any(count > 1 for count in counts[1:]):
            raise wrong_value(
                "group_size",
                size,
                f"a power of two that divides the {ranks} slices of the batch, and no other "
                f"dimension that is split (the strategy is {counts})",
            )
        assert isinstance(size, int)
        return ranks // size


class _BatchNorm(BatchNorm):
    """Normalization of every channel over the batch, then a scale and a shift.

    In data parallelism each rank normalizes over its own part of the batch, and sends nothing;
    `SyncBatchNorm` normalizes over the whole batch.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float
        Added to the variance.
    momentum : float
        What is kept of the moving mean and variance in a step.
    affine : bool
        Whether the scale and the shift are trained.
    gamma_init, beta_init, moving_mean_init, moving_var_init : str, float or Initializer
        Initializers of scale, shift, and moving mean and variance.
    use_batch_statistics : bool, optional
        Whether the statistics are those of the batch; if the network trains unless given.
    data_format : str
        ``NCHW``.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Init = "ones",
        beta_init: Init = "zeros",
        moving_mean_init: Init = "zeros",
        moving_var_init: Init = "ones",
        use_batch_statistics: bool | None = None,
        data_format: str = "NCHW",
        dtype: str = "float32",
        **others: Any,
    ) -> None:
        check_choice("data_format", data_format, ("NCHW",))
        check_flag("affine", affine)
        super().__init__(
            num_features,
            eps,
            momentum,
            dtype,
            gamma_init=gamma_init,
            beta_init=beta_init,
            moving_mean_init=moving_mean_init,
            moving_var_init=moving_var_init,
            **others,
        )
        self.gamma.requires_grad = self.beta.requires_grad = affine
        self._own_parts = "parts" not in others
        if use_batch_statistics is not None:
            check_flag("use_batch_statistics", use_batch_statistics)
        self.use_batch_statistics = use_batch_statistics
        self.bn_train = self._statistics = _Statistics(eps)

    @property
    def trains(self) -> bool:
        """Whether the statistics are those of the batch: what was said, or as the cell trains."""
        said = self.use_batch_statistics
        return super().trains if said is None else said

    def _kept(self, variance: Tensor, x: Tensor) -> Tensor:
        """Return the variance as an estimate of that of all samples: by n - 1 in place of n."""
        count = x.size // (x.shape[1] * self.parts * current_tracer().micro_batches)
        return variance * (count / (count - 1)) if count > 1 else variance

    def construct(self, x: Tensor) -> Tensor:
        """Normalize, and move the means and variances."""
        if self._own_parts:
            self.parts = self._statistics.parts() or get_batch_parts()
        kept = (self.gamma, self.beta, self.moving_mean, self.moving_variance)
        with called("BatchNorm", (x, *kept)):
            return super().construct(x)


class LayerNorm(Cell):
    """Normalization over the last dimensions, then a scale ``gamma`` and a shift ``beta``.

    Parameters
    ----------
    normalized_shape : sequence of int
        Sizes of the dimensions that have scale and shift, the last ones.
    begin_norm_axis, begin_params_axis : int
        The first dimension that is normalized over, and that has scale and shift.
    gamma_init, beta_init : str, float or Initializer
        Initializers of scale and shift.
    epsilon : float
        Added to the variance.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        normalized_shape: Sequence[int],
        begin_norm_axis: int = -1,
        begin_params_axis: int = -1,
        gamma_init: Init = "ones",
        beta_init: Init = "zeros",
        epsilon: float = 1e-7,
        dtype: str = "float32",
    ) -> None:
        shape = tuple(normalized_shape)
        self.gamma = Parameter(gamma_init, shape=shape, dtype=dtype)
        self.beta = Parameter(beta_init, shape=shape, dtype=dtype)
        self.layer_norm = primitives.LayerNorm(begin_norm_axis, begin_params_axis, epsilon)

    def construct(self, input_x: Tensor) -> Tensor:
        """Normalize."""
        return self.layer_norm.normalized(input_x, self.gamma, self.beta)


class GroupNorm(own.GroupNorm):
    """Normalization of groups of channels of each sample, then a scale and a shift.

    Parameters
    ----------
    num_groups, num_channels : int
        How many groups, and how many channels, the second dimension.
    eps : float
        Added to the variance.
    affine : bool
        Whether the scale and the shift are trained.
    gamma_init, beta_init : str, float or Initializer
        Initializers of scale and shift.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        gamma_init: Init = "ones",
        beta_init: Init = "zeros",
        dtype: str = "float32",
    ) -> None:
        check_flag("affine", affine)
        inits: dict[str, Init] = {"gamma_init": gamma_init, "beta_init": beta_init}
        super().__init__(num_groups, num_channels, eps, dtype, **inits)
        self.gamma.requires_grad = self.beta.requires_grad = affine


class _InstanceNorm(GroupNorm):
    """Normalization of every channel of each sample, then a scale and a shift.

    Parameters
    ----------
    num_features : int
        Number of channels, the second dimension.
    eps : float
        Added to the variance.
    momentum : float
        Has no effect: the statistics are those of each sample.
    affine, gamma_init, beta_init, dtype
        As of `GroupNorm`.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        gamma_init: Init = "ones",
        beta_init: Init = "zeros",
        dtype: str = "float32",
    ) -> None:
        if momentum not in NOT_NEGATIVE or momentum > 1:
            raise wrong_value("momentum", momentum, "a number from 0 to 1")
        super().__init__(num_features, num_features, eps, affine, gamma_init, beta_init, dtype)


class InstanceNorm1d(_InstanceNorm):
    """Normalization of every channel of ``[n, channel, length]``."""


class InstanceNorm2d(_InstanceNorm):
    """Normalization of every channel of ``[n, channel, height, width]``."""


class InstanceNorm3d(_InstanceNorm):
    """Normalization of every channel of ``[n, channel, depth, height, width]``."""


class BatchNorm1d(_BatchNorm):
    """Normalization over the batch of ``[n, channel]`` or ``[n, channel, length]``."""

    dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalization over the batch of ``[n, channel, height, width]``."""

    dimensions = (4,)


class _OfVolumes(_BatchNorm):
    """Normalization over the batch of ``[n, channel, depth, height, width]``."""

    dimensions = (5,)


class BatchNorm3d(Cell):
    """Normalization over the batch of ``[n, channel, depth, height, width]``.

    Its parameters are those of a cell ``bn2d``, as in MindSpore.

    Parameters
    ----------
    num_features, eps, momentum, affine, gamma_init, beta_init, moving_mean_init, moving_var_init
        As of `BatchNorm2d`.
    use_batch_statistics : bool, optional
        As of `BatchNorm2d`.
    dtype : str
        Element type of the parameters.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        gamma_init: Init = "ones",
        beta_init: Init = "zeros",
        moving_mean_init: Init = "zeros",
        moving_var_init: Init = "ones",
        use_batch_statistics: bool | None = None,
        dtype: str = "float32",
    ) -> None:
        inits = (gamma_init, beta_init, moving_mean_init, moving_var_init)
        more: dict[str, Any] = {"use_batch_statistics": use_batch_statistics, "dtype": dtype}
        self.bn2d = _OfVolumes(num_features, eps, momentum, affine, *inits, **more)

    def construct(self, x: Tensor) -> Tensor:
        """Normalize, and move the means and variances."""
        return self.bn2d(x)


class SyncBatchNorm(_BatchNorm):
    """Normalization over the whole batch, of all ranks, with two to five dimensions.

    Parameters
    ----------
    process_groups : None
        Must be None: the statistics are those of all ranks.
    *arguments, **others
        As for `BatchNorm2d`.
    """

    dimensions = (2, 3, 4, 5)

    def __init__(self, *arguments: Any, process_groups: None = None, **others: Any) -> None:
        if process_groups is not None:
            raise wrong_value("process_groups", process_groups, "None")
        super().__init__(*arguments, **{"parts": 1, **others})
