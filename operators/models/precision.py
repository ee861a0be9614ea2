"""Precision policies: the element types in which a training step is computed.

Parameters and optimizer states stay in float32 (master weights). Before an operator that computes
in a lower precision, a parameter is cast to it; gradients are computed, reduced and accumulated in
the types that the policy says.

References
----------
Micikevicius et al., "Mixed precision training", 2018; the operators that stay in float32 are those
of PyTorch's autocast, except for the normalizations of rows and attention, whose kernels compute in
float32 inside, as in Megatron-LM.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.ir.values import check_choice

MASTER: Final = "float32"
"""The element type of parameters and optimizer states under every policy."""

# Operators that read and write float32 under a policy of lower precision: losses, softmax, and
# functions and sums that lose most digits.
KEPT: Final = (
    "channel_mean",
    "channel_variance",
    "cosh",
    "cumprod",
    "cumsum",
    "erfinv",
    "exp",
    "exp_sum",
    "exp_sum_and_pick",
    "expm1",
    "l2_normalize",
    "log",
    "log1p",
    "log_softmax",
    "pow",
    "power",
    "reciprocal",
    "reduce_prod",
    "reduce_sum",
    "row_max",
    "rsqrt",
    "sigmoid_cross_entropy",
    "sinh",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "sparse_softmax_cross_entropy",
    "tan",
)
# Operators that compute in float32, and whose result is cast to the lower precision.
INNER: Final = ("batch_normalize",)
# Operators that read and write the lower precision, whatever their operands are.
LOWERED: Final = (
    "combine",
    "convolution",
    "dispatch",
    "einsum",
    "matmul",
    "scaled_dot_product_attention",
    "transposed_convolution",
)


@dataclass(frozen=True)
class Precision:
    """A policy of mixed precision.

    Parameters
    ----------
    name : str
        Its name.
    compute : str
        The element type of activations and of the copies of parameters that operators read.
    reduction : str
        The element type in which gradients of parameters are reduced over ranks.
    accumulation : str
        The element type in which gradients of parameters are accumulated over micro-batches.
    kept : tuple of str
        Operators that compute in float32, and whose results are float32.
    inner : tuple of str
        Operators that compute in float32, and whose results are cast to `compute`.
    lowered : tuple of str
        Operators that compute in `compute` whatever they read. All others compute in the widest
        type of the activations that they read; parameters follow.

    Raises
    ------
    OptionError
        If a type is not one that the policy can have.
    """

    name: str
    compute: str = MASTER
    reduction: str = MASTER
    accumulation: str = MASTER
    kept: tuple[str, ...] = KEPT
    inner: tuple[str, ...] = INNER
    lowered: tuple[str, ...] = LOWERED

    def __post_init__(self) -> None:
        check_choice("compute", self.compute, _COMPUTED)
        for name in ("reduction", "accumulation"):
            check_choice(name, getattr(self, name), (MASTER, self.compute))

    def __str__(self) -> str:
        return self.name

    @property
    def is_mixed(self) -> bool:
        """Whether anything is computed in another type than float32."""
        return self.compute != MASTER


_COMPUTED = ("float32", "bfloat16", "float16")


PRECISIONS = {name: Precision(name, name, name) for name in _COMPUTED}
"""The policies by name."""


def precision_named(name: object) -> Precision:
    """Return the policy of a name.

    Raises
    ------
    OptionError
        If there is none.
    """
    check_choice("precision", name, PRECISIONS)
    return PRECISIONS[str(name)]
