"""The plan of least worst-case regret, where figures of a cluster are known up to an error.

The seconds of operators, those of the links of each level, and the share of the gathers of
parameters for which computation waits, are each in an interval. The regret of a plan in a case is
how much longer its step takes than that of the plan that is best in it. The cases are the corners
of the intervals and the figures as they are said. Where steps are linear in the factors, regret is
greatest in a corner: it is one less than a quotient of linear functions, which along each factor
has no maximum inside an interval. Where gathers hide behind computation, or the critical path of a
pipeline changes, a step is the larger of several such functions, and the corners are a sample.

References
----------
Savage, "The theory of statistical decision", 1951: minimax regret.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from shardwright.compiler.evaluation.evaluated import Evaluated, fastest
from shardwright.compiler.evaluation.evaluated_model import EvaluatedModel
from shardwright.compiler.evaluation.factors import AS_SAID, Factors
from shardwright.compiler.evaluation.plan_bounds import Bound
from shardwright.cost_model.cluster import Cluster
from shardwright.ir.rounding import EQUAL

COMPUTE, OVERLAP = "compute", "overlap"
# The least and the greatest factor on the seconds of operators, and on those of links.
_OF_FITTED = (0.9, 1.1), (0.8, 1.2)
_OF_DATA_SHEETS = (1.0, 1.45), (1.0, 1.67)
_HALVINGS = 5  # halvings of an interval to the error at which the choice flips: to 3 % of it


@dataclass(frozen=True)
class Error:
    """The interval of a figure.

    Parameters
    ----------
    name : str
        ``compute``, ``overlap``, or a level of the cluster.
    low, high : float
        Factor on its seconds; of ``overlap``, the share of the gathers in a pass that is exposed.
    """

    name: str
    low: float
    high: float


def errors_of(cluster: Cluster, given: Mapping[str, float], levels: int) -> list[Error]:
    """Return the intervals of the figures of a cluster.

    Rates that were fitted to measured steps err by 10 %, links by 20 %. Rates of data sheets are
    peaks: measured ones are 0.69 to 0.9 of them for operators, and 0.6 to 0.97 for links.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    given : dict of str to float
        Relative errors that the user states, which hold in both directions; of ``overlap`` the
        largest exposed share.
    levels : int
        Levels of the cluster that are used.
    """
    operators, _ = _OF_FITTED if cluster.device.efficiency else _OF_DATA_SHEETS
    found = [Error(COMPUTE, *operators)]
    for level in cluster.levels[:levels]:
        _, links = _OF_DATA_SHEETS if level.efficiency is None else _OF_FITTED
        found.append(Error(level.name, *links))
    found.append(Error(OVERLAP, 0.0, 1.0))
    stated = {
        name: Error(name, 0.0, share) if name == OVERLAP else Error(name, 1 - share, 1 + share)
        for name, share in given.items()
    }
    return [stated.get(error.name, error) for error in found]


@dataclass(frozen=True)
class Choice:
    """A plan of least worst-case regret among several.

    Parameters
    ----------
    chosen : int
        The number of the plan.
    regrets : tuple of float
        The worst regret of every plan.
    worst : tuple of int
        The case of the worst regret of every plan.
    """

    chosen: int
    regrets: tuple[float, ...]
    worst: tuple[int, ...]


def least_regret(seconds: Sequence[Sequence[float]]) -> Choice:
    """Return the plan whose worst regret is least.

    Parameters
    ----------
    seconds : sequence of sequence of float
        The steps of every plan in every case.

    Examples
    --------
    The second plan is never the fastest, and never much slower.

    >>> least_regret([(1.0, 3.0), (1.2, 1.2), (3.0, 1.0)]).chosen
    1
    """
    best = [min(case) for case in zip(*seconds, strict=True)]
    regrets, worst = [], []
    for steps in seconds:
        own = [step / least - 1 for step, least in zip(steps, best, strict=True)]
        regrets.append(max(own))
        worst.append(own.index(max(own)))
    return Choice(regrets.index(min(regrets)), tuple(regrets), tuple(worst))


@dataclass(frozen=True)
class Flip:
    """The error at which another plan is the fastest.

    Parameters
    ----------
    error : Error
        The figure.
    factor : float or None
        The factor, or share, at which it is; None where the choice holds in the interval.
    plan : Evaluated or None
        The other plan.
    """

    error: Error
    factor: float | None
    plan: Evaluated | None


@dataclass(frozen=True)
class Robust:
    """The robust choice among plans.

    Parameters
    ----------
    errors : tuple of Error
        The intervals.
    cases : tuple of Factors
        The cases; the first has the figures as they are said.
    candidates : tuple of Evaluated
        The plans, the first the fastest by the figures as they are said.
    choice : Choice
        The choice among them.
    flips : tuple of Flip
        For each figure alone, where the fastest plan is another one.
    """

    errors: tuple[Error, ...]
    cases: tuple[Factors, ...]
    candidates: tuple[Evaluated, ...]
    choice: Choice
    flips: tuple[Flip, ...]

    @property
    def plan(self) -> Evaluated:
        """The plan of least worst-case regret."""
        return self.candidates[self.choice.chosen]


def robust(model: EvaluatedModel, plans: Sequence[Bound], errors: Sequence[Error]) -> Robust | None:
    """Return the robust choice among plans that fit; None where none does.

    The candidates are the plans that are fastest in some case.

    Parameters
    ----------
    model : EvaluatedModel
        The model.
    plans : sequence of Bound
        The plans.
    errors : sequence of Error
        The intervals of figures.
    """
    corners = product(*(dict.fromkeys((error.low, error.high)) for error in errors))
    cases = (AS_SAID, *(_factors(corner) for corner in corners))
    found = (fastest(model, plans, case) for case in cases)
    best = {one.plan: one for one in found if one is not None}
    candidates = sorted(best.values(), key=lambda one: one.seconds)
    if not candidates:
        return None
    table = [[one.seconds_in(case) for case in cases] for one in candidates]
    flips = tuple(_flip(candidates, error) for error in errors)
    return Robust(tuple(errors), cases, tuple(candidates), least_regret(table), flips)


def _factors(values: Sequence[float]) -> Factors:
    """Return the factors of a case: of operators, of the levels, and the exposed share."""
    compute, *links, exposed = values
    return Factors(compute, tuple(links), exposed)


def _flip(candidates: Sequence[Evaluated], error: Error) -> Flip:
    """Return the least error of one figure at which another plan is faster than the first."""
    model = candidates[0].model
    number, software = _position(model.run_on, error.name), model.software
    hides = 0.0 if software is None else software.exposed_parameters.value
    said = hides if error.name == OVERLAP else 1.0
    least, far = Flip(error, None, None), inf
    for end in sorted({error.low, error.high} - {said}):
        factor, plan = _flip_toward(candidates, number, said, end)
        if plan is not None and abs(factor - said) < far:
            least, far = Flip(error, factor, plan), abs(factor - said)
    return least


def _flip_toward(
    candidates: Sequence[Evaluated], where: int | str, said: float, end: float
) -> tuple[float, Evaluated | None]:
    """Return about the first factor on the way to an end where another plan is the fastest."""
    plan = _faster(candidates, _one(where, end))
    near, far = said, end
    for _ in range(_HALVINGS if plan is not None else 0):
        middle = (near + far) / 2
        other = _faster(candidates, _one(where, middle))
        near, far, plan = (middle, far, plan) if other is None else (near, middle, other)
    return far, plan


def _faster(candidates: Sequence[Evaluated], case: Factors) -> Evaluated | None:
    """Return the fastest plan in a case; None where it is the first."""
    steps = [one.seconds_in(case) for one in candidates]
    is_other = min(steps) < steps[0] * (1 - EQUAL)
    return candidates[steps.index(min(steps))] if is_other else None


def _position(cluster: Cluster, name: str) -> int | str:
    if name in (COMPUTE, OVERLAP):
        return name
    return [level.name for level in cluster.levels].index(name)


def _one(where: int | str, factor: float) -> Factors:
    """Return the factors with one other than said."""
    if where == COMPUTE:
        return Factors(compute=factor)
    if where == OVERLAP:
        return Factors(exposed=factor)
    assert isinstance(where, int)
    return Factors(links=(*(1.0,) * where, factor))
