"""MindSpore's exceptions from its cost formulas, a row for each operator that has some."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.operators.elementwise.functions import Binary, Unary
from shardwright.operators.info import OperatorInfo


@dataclass(frozen=True)
class Conventions:
    """How MindSpore enumerates the strategies of one operator, and prices them.

    Parameters
    ----------
    by_samples_alone : bool
        Split by samples alone, where these make as many equal parts as there are devices.
    never_replicated : bool
        In r1.0, never replicated where a strategy uses all devices.
    contraction_order : tuple of str
        Factors that come last in the device matrix of a transposed first operand.
    gradient_computes : bool
        The gradient by a parameter counts as computation.
    charged_for_result : bool
        Charged for the bytes of the result, not of the operands.
    reduction_passes : int
        How often a result that is reduced over devices counts as computation.
    follows_consumers : bool
        A function of one tensor, whose consumers may have to use the layout of its result.
    is_reshape : bool
        Charged as the redistribution that MindSpore makes of it.
    carries_parameter : bool
        Its result still counts as the parameter that it reads.
    """

    by_samples_alone: bool = False
    never_replicated: bool = False
    contraction_order: tuple[str, ...] = ()
    gradient_computes: bool = False
    charged_for_result: bool = False
    reduction_passes: int = 1
    follows_consumers: bool = False
    is_reshape: bool = False
    carries_parameter: bool = False


_PRODUCT = Conventions(
    never_replicated=True, contraction_order=("m", "k", "n"), gradient_computes=True
)
_CONVENTIONS: Mapping[str, Conventions] = {
    "matmul": _PRODUCT,
    "quantized_matmul": _PRODUCT,
    "convolution": Conventions(by_samples_alone=True),
    "bias_add": Conventions(gradient_computes=True),
    "prelu": Conventions(gradient_computes=True),
    "softmax": Conventions(charged_for_result=True, follows_consumers=True),
    "log_softmax": Conventions(charged_for_result=True, follows_consumers=True),
    "tile": Conventions(charged_for_result=True),
    "broadcast_to": Conventions(charged_for_result=True),
    "reduce_mean": Conventions(reduction_passes=2),
    "reshape": Conventions(is_reshape=True),
    "cast": Conventions(follows_consumers=True, carries_parameter=True),
}
_UNARY = Conventions(follows_consumers=True)
_BINARY = Conventions(gradient_computes=True)


def conventions_of(operator: type[OperatorInfo]) -> Conventions:
    """Return the conventions of a kind of operator."""
    if operator.name in _CONVENTIONS:
        return _CONVENTIONS[operator.name]
    if issubclass(operator, Unary):
        return _UNARY
    return _BINARY if issubclass(operator, Binary) else Conventions()
