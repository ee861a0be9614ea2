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
    >>> print(ShardwrightError("no operator is called `rleu`", hint="did you mean `relu`?"))
    no operator is called `rleu`; did you mean `relu`?
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


class IRError(ShardwrightError):
    """The graph, a type, a layout or a text form is wrong."""


class StrategyError(ShardwrightError):
    """An operator cannot be split the way it was asked to."""


class ClusterError(ShardwrightError):
    """A cluster description is wrong, or does not fit the number of devices."""


class SolverError(ShardwrightError):
    """An assignment problem is malformed."""


class InfeasibleError(ShardwrightError):
    """No plan fits; the message names the least that would do."""


class PassError(ShardwrightError):
    """A pass was asked for something it cannot do, or left a wrong graph behind."""


class PlanError(ShardwrightError):
    """A plan directory is missing, corrupt or from another version."""


class ModelError(ShardwrightError):
    """A model definition cannot be found or traced."""


class ExecutionError(ShardwrightError):
    """A program could not be executed."""


class OperatorError(ShardwrightError):
    """An operator does not keep what its rule, kernel or gradient promises."""
