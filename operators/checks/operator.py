"""The check of one operator: rule, linear sets and gradient, on each of its examples."""

from dataclasses import dataclass

from shardwright.ir.errors import OperatorError
from shardwright.ir.values import checked
from shardwright.operators.checks.cases import MESHES, cases_of, has_gradient
from shardwright.operators.checks.gradients import check_numeric_gradient
from shardwright.operators.checks.linearity import check_linear_sets, check_partial_operands
from shardwright.operators.checks.strategies import check_strategy, check_types, check_whole_factors
from shardwright.operators.checks.traits import check_traits


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Parameters
    ----------
    operator : str
        Name of the operator.
    examples, strategies : int
        Number of its examples, and of the strategies run on them.
    gradient : bool
        Whether it has a gradient; then the gradient was checked too.
    """

    operator: str
    examples: int
    strategies: int
    gradient: bool

    def __str__(self) -> str:
        gradient = "values and gradients agree" if self.gradient else "values agree"
        return (
            f"`{self.operator}`: {gradient} for {self.strategies} strategies of "
            f"{self.examples} example{'s' if self.examples > 1 else ''}"
        )


@checked
def check_operator(name: str, *, never_partial: bool = False) -> Checked:
    """Check that an operator keeps the promises of its rule, linear sets and gradient.

    Parameters
    ----------
    name : str
        Name of a registered operator that has examples.
    never_partial : bool
        Accept that `linear` lacks sets of operands in which the operator is linear.

    Returns
    -------
    Checked
        A summary; printed, it is one sentence.

    Raises
    ------
    OperatorError
        At the first broken promise; names the example and the strategy.
    """
    cases = list(cases_of(name))
    if not cases:
        what = f"the operator `{name}` has no examples, expected at least one"
        raise OperatorError(what, hint='give its class `examples = (Example(("f64[4, 6]",)),)`')
    strategies = 0
    for case in cases:
        check_types(case)
        check_traits(case)
        check_whole_factors(case)
        check_numeric_gradient(case)
        check_linear_sets(case, complete=not never_partial)
        check_partial_operands(case)
        for mesh in MESHES:
            for strategy in case.info().generate_strategies(mesh):
                strategies += 1
                check_strategy(case, strategy, mesh)
    return Checked(name, len(cases), strategies, has_gradient(cases[0].info()))
