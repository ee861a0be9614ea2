"""Errors of users, and their text form.

An error states what was found and expected, where, and how to fix it. The three parts are fields,
so that the command line, the JSON output and the tests agree.
"""

from collections.abc import Sequence
from math import inf


class ShardwrightError(Exception):
    """An error with a place and a hint.

    Parameters
    ----------
    what : str
        What was found and what was expected, in one sentence without a period.
    where : str, optional
        The place: a line of IR, a file, an option.
    hint : str, optional
        How to fix it.

    Examples
    --------
    >>> print(ShardwrightError("unknown operator `rleu`", hint="did you mean `relu`?"))
    unknown operator `rleu`; did you mean `relu`?
    """

    def __init__(self, what: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        # What Python raises of such a value: of one of another type, of a position that is none.
        self.as_python: type[Exception] | None = None
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f" (in {self.where})" if self.where else ""
        remedy = f"; {self.hint}" if self.hint else ""
        return f"{self.what}{place}{remedy}"


class ShardwrightWarning(UserWarning):
    """A valid input that the user probably did not mean."""


class OptionError(ShardwrightError):
    """An option or argument is unknown, or has a value that is not allowed."""


class IRError(ShardwrightError):
    """The graph, a type, a layout or a text form is wrong."""


class StrategyError(ShardwrightError):
    """A strategy is not legal for an operator."""


class TimeLimitError(StrategyError):
    """The time limit ended a search before its problem was built; more time may help."""


class TableLimitError(TimeLimitError):
    """The tables of a search take too much memory; its problem is not built, as without time."""


class ClusterError(ShardwrightError):
    """A cluster description is invalid, or does not fit the number of devices."""


class SolverError(ShardwrightError):
    """An assignment problem is malformed."""


class NoPlanError(ShardwrightError):
    """The search ended without a plan; the base of the two reasons.

    Parameters
    ----------
    what, where, hint : str
        As in `ShardwrightError`.
    least_memory_bytes : float, optional
        Bytes per device of the smallest program found; None if no program was found.
    least_memory_bound : float, optional
        Proven lower bound on the bytes per device; None without a proof.
    """

    def __init__(
        self,
        what: str,
        where: str | None = None,
        hint: str | None = None,
        *,
        least_memory_bytes: float | None = None,
        least_memory_bound: float | None = None,
    ) -> None:
        super().__init__(what, where, hint)
        self.least_memory_bytes = least_memory_bytes
        self.least_memory_bound = least_memory_bound


class InfeasibleError(NoPlanError):
    """No plan exists within the limit, which is proven."""


class NotFoundError(NoPlanError):
    """No plan was found; more time or another search may find one."""


class PassError(ShardwrightError):
    """A pass cannot do what was requested, or its result is not a valid graph."""


class PlanError(ShardwrightError):
    """A plan directory is missing, corrupt or from another version."""


class PackageError(ShardwrightError):
    """An optional package is needed and is not installed, or cannot be loaded."""


class OutputError(ShardwrightError):
    """A file cannot be written, or would overwrite a file of the user."""


class ModelError(ShardwrightError):
    """A model definition cannot be found or traced."""


class PluginError(ShardwrightError):
    """A file or a package that registers operators, passes or searches cannot be loaded."""


class ExecutionError(ShardwrightError):
    """A program could not be executed."""


class OperatorError(ShardwrightError):
    """An operator breaks the promises of its rule, kernel or gradient."""


def combined(errors: Sequence[ShardwrightError]) -> ShardwrightError:
    """Return the error for all candidates, such as meshes: none of them has a plan.

    Infeasibility is proven only if it is for each; the bound on the memory is then the least.
    """
    failed = [error for error in errors if isinstance(error, NoPlanError)]
    if not failed:
        return errors[-1]
    unproven = [error for error in failed if isinstance(error, NotFoundError)]
    told = min(unproven or failed, key=lambda error: error.least_memory_bytes or inf)
    leanest = [e.least_memory_bytes for e in failed if e.least_memory_bytes is not None]
    bounds = [e.least_memory_bound for e in failed if e.least_memory_bound is not None]
    return type(told)(
        told.what,
        told.where,
        told.hint,
        least_memory_bytes=min(leanest, default=None),
        least_memory_bound=min(bounds) if len(bounds) == len(failed) else None,
    )
