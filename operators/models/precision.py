"""Precision policies: the element types in which a training step is computed.

Parameters and optimizer states stay in float32 (master weights). Before an operator that computes
in a lower precision, a parameter is cast to it; its gradient is computed in the type of that copy,
and reduced over ranks and accumulated over micro-batches in it or in float32.

References
----------
Micikevicius et al., "Mixed precision training", 2018; the operators that stay in float32 are those
of PyTorch's autocast, except for the normalizations of rows and attention, whose kernels compute in
float32 inside, as in Megatron-LM.
"""

from dataclasses import dataclass
from typing import Final, Literal

from shardwright.ir.errors import OptionError
from shardwright.ir.graph import Graph
from shardwright.ir.types import TF32, TensorType, item_bytes
from shardwright.ir.values import check_choice
from shardwright.operators.models.recipes import RECIPES, Recipe

GradientType = Literal["lower", "float32"]
"""Where gradients of parameters are added up: in the type of the copies, or in that of masters."""
COMPUTED: Final = ("float32", "bfloat16", "float16")
MASTER: Final = "float32"
"""The element type of parameters and optimizer states under every policy."""

# Losses, which read and write float32 under every policy.
LOSSES: Final = (
    "binary_cross_entropy",
    "exp_sum",
    "exp_sum_and_pick",
    "row_max",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
)
STATISTICS: Final = ("channel_mean", "channel_variance")
# Operators that read and write float32: also softmax, functions and sums that lose most digits.
KEPT: Final = (
    *LOSSES,
    *STATISTICS,
    "cosh",
    "cumprod",
    "cumsum",
    "erfinv",
    "exp",
    "expm1",
    "l2_normalize",
    "linear_recurrence",
    "log",
    "log1p",
    "log_softmax",
    "pow",
    "power",
    "reciprocal",
    "reduce_prod",
    "reduce_sum",
    "rsqrt",
    "sinh",
    "softmax",
    "softplus",
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
    "grouped_matmul",
    "head_log_sum_and_pick",
    "matmul",
    "nf4_matmul",
    "recurrent_layer",
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
    kept : tuple of str
        Operators that compute in float32, and whose results are float32.
    inner : tuple of str
        Operators that compute in float32, and whose results are cast to `compute`.
    lowered : tuple of str
        Operators that compute in `compute` whatever they read.
    others : str
        What all others compute in: ``widest``, the widest type of the activations that they read,
        which parameters follow; or ``float32``.
    recipe : Recipe, optional
        What quantizes the operands of products of repeated blocks, which `compute` is of otherwise.
    ends : int
        How many of the first blocks, and of the last, the recipe leaves out.
    products : str
        The type of the factors of products of float32, ``tf32``; empty for float32.

    Raises
    ------
    OptionError
        If a type is not one that the policy can have.
    """

    name: str
    compute: str = MASTER
    kept: tuple[str, ...] = KEPT
    inner: tuple[str, ...] = INNER
    lowered: tuple[str, ...] = LOWERED
    others: Literal["widest", "float32"] = "widest"
    recipe: Recipe | None = None
    ends: int = 0
    products: str = ""

    def __post_init__(self) -> None:
        check_choice("compute", self.compute, COMPUTED)

    def __str__(self) -> str:
        return self.name

    @property
    def is_mixed(self) -> bool:
        """Whether anything has another type than float32."""
        return self.compute != MASTER


def _of_amp(compute: str) -> tuple[Precision, ...]:
    """Return MindSpore's levels of automatic mixed precision in a lower precision.

    O1 lowers products only. O2 lowers the network but for batch normalization and the loss, O3 but
    for the loss.
    """
    return (
        Precision(f"O1-{compute}", compute, others="float32"),
        Precision(f"O2-{compute}", compute, kept=(*LOSSES, *STATISTICS)),
        Precision(f"O3-{compute}", compute, kept=LOSSES, inner=()),
    )


PRECISIONS = {name: Precision(name, name) for name in COMPUTED}
"""The policies by name."""
PRECISIONS[TF32] = Precision(TF32, products=TF32)
for _policy in (*_of_amp("bfloat16"), *_of_amp("float16")):
    PRECISIONS[_policy.name] = _policy
PRECISIONS |= {name: Precision(name, "bfloat16", recipe=own) for name, own in RECIPES.items()}
FIRST_LAST: Final = "+first-last-bf16"
"""What the name of a recipe ends with whose first and last block stay in bfloat16."""
for _recipe in RECIPES.values():
    if _recipe.leaves_ends:
        _policy = Precision(f"{_recipe.name}{FIRST_LAST}", "bfloat16", recipe=_recipe, ends=1)
        PRECISIONS[_policy.name] = _policy


def recipe_of(precision: str) -> Recipe | None:
    """Return the recipe of low precision of a policy; None where it has none."""
    policy = PRECISIONS.get(precision)
    return None if policy is None else policy.recipe


def precision_named(name: object) -> Precision:
    """Return the policy of a name.

    Raises
    ------
    OptionError
        If there is none.
    """
    check_choice("precision", name, PRECISIONS)
    return PRECISIONS[str(name)]


AMP_LEVELS: Final = ("O0", "O1", "O2", "O3", "auto")


def precision_of_amp(level: object, dtype: object = "float16") -> Precision:
    """Return the policy of a level of MindSpore's automatic mixed precision.

    Parameters
    ----------
    level : str
        ``O0`` for float32; ``O1``, ``O2``, ``O3``; ``auto`` for the policy of the type.
    dtype : str
        ``float16`` or ``bfloat16``.

    Raises
    ------
    OptionError
        If there is no such level or type.
    """
    check_choice("amp_level", level, AMP_LEVELS)
    check_choice("dtype", dtype, COMPUTED[1:])
    if level == "O0":
        return PRECISIONS[MASTER]
    return PRECISIONS[str(dtype) if level == "auto" else f"{level}-{dtype}"]


def accumulate_type(graph: Graph) -> str | None:
    """Return the type in which a program adds up over micro-batches; None for that of each tensor.

    The copies of its parameters ask for it.
    """
    for node in graph.nodes:
        if node.operator == "cast" and node.attributes.get("accumulate"):
            return str(node.attributes["accumulate"])
    return None


def is_narrower(tensor: TensorType, dtype: str) -> bool:
    """Return whether a tensor has a floating-point type of fewer bytes than another."""
    return tensor.is_float and item_bytes(tensor.dtype) < item_bytes(dtype)


def one_precision(own: str, asked: str) -> str:
    """Return the precision of a network that has one of its own.

    Raises
    ------
    OptionError
        If the options of the compilation say another one.
    """
    if asked not in (own, MASTER):
        raise OptionError(
            f"the network has the precision `{own}`, and the options say `{asked}`",
            hint="leave out one of them",
        )
    return own
