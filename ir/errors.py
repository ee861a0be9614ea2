"""The errors a person can cause, and how they read.

An error says what was found and what was expected, where, and how to mend it. The three parts
are kept as fields, so that the command line, the JSON output and the tests read the same thing.
"""


class ShardwrightError(Exception):
    """An error with a remedy.

    Parameters
    ----------
    what : str
        What was found and what was expected, in one sentence without a final stop.
    where : str, optional
        The place: a line of IR, a file, an option.
    hint : str, optional
        What would be right.

    Examples
    --------
    >>> print(ShardwrightError("unknown operator `rleu`", hint="did you mean `relu`?"))
    unknown operator `rleu`; did you mean `relu`?
    """

    def __init__(self, what: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f" (in {self.where})" if self.where else ""
        remedy = f"; {self.hint}" if self.hint else ""
        return f"{self.what}{place}{remedy}"


class ShardwrightWarning(UserWarning):
    """Something that is allowed, and that the user probably did not mean."""


class OptionError(ShardwrightError):
    """An option or an argument has a value that is not allowed, or does not exist."""


class IRError(ShardwrightError):
    """The graph, a type, a layout or a text form is wrong."""


class StrategyError(ShardwrightError):
    """An operator cannot be split the way it was asked to."""


class ClusterError(ShardwrightError):
    """A cluster description is wrong, or does not fit the number of devices."""


class SolverError(ShardwrightError):
    """An assignment problem is malformed."""


class NoPlanError(ShardwrightError):
    """The search ended without a plan; catch this where the reason does not matter.

    Parameters
    ----------
    what, where, hint : str
        As for every error.
    least_memory_bytes : float, optional
        Bytes a device of the leanest program found; None if no program was found at all.
    least_memory_bound : float, optional
        Proven: no program needs fewer bytes a device; None if there is no such proof.
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
    """No plan exists within the limit: this is proven."""


class NotFoundError(NoPlanError):
    """No plan was found, and none is excluded: more time or another search may find one."""


class PassError(ShardwrightError):
    """A pass was asked for something it cannot do, or left a wrong graph behind."""


class PlanError(ShardwrightError):
    """A plan directory is missing, corrupt or from another version."""


class PackageError(ShardwrightError):
    """An optional package is needed and is not installed, or cannot be loaded."""


class OutputError(ShardwrightError):
    """A file cannot be written, or it would replace one that the program did not write."""


class ModelError(ShardwrightError):
    """A model definition cannot be found or traced."""


class PluginError(ShardwrightError):
    """A file or a package that registers operators, passes or searches cannot be loaded."""


class ExecutionError(ShardwrightError):
    """A program could not be executed."""


class OperatorError(ShardwrightError):
    """An operator does not keep what its rule, kernel or gradient promises."""
